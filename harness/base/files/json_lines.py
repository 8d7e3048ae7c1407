"""Small files of JSON, a value a line, that several processes add to."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from harness.base.files.json_files import File
from harness.base.files.storage import (
    SHORT_LOCK_SECONDS,
    cannot_be_written,
    locked,
    make_folder_durably,
    open_regular,
    sync_folder,
)

# What is more is taken for further lines, which are none.
LARGEST_LINE = 1 << 20

# Not there, or a link, or something else than a file.
NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO)

OfLine = TypeVar("OfLine", bound=File)


def append_line(file: Path, value: File, *, cuts: bool = False) -> None:
    """Add a line, durably; several may do so at once, and one may have died in the middle of a line.

    `cuts`: what is there of such a line goes, as where none that is damaged is passed over.

    Raises:
        UserError: when the file cannot be written.
    """
    line = value.model_dump_json(by_alias=True).encode() + b"\n"
    try:
        make_folder_durably(file.parent)
        with (
            locked(file.with_name(f".{file.name}.lock"), seconds=SHORT_LOCK_SECONDS),
            open_regular(file, adding=True) as stream,
        ):
            if stream.tell() and os.pread(stream.fileno(), 1, stream.tell() - 1) != b"\n":
                if cuts:
                    stream.seek(0)
                    stream.truncate(stream.read().rfind(b"\n") + 1)
                else:
                    line = b"\n" + line
            stream.write(line)
            stream.flush()
            os.fsync(stream.fileno())
        sync_folder(file.parent)
    except OSError as error:
        raise cannot_be_written(file, error) from None


def read_json_lines(file: Path, kind: type[OfLine]) -> Iterator[OfLine]:
    """Yield the values of a file in the order they were written, and pass over what is none.

    Nothing where there is no regular file of that name.

    Raises:
        OSError: when it is there and cannot be read.
    """
    try:
        stream = open_regular(file)
    except OSError as error:
        if error.errno in NO_FILE:
            return
        raise
    with stream:
        while line := stream.readline(LARGEST_LINE):
            try:
                yield kind.parse(line)
            except ValidationError:
                continue
