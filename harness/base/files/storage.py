"""Durable files and folders, also in folders that a group or strangers share."""

import contextlib
import errno
import fnmatch
import json
import os
import stat
import time
from collections.abc import Iterable, Iterator
from itertools import chain, count
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO

from harness.base.errors import NoSpaceError, RemovedMeanwhileError, UserError
from harness.base.files.failpoints import reached
from harness.base.files.tree_removal import opened_folder, remove_below

UNFINISHED = ".*.tmp*"
PIECE_BYTES = 1 << 20
# Older files were left by a crash: no file here takes a minute to write.
ABANDONED_SECONDS = 3600
LONGEST_OF_NAME = 50
ROOT = 0
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
# Most bytes that are read at once: no file of this tool comes near that.
LARGEST_READ = 64 << 20
SAFE_OPEN_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def write_durably(file: Path, content: bytes) -> None:
    """Write a file so that after a crash it exists completely or not at all.

    Raises:
        UserError: when the folder cannot be written to or the disk is full; nothing is left behind.
    """
    write_pieces_durably(file, [content])


def copy_durably(source: Path, file: Path) -> None:
    """Copy a file of any size in pieces, as durably as `write_durably` does.

    Raises:
        OSError: when the source cannot be opened.
        UserError: as `write_durably`.
    """
    with source.open("rb") as stream:
        write_pieces_durably(file, iter(lambda: stream.read(PIECE_BYTES), b""))


def write_pieces_durably(file: Path, pieces: Iterable[bytes]) -> None:
    """Write a file from pieces of its content, as durably as `write_durably` does.

    Raises:
        UserError: as `write_durably`.
    """
    temporary = unfinished(Path(file.name))
    try:
        make_folder_durably(file.parent)
        folder = _open_folder(file.parent)
    except OSError as error:
        raise cannot_be_written(file, error) from None
    try:
        with create(temporary, folder) as stream:
            _share(stream.fileno(), folder)
            reached("file-opened")
            for piece in pieces:
                stream.write(piece)
            stream.flush()
            reached("file-written")
            os.fsync(stream.fileno())
        reached("file-synced")
        os.replace(temporary, file.name, src_dir_fd=folder, dst_dir_fd=folder)
        reached("file-renamed")
        os.fsync(folder)
    except OSError as error:
        raise cannot_be_written(file, error) from None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        os.close(folder)


def cannot_be_written(place: object, error: OSError) -> UserError:
    """Return the error, of the right kind, for a place that cannot be written to."""
    kind: type[UserError] = NoSpaceError if error.errno in NO_SPACE else UserError
    kind = RemovedMeanwhileError if error.errno == errno.ENOENT else kind
    return kind(f"{place}: cannot be written: {error.strerror}; {remedy_for(error)}")


def remedy_for(error: OSError) -> str:
    """Return what the user can do about an error of writing."""
    if error.errno in NO_SPACE:
        return "free space or choose another folder"
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return "a file has the name of this folder; choose another folder"
    if isinstance(error, AnotherUsersError):
        return "if you want to write there, give that folder and not the link"
    if error.errno == errno.EPERM:
        return "if `lsattr -d` shows i or a, undo it with `chattr -ia`; or choose a folder that you may write to"
    if error.errno in (errno.EACCES, errno.EROFS):
        return "choose a folder that you may write to"
    return "choose another folder"


def unfinished(place: Path) -> Path:
    """Return a new name for an unfinished file or folder; it is random, so that no one can prepare for it."""
    # The name of the place may already have the greatest length.
    return place.with_name(f".{place.name[:LONGEST_OF_NAME]}.{token_hex(8)}.tmp")


def create(file: Path, folder: int | None = None) -> BinaryIO:
    """Create a new file, and open it for writing. `folder`: an open folder that the path begins at.

    Raises:
        OSError: when the file cannot be created, or anything has its name, such as a link.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(file, flags, 0o666, dir_fd=folder), "wb")


def unused(file: Path) -> Path:
    """Return the place of a file, with a number in its name if the name is taken: `a-2.txt`."""
    numbered = (file.with_stem(f"{file.stem}-{number}") for number in count(2))
    return next(place for place in chain([file], numbered) if not place.exists())


def remove_unfinished(folder: Path) -> None:
    """Remove unfinished files of crashed processes from a folder; do nothing if the folder's name is a link."""
    with contextlib.suppress(OSError), opened_folder(folder) as opened:
        with os.scandir(opened) as entries:
            names = [entry.name for entry in entries if fnmatch.fnmatch(entry.name, UNFINISHED)]
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                if time.time() - os.stat(name, dir_fd=opened, follow_symlinks=False).st_mtime > ABANDONED_SECONDS:
                    remove_below(opened, name)


def open_regular(file: Path, *, adding: bool = False) -> BinaryIO:
    """Open a file for reading or, with `adding`, for reading and appending; then it is made if it does not exist.

    A results folder may be another user's: a link in the place of the file is not followed, and a FIFO does not block.
    With `adding`, a link of another user in the place of its folder is not followed either.

    Raises:
        OSError: when the file cannot be opened, or is not a regular file.
    """
    if not adding:
        return os.fdopen(_regular(os.open(file, os.O_RDONLY | SAFE_OPEN_FLAGS), file), "rb")
    folder = _open_folder(file.parent)
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | SAFE_OPEN_FLAGS
        descriptor = _regular(os.open(file.name, flags, 0o666, dir_fd=folder), file)
        _share(descriptor, folder)
    except OSError as error:
        # Opened in its folder, it is named without it.
        error.filename = str(file)
        raise
    finally:
        os.close(folder)
    return os.fdopen(descriptor, "a+b")


def _regular(descriptor: int, file: Path) -> int:
    """Return the descriptor if it is that of a regular file; raises OSError otherwise."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is not a regular file", str(file))
    return descriptor


class AnotherUsersError(OSError):
    """A file belongs to another user."""


def read_regular(file: Path, most: int = LARGEST_READ, *, mine: bool = False) -> bytes:
    """Return the content of a file that `open_regular` opens. `mine`: only if it belongs to this user.

    Raises:
        OSError: as there, and when the file has more than `most` bytes; AnotherUsersError.
    """
    with open_regular(file) as stream:
        if mine and os.fstat(stream.fileno()).st_uid != os.geteuid():
            raise AnotherUsersError(errno.EPERM, "belongs to another user", str(file))
        # `read` allocates all the memory it is asked for before it reads.
        size = min(os.fstat(stream.fileno()).st_size, most)
        content = stream.read(size + 1)
        if size < len(content) <= most:
            # The file grew, or is in /proc, where sizes are 0.
            content += stream.read(most + 1 - len(content))
    if len(content) > most:
        raise OSError(errno.EFBIG, f"is larger than {most} bytes", str(file))
    return content


def size_of(file: Path) -> int:
    """Return the size of a file in bytes; 0 where it does not exist, which its reader will report."""
    try:
        return file.stat().st_size
    except OSError:
        return 0


def make_folder_durably(folder: Path, *, protect: bool = False) -> None:
    """Make a folder and those above it so that they are still there after a crash; raises OSError.

    `protect`: where each user may rename and remove only what is his own in the folder above (sticky), so in this one.
    A link of another user is refused: in a shared folder it may lead to a folder that only this user may write to.
    """
    if folder.is_symlink():
        _refuse_link_of_another(folder.lstat(), folder)
    if not folder.is_dir():
        make_folder_durably(folder.parent)
        folder.mkdir(exist_ok=True)
        descriptor = _open_folder(folder)
        try:
            _share(descriptor, folder.parent, stat.S_IXGRP)
            if protect:
                _protect(descriptor, folder.parent)
        finally:
            os.close(descriptor)
        sync_folder(folder.parent)


def _open_folder(folder: Path) -> int:
    """Open a folder; raises OSError, as `make_folder_durably` also where another user has just put a link there."""
    with contextlib.suppress(NotADirectoryError):
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    link = os.open(folder, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _refuse_link_of_another(os.fstat(link), folder)
        return _open_folder(folder.parent / os.readlink("", dir_fd=link))
    finally:
        os.close(link)


def _refuse_link_of_another(link: os.stat_result, folder: Path) -> None:
    if link.st_uid not in (os.geteuid(), ROOT):
        raise AnotherUsersError(errno.ELOOP, f"is a link of another user's, to {os.path.realpath(folder)}", str(folder))


def _share(descriptor: int, folder: Path | int, further: int = 0) -> None:
    """Let the group read and write a file or folder of this user in a shared folder, whatever the umask."""
    status = os.fstat(descriptor)
    if is_shared(folder) and status.st_uid == os.geteuid():
        os.fchmod(descriptor, stat.S_IMODE(status.st_mode) | stat.S_IRGRP | stat.S_IWGRP | further)


def _protect(descriptor: int, parent: Path) -> None:
    """Make a new folder sticky as its parent is, where others may write to it: a default ACL can grant that."""
    status = os.fstat(descriptor)
    mode = stat.S_IMODE(status.st_mode)
    # Another user may have been faster in making it.
    mine = status.st_uid == os.geteuid()
    if mine and parent.stat().st_mode & stat.S_ISVTX and mode & (stat.S_IWGRP | stat.S_IWOTH):
        os.fchmod(descriptor, mode | stat.S_ISVTX)


def is_shared(folder: Path | int) -> bool:
    """Return whether a group shares a folder: new files get its group (setgid), and the group may write to it."""
    wanted = stat.S_ISGID | stat.S_IWGRP
    return os.stat(folder).st_mode & wanted == wanted  # noqa: PTH116


@contextlib.contextmanager
def group_writable_umask(folder: Path) -> Iterator[None]:
    """Give all files that this process makes below a shared folder to the group, by the umask and not one by one.

    Raises:
        OSError: when the folder does not exist.
    """
    shared = is_shared(folder)
    before = os.umask(0o077)
    os.umask(before & ~stat.S_IRWXG if shared else before)
    try:
        yield
    finally:
        os.umask(before)


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to the disk; raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(file: Path, value: Any) -> None:
    """Write a value as strict JSON, durably."""
    write_durably(file, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())
