"""The one exception that is the user's to fix, and its kinds that a program may want to tell apart."""

from typing import ClassVar


class UserError(Exception):
    """Something the user can put right. Its text is one line: what, where, and what to do.

    `code` is what `--json` says of it; a kind that nobody handles apart has no class of its own.
    """

    code: ClassVar[str] = "user-error"


class UnknownNameError(UserError):
    """There is no cell, workload, run or the like of that name."""

    code = "unknown-name"


class NoSuchFileError(UserError):
    """A file or folder that was named is not there."""

    code = "no-such-file"


class NoEngineError(UserError):
    """No Docker engine answers, or this user may not use it."""

    code = "no-engine"


class NoAnswerError(UserError):
    """A registry or an index cannot be reached: later it may be."""

    code = "no-answer"


class InUseError(UserError):
    """Another process is at it: later it will not be."""

    code = "in-use"


class NoSpaceError(UserError):
    """There is too little room on a disk."""

    code = "no-space"


class RemovedMeanwhileError(UserError):
    """The folder that a file is written to is not there, or not any more."""


class UnhealthyHostError(UserError):
    """A GPU or the host takes no more runs before somebody looked at it."""

    code = "unhealthy-host"
