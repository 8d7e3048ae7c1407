"""The exception for errors that the user can fix, and those of its kinds that a program may want to tell apart."""

from typing import ClassVar


class UserError(Exception):
    """An error that the user can fix. Its text is one line: what, where, and what to do.

    `code`: the name of the error in the output of `--json`. Only kinds that are handled separately have a class.
    """

    code: ClassVar[str] = "user-error"


class UnknownNameError(UserError):
    """There is no cell, workload, run or the like with this name."""

    code = "unknown-name"


class NoSuchFileError(UserError):
    """A named file or folder does not exist."""

    code = "no-such-file"


class NoEngineError(UserError):
    """No Docker engine answers, or this user may not use it."""

    code = "no-engine"


class NoAnswerError(UserError):
    """A registry or an index cannot be reached now, but perhaps later."""

    code = "no-answer"


class InUseError(UserError):
    """Another process uses the resource now, but will release it later."""

    code = "in-use"


class NoSpaceError(UserError):
    """There is too little space on a disk."""

    code = "no-space"


class RemovedMeanwhileError(UserError):
    """The folder for a file does not exist, or no longer exists."""


class UnhealthyHostError(UserError):
    """A GPU or the host takes no more runs until a person has looked at it."""

    code = "unhealthy-host"
