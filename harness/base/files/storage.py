"""Durable files, locks and content hashes."""

import contextlib
import errno
import fcntl
import fnmatch
import hashlib
import json
import logging
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, count
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO

from harness.base.errors import InUseError, NoSpaceError, RemovedMeanwhileError, UserError
from harness.base.files.failpoints import reached
from harness.base.files.shared_locks import is_at
from harness.base.files.tree_removal import opened_folder, remove_below

UNFINISHED = ".*.tmp*"
PIECE_BYTES = 1 << 20
# What is older was left by a crash: no file here takes a minute to write.
ABANDONED_SECONDS = 3600
LONGEST_OF_NAME = 50
# For a lock that nobody holds for longer than a minute.
SHORT_LOCK_SECONDS = 600.0
# Who waits no longer has nothing to tell of it.
QUIET_SECONDS = 1.0
LOOK_SECONDS = 0.1
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
# No file of this tool that is read as a whole comes near it.
LARGEST_READ = 64 << 20
OWN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_held: set[int] = set()
_log = logging.getLogger(__name__)


def write_durably(file: Path, content: bytes) -> None:
    """Write a file so that after a crash it is there whole or not at all.

    Raises:
        UserError: when the folder cannot be written to or the disk is full; nothing is left behind.
    """
    _write_durably(file, [content])


def copy_durably(source: Path, file: Path) -> None:
    """Copy a file of any size as `write_durably` writes one, a piece at a time.

    Raises:
        OSError: when the source cannot be opened.
        UserError: as `write_durably`.
    """
    with source.open("rb") as stream:
        _write_durably(file, iter(lambda: stream.read(PIECE_BYTES), b""))


def _write_durably(file: Path, pieces: Iterable[bytes]) -> None:
    temporary = unfinished(file)
    try:
        make_folder_durably(file.parent)
        with create(temporary) as stream:
            _share(stream.fileno(), file.parent)
            reached("file-opened")
            for piece in pieces:
                stream.write(piece)
            stream.flush()
            reached("file-written")
            os.fsync(stream.fileno())
        reached("file-synced")
        temporary.replace(file)
        reached("file-renamed")
        sync_folder(file.parent)
    except OSError as error:
        raise cannot_be_written(file, error) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def cannot_be_written(place: object, error: OSError) -> UserError:
    """Return the error, of its kind, that a place cannot be written to."""
    kind: type[UserError] = NoSpaceError if error.errno in NO_SPACE else UserError
    kind = RemovedMeanwhileError if error.errno == errno.ENOENT else kind
    return kind(f"{place}: cannot be written: {error.strerror}; {remedy_for(error)}")


def remedy_for(error: OSError) -> str:
    """Return what to do about an error of writing."""
    if error.errno in NO_SPACE:
        return "free space or choose another folder"
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return "a file is where a folder is to be; choose another folder"
    if error.errno == errno.EPERM:
        return "where `lsattr -d` shows i or a, `chattr -ia` undoes it; or choose a folder that you may write to"
    if error.errno in (errno.EACCES, errno.EROFS):
        return "choose a folder that you may write to"
    return "choose another folder"


def unfinished(place: Path) -> Path:
    """Return a name for a file or folder that is still being made: another each time, so that nobody can wait there."""
    # That of a place may be as long as a name can be.
    return place.with_name(f".{place.name[:LONGEST_OF_NAME]}.{token_hex(8)}.tmp")


def create(file: Path) -> BinaryIO:
    """Create a file that nobody has, and open it for writing.

    Raises:
        OSError: where it cannot be created, or anything has its name: a link, too, wherever it leads.
    """
    return os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666), "wb")


def unused(file: Path) -> Path:
    """Return the place of a file, with a number in its name where there is one of that name: `a-2.txt`."""
    numbered = (file.with_stem(f"{file.stem}-{number}") for number in count(2))
    return next(place for place in chain([file], numbered) if not place.exists())


def remove_unfinished(folder: Path) -> None:
    """Remove what crashed processes left half made in a folder; nothing where its name is that of a link."""
    with contextlib.suppress(OSError), opened_folder(folder) as opened:
        with os.scandir(opened) as entries:
            names = [entry.name for entry in entries if fnmatch.fnmatch(entry.name, UNFINISHED)]
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                if time.time() - os.stat(name, dir_fd=opened, follow_symlinks=False).st_mtime > ABANDONED_SECONDS:
                    remove_below(opened, name)


def open_regular(file: Path, *, adding: bool = False) -> BinaryIO:
    """Open a file to read it or, `adding`, to read it and add to it, made where it is not there.

    A results folder may be somebody else's: a link in the place of a file is not followed, a FIFO not waited for.

    Raises:
        OSError: when it cannot be opened, or is no regular file.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND if adding else os.O_RDONLY
    descriptor = os.open(file, flags | OWN, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is no regular file", str(file))
    if adding:
        _share(descriptor, file.parent)
    return os.fdopen(descriptor, "a+b" if adding else "rb")


class AnotherUsersError(OSError):
    """A file belongs to another user."""


def read_regular(file: Path, most: int = LARGEST_READ, *, mine: bool = False) -> bytes:
    """Return the content of a file that `open_regular` opens; `mine`: only where it belongs to this user.

    Raises:
        OSError: as there, and when it has more than `most` bytes; AnotherUsersError.
    """
    with open_regular(file) as stream:
        if mine and os.fstat(stream.fileno()).st_uid != os.geteuid():
            raise AnotherUsersError(errno.EPERM, "belongs to another user", str(file))
        # As much memory is taken as is asked for, before anything is read.
        size = min(os.fstat(stream.fileno()).st_size, most)
        content = stream.read(size + 1)
        if size < len(content) <= most:
            # It grew, or lies in /proc, where all are empty by their sizes.
            content += stream.read(most + 1 - len(content))
    if len(content) > most:
        raise OSError(errno.EFBIG, f"is larger than {most} bytes", str(file))
    return content


def size_of(file: Path) -> int:
    """Return the bytes of a file; 0 where it is not there: what reads it says so."""
    try:
        return file.stat().st_size
    except OSError:
        return 0


def make_folder_durably(folder: Path) -> None:
    """Make a folder and those above it so that they are still there after a crash; raises OSError."""
    if not folder.is_dir():
        make_folder_durably(folder.parent)
        folder.mkdir(exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _share(descriptor, folder.parent, stat.S_IXGRP)
        finally:
            os.close(descriptor)
        sync_folder(folder.parent)


def _share(descriptor: int, folder: Path, further: int = 0) -> None:
    """Let the group read and write what this user made in a folder that a group shares, whatever the umask."""
    status = os.fstat(descriptor)
    if is_shared(folder) and status.st_uid == os.geteuid():
        os.fchmod(descriptor, stat.S_IMODE(status.st_mode) | stat.S_IRGRP | stat.S_IWGRP | further)


def is_shared(folder: Path) -> bool:
    """Return whether a group shares a folder: it hands its group on (setgid), and the group may write to it."""
    wanted = stat.S_ISGID | stat.S_IWGRP
    return folder.stat().st_mode & wanted == wanted


@contextlib.contextmanager
def making_many(folder: Path) -> Iterator[None]:
    """Have all that this process makes below a folder that a group shares be the group's, too, without a look at each.

    Raises:
        OSError: when the folder is not there.
    """
    shared = is_shared(folder)
    before = os.umask(0o077)
    os.umask(before & ~stat.S_IRWXG if shared else before)
    try:
        yield
    finally:
        os.umask(before)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk; raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(file: Path, value: Any) -> None:
    """Write strict JSON durably."""
    write_durably(file, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


@contextlib.contextmanager
def locked(file: Path, say: Callable[[str], None] = _log.warning, seconds: float | None = None) -> Iterator[None]:
    """Be the only process in here: the others wait at the lock file, which stays; `say` gets a line of a long wait.

    Raises:
        InUseError: when it is not unlocked in so many seconds; without any it is waited for as long as it takes.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        descriptor = -1
        # One that was removed while it was waited for keeps nobody out: whoever comes next makes another.
        while not is_at(descriptor, file):
            stack.close()
            descriptor = stack.enter_context(open_regular(file, adding=True)).fileno()
            wait_for_lock(descriptor, file, seconds, say)
        with held(descriptor):
            yield


def wait_for_lock(
    descriptor: int, file: Path, seconds: float | None, say: Callable[[str], None] = _log.warning
) -> None:
    """Lock a file as soon as no other process has it locked; `say` gets a line where that is not soon.

    Raises:
        InUseError: when it is not unlocked in so many seconds; without any it is waited for as long as it takes.
    """
    begun, said = time.monotonic(), False
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        waited = time.monotonic() - begun
        if seconds is not None and waited > seconds:
            raise InUseError(
                f"{file}: another process has it locked for {seconds:.0f} s; `fuser {file}` names it: end it"
            )
        if waited >= QUIET_SECONDS and not said:
            say(f"waiting for another process to unlock {file}; `fuser {file}` names it")
            said = True
        time.sleep(LOOK_SECONDS)


@contextlib.contextmanager
def held(descriptor: int) -> Iterator[None]:
    """Count a descriptor among the locks of this process. Closing it frees the lock, once no child has it either."""
    _held.add(descriptor)
    try:
        yield
    finally:
        _held.discard(descriptor)


def held_locks() -> tuple[int, ...]:
    """Descriptors of the locks this process holds.

    A child that is given them keeps what it works on locked, also when this process dies before it.
    """
    return tuple(sorted(_held))


def json_hash(value: Any) -> str:
    """SHA-256 of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(
        json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    ).hexdigest()


def file_hash(file: Path) -> str:
    """SHA-256 of a file's content."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def tree_hash(folder: Path, patterns: Iterable[str]) -> str:
    """SHA-256 over the names and contents of the files that match, in the order of their names."""
    files = sorted({file for pattern in patterns for file in folder.glob(pattern) if file.is_file()})
    return json_hash([[file.relative_to(folder).as_posix(), file_hash(file)] for file in files])
