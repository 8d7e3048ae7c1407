"""The header of a merged CSV: tells whether a file is one, and which columns it has."""

import csv
import os
from dataclasses import dataclass
from pathlib import Path

from vpoc.data.columns import REQUIRED
from vpoc.data.readers.stamps import CANONICAL, is_known
from vpoc.data.readers.text import refuse_utf16
from vpoc.errors import UserError, from_os_error

HEAD_BYTES = 1 << 16


@dataclass(frozen=True)
class Head:
    """The header of a merged CSV.

    `names`: the column names in the order of the file, in lower case.
    `content`: the lines above the first row.
    """

    path: Path
    names: tuple[str, ...]
    content: bytes

    @property
    def lines(self) -> int:
        """Return the number of lines above the first row."""
        return self.content.count(b"\n")


def find_head(path: Path) -> Head | None:
    """Return the header of a merged CSV; None if the file is another kind, or has stamps of another known form.

    UserError when the file cannot be read, is empty or UTF-16, or a column is missing or appears twice.
    """
    # Path.is_dir raises OSError for a path that is too long or may not be looked up.
    if os.path.isdir(path):  # noqa: PTH112
        return None
    start = _start(path)
    names, content = _columns(start)
    if not {"ts", "vix"} <= set(names) or _other_stamps(start[len(content) :], names):
        return None
    if len(set(names)) < len(names):
        raise UserError(f"{path}: a column name appears twice in the header ({', '.join(names)}); remove one")
    if not content.endswith(b"\n"):
        raise UserError(f"{path}: there is a header but no rows; give a file with bars")
    _require_columns(path, names)
    return Head(path, names, content)


def require_head(path: Path) -> Head:
    """Return the header of the merged CSV `path`; UserError when it is no merged CSV, or as from `find_head`."""
    head = find_head(path)
    if head is None:
        start = _start(path)
        if b"\0" in start:
            raise UserError(f"{path}: this is not a text file; give a CSV file")
        try:
            start[: start.rfind(b"\n") + 1].decode("utf-8")
        except UnicodeDecodeError as error:
            line = start.count(b"\n", 0, error.start) + 1
            raise UserError(f"{path}, line {line}: not UTF-8 text; save the file as UTF-8 CSV") from error
        require_merged(path)
        raise AssertionError(path)
    return head


def require_merged(path: Path) -> None:
    """Raise UserError unless the header of `path` is that of a merged CSV."""
    names, _ = _columns(_start(path))
    _require_columns(path, names)


def _start(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            start = stream.read(HEAD_BYTES)
    except OSError as error:
        raise from_os_error(error, path) from error
    if not start.strip():
        raise UserError(f"{path}: the file is empty; give a file with data")
    refuse_utf16(path, start)
    return start


def _other_stamps(rows: bytes, names: tuple[str, ...]) -> bool:
    """Return whether the first row has a stamp in a vendor's form, so that a vendor's reader has to read the file."""
    text = rows.partition(b"\n")[0].decode("utf-8", "replace").replace("\0", "").strip("\r")
    cells = next(csv.reader([text]), []) if "\r" not in text else []
    stamp = cells[names.index("ts")].strip(' "\r') if len(cells) == len(names) else ""
    return bool(stamp) and CANONICAL.fullmatch(stamp) is None and is_known(stamp)


def _columns(start: bytes) -> tuple[tuple[str, ...], bytes]:
    """Return the column names in lower case, and the header with the blank lines above it."""
    blank = len(start) - len(start.lstrip(b"\r\n"))
    header, newline, _ = start[blank:].partition(b"\n")
    names = tuple(name.strip(' "\r').lower() for name in header.decode("utf-8-sig", "replace").split(","))
    return names, start[:blank] + header + newline


def _require_columns(path: Path, names: tuple[str, ...]) -> None:
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        raise UserError(
            f"{path}: not a merged CSV: no column {', '.join(missing)}; there are: {', '.join(names)}; "
            "`vpoc merge` makes one"
        )
