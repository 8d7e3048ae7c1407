"""Durable files and content hashes."""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from harness.errors import UserError


def write_durably(file: Path, content: bytes) -> None:
    """Write a file so that after a crash it is there whole or not at all.

    Raises:
        UserError: when the folder cannot be written to or the disk is full; nothing is left behind.
    """
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
        _sync_folder(file.parent)
    except OSError as error:
        raise UserError(f"{file}: cannot be written: {error.strerror}; free space or choose another folder") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(file: Path, value: Any) -> None:
    """Write strict JSON durably."""
    write_durably(file, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """Be the only process in here: the others wait at the lock file, which stays."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


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
