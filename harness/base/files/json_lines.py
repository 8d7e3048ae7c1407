"""Small files of JSON, one value a line, to which several processes append."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from harness.base.files.json_files import File
from harness.base.files.locks import SHORT_LOCK_SECONDS, locked
from harness.base.files.storage import cannot_be_written, make_folder_durably, open_regular, sync_folder

# Longest line, in bytes; the rest of a longer one is read as further lines, which are damaged.
LARGEST_LINE = 1 << 20
# Most bytes that are read, at the end of a file: the health logs of twenty thousand runs have as many.
LARGEST_END = 32 << 20

# Errors for a file that does not exist, is a link, or is not a regular file.
NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO)

OfLine = TypeVar("OfLine", bound=File)


def append_line(file: Path, value: File, *, cuts: bool = False) -> None:
    """Append a line, durably. Several processes may do so at once, and one may have died in the middle of a line.

    `cuts`: whether to remove such an unfinished line, for readers that do not skip damaged lines.

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


def read_json_lines(file: Path, kind: type[OfLine], most: int = LARGEST_END) -> Iterator[OfLine]:
    """Yield the values of a file in the order they were written; damaged lines are skipped.

    Only the last `most` bytes are read, because others who share the folder may write any amount. Nothing is yielded if
    there is not a regular file of that name.

    Raises:
        OSError: when the file exists and cannot be read.
    """
    try:
        stream = open_regular(file)
    except OSError as error:
        if error.errno in NO_FILE:
            return
        raise
    with stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - most))
        # The file may also grow faster than it is read.
        while line := stream.readline(min(LARGEST_LINE, most)):
            most -= len(line)
            try:
                yield kind.parse(line)
            except ValidationError:
                continue
