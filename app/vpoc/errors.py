"""Errors that the user, not this program, can fix."""

import errno
import signal
from pathlib import Path


class UserError(Exception):
    """A mistake or a condition outside this program, reported in one line: what is wrong, where, and how to fix it.

    `exit_code`: the exit status of the command, such as 2 for input, 3 for a missing device, 4 for a diverged training.
    """

    def __init__(self, message: str, *, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code


LONGEST_SHOWN = 2000
"""Longest message, in characters: text quoted from a file may have gigabytes."""


def printable(message: object) -> str:
    """Return a message as one line without characters that control a terminal; a long one loses its middle."""
    text = str(message)
    if len(text) > LONGEST_SHOWN:
        end = LONGEST_SHOWN // 4
        text = f"{text[: LONGEST_SHOWN - end]} ... {text[-end:]}"
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class Interrupted(BaseException):
    """A signal asked this process to end. `signum` is its number; the exit status is 128 + signum."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


REMEDIES = {
    errno.ENOSPC: "the disk is full; free some space or choose another folder",
    errno.EDQUOT: "the disk quota is used up; free some space or choose another folder",
    errno.EACCES: "permission denied; choose a folder or file you have access to, or change its permissions",
    errno.EPERM: "not permitted; choose a folder or file you have access to, or change its permissions",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.ENOENT: "no such file or folder; check the path",
    errno.ENAMETOOLONG: "the name is too long; give a shorter one",
    errno.EISDIR: "this is a folder; give the path of a file",
    errno.ENOTDIR: "a part of this path is a file, not a folder; check the path",
    errno.ELOOP: "a link has the name of a file to write; remove it, or choose another folder",
    errno.EEXIST: "a file is in the way; choose another path",
}


def from_os_error(error: OSError, path: Path) -> UserError:
    """Return the one-line form of an operating-system error on `path`."""
    remedy = REMEDIES.get(error.errno or 0, error.strerror or str(error))
    return UserError(f"{path}: {remedy}")
