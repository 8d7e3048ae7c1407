"""Reads a delimited text file: checks it as a whole in one pass, then reads only the required columns."""

import csv
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import polars as pl

from vpoc.arrays import Floats, Ints
from vpoc.data.columns import PRICES
from vpoc.data.text_table import MAX_VOLUME, Table, numbers, volumes, without_separators
from vpoc.errors import UserError, from_os_error
from vpoc.files import line_parts, require_unchanged, state_of_file

DELIMITERS = (",", ";", "\t")
CHUNK = 1 << 23
HEAD = 1 << 16
UTF16 = (b"\xff\xfe", b"\xfe\xff")
QUOTED = re.compile(rb'"[^"\r\n]*"')
# The first line of a CSV that gives the delimiter to Excel.
FOR_EXCEL = re.compile(r'\s*"?sep=.?"?\s*', re.IGNORECASE)


@dataclass(frozen=True)
class TextFile:
    """A text file with one delimiter.

    `head`: its first lines, as cells.
    `levels`: the number of lines of the header, 0 without one.
    `header_lines`: the number of lines before the first row, including blank ones.
    `width`: the number of cells in a line.
    `rows`: the number of whole lines after the header; blank ones at the end of the file do not count.
    `unended`: whether the file ends with an unterminated line, which may be cut short and is not counted as a row.
    `state`: of the file, before it was read.
    """

    path: Path
    sha256: str
    delimiter: str
    head: list[list[str]]
    levels: int
    header_lines: int
    width: int
    rows: int
    unended: bool
    state: tuple[int, ...]


@dataclass(frozen=True)
class _Whole:
    """The findings of one pass over a file. `lines`: terminated ones. `blank`: the number of blank ones at the end."""

    sha256: str
    lines: int
    blank: int
    delimiters: int
    unended: bytes


def open_text(path: Path) -> TextFile:
    """Examine a text file as a whole.

    UserError, with the line if there is one, when the file cannot be read, is empty, is not UTF-8 text, or has no
    delimiter, an unclosed quote, or lines with different numbers of cells.
    """
    state = state_of_file(path)
    head = _head(path)
    lines = head.decode("utf-8-sig", errors="replace").replace("\r\n", "\n").split("\n")
    first = next((place for place, line in enumerate(lines) if line.strip()), None)
    if first is None:
        raise UserError(f"{path}: the file is empty; give a file with bars")
    if FOR_EXCEL.fullmatch(lines[first]):
        number = first + 1
        raise UserError(f"{path}, line {number}: it is for Excel, and no header; remove it (`sed -i {number}d FILE`)")
    delimiter = max(DELIMITERS, key=lambda mark: len(_cells(lines[first], mark)))
    whole = _pass(path, delimiter.encode())
    rows = [_cells(line, delimiter) for line in lines[first : first + 4]]
    width, levels = len(rows[0]), _levels(rows)
    if width <= 1:
        raise UserError(f"{path}, line {first + 1}: one cell only; give a file of columns, parted by comma, ; or tab")
    if whole.delimiters != (width - 1) * (whole.lines - first - whole.blank):
        _blame_line(path, delimiter, width)
    return TextFile(
        path=path,
        sha256=whole.sha256,
        delimiter=delimiter,
        head=rows,
        levels=levels,
        header_lines=first + levels,
        width=width,
        rows=whole.lines - whole.blank - first - levels,
        unended=bool(whole.unended.strip()),
        state=state,
    )


def header_of(path: Path) -> list[str]:
    """Return the cells of the first line that is not blank; UserError when the file is no text."""
    lines = _head(path).decode("utf-8-sig", errors="replace").splitlines()
    first = next((line for line in lines if line.strip()), "")
    return max((_cells(first, mark) for mark in DELIMITERS), key=len)


def is_number(cell: str) -> bool:
    """Return whether `cell` is written as a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def read_text(text: TextFile, wanted: Mapping[str, int]) -> Table:
    """Return the columns `wanted` (name to use, position in the file from 0) as text."""
    return _table(text, _read(text, wanted, ()))


def read_values(text: TextFile, wanted: Mapping[str, int]) -> tuple[dict[str, Floats], Ints, Table]:
    """Return the prices [rows] by name, volume [rows], and the other columns `wanted` as text.

    UserError, with the line, for a price that is not finite or a volume that is no whole number from 0 on.
    """
    numeric = (*PRICES, "volume")
    try:
        frame = _read(text, wanted, numeric)
    except pl.exceptions.PolarsError:
        frame = None
    if frame is not None and _clean(frame):
        prices = {name: frame[name].to_numpy() for name in PRICES}
        volume = frame["volume"].cast(pl.Int64).to_numpy()
        return prices, volume, _table(text, frame)
    # Parsed as text, each wrong cell can be named in the message; spaces around numbers are allowed here, too.
    table = without_separators(read_text(text, wanted))
    return {name: numbers(table, name) for name in PRICES}, volumes(table), table


def _table(text: TextFile, frame: pl.DataFrame) -> Table:
    return Table(text.path, frame, header_lines=text.header_lines)


def _clean(frame: pl.DataFrame) -> bool:
    for name in (*PRICES, "volume"):
        column = frame[name]
        if column.null_count() or not column.is_finite().all():
            return False
    volume = frame["volume"]
    return bool(((volume >= 0) & (volume <= MAX_VOLUME) & (volume == volume.round())).all())


def _read(text: TextFile, wanted: Mapping[str, int], numeric: tuple[str, ...]) -> pl.DataFrame:
    if text.rows <= 0:
        raise UserError(f"{text.path}: there is a header but no rows; give a file with bars")
    name_at = {place: name for name, place in wanted.items()}
    schema = {f"{place}": pl.Float64 if name_at.get(place) in numeric else pl.String for place in range(text.width)}
    try:
        frame = pl.read_csv(
            text.path,
            has_header=False,
            separator=text.delimiter,
            skip_lines=text.header_lines,
            n_rows=text.rows,
            schema=schema,
            columns=sorted(name_at),
            glob=False,
        )
    except pl.exceptions.PolarsError:
        if numeric:
            raise
        _blame_line(text.path, text.delimiter, text.width)
    except OSError as error:
        raise from_os_error(error, text.path) from error
    require_unchanged(text.path, text.state)
    if frame.height != text.rows:
        raise UserError(f"{text.path}: a cell goes over several lines; export it again without line breaks in cells")
    return frame.rename({f"{place}": name for place, name in name_at.items()})


def refuse_utf16(path: Path, head: bytes) -> None:
    """Raise UserError when the file at `path`, which begins with `head`, has a byte order mark of UTF-16."""
    if head.startswith(UTF16):
        raise UserError(f"{path}: this is UTF-16 text; save the file as UTF-8 CSV")


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
    except OSError as error:
        raise from_os_error(error, path) from error
    if not head:
        raise UserError(f"{path}: the file is empty; give a file with bars")
    refuse_utf16(path, head)
    if b"\0" in head:
        raise UserError(f"{path}: this is not a text file of bars; give a CSV file")
    if b"\n" not in head and b"\r" in head:
        raise UserError(f"{path}: the lines end with a carriage return alone; save the file with line feeds")
    return head


def _levels(rows: list[list[str]]) -> int:
    """Return the number of header lines of `rows`: 0 if the first is a row of bars, else 1 or 3.

    The header of several levels that pandas writes has 3.
    """
    if _is_row(rows[0]):
        return 0
    firsts = [row[0].strip().lower() if row else "" for row in rows[:3]]
    return 3 if firsts[:2] == ["price", "ticker"] and firsts[2:] in (["datetime"], ["date"]) else 1


def _is_row(cells: list[str]) -> bool:
    return sum(is_number(cell) for cell in cells) >= 4


def _cells(line: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        # A carriage return inside a line, so it is no line of bars.
        return [line]


def _pass(path: Path, delimiter: bytes) -> _Whole:
    digest = hashlib.sha256()
    lines = blank = delimiters = 0
    unended = b""
    for chunk in line_parts(path, CHUNK):
        digest.update(chunk)
        _require_utf8(path, chunk, lines)
        whole, unended = (chunk, b"") if chunk.endswith(b"\n") else (b"", chunk)
        lines += whole.count(b"\n")
        plain = QUOTED.sub(b"", whole) if b'"' in whole else whole
        if b'"' in plain:
            before = lines - whole.count(b"\n")
            row = next(n for n, line in enumerate(whole.split(b"\n")) if b'"' in QUOTED.sub(b"", line))
            raise UserError(f"{path}, line {before + row + 1}: a quote that is not closed; correct the line")
        delimiters += plain.count(delimiter)
        if whole:
            end = whole.rstrip()
            tail = whole[len(end) :].count(b"\n")
            blank = blank + tail if not end else tail - 1
            # Blanks at the end of a line of cells belong to the line, because a tab may be the delimiter.
    return _Whole(digest.hexdigest(), lines, blank, delimiters, unended)


def _require_utf8(path: Path, chunk: bytes, lines: int) -> None:
    if b"\0" in chunk:
        line = lines + chunk.count(b"\n", 0, chunk.index(b"\0")) + 1
        raise UserError(f"{path}, line {line}: a NUL byte, so this is not a text file; copy or export it again")
    if chunk.isascii():
        return
    try:
        chunk.decode("utf-8")
    except UnicodeDecodeError as error:
        line = lines + chunk.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}, line {line}: not UTF-8 text; save the file as UTF-8 CSV") from error


def _blame_line(path: Path, delimiter: str, width: int) -> NoReturn:
    """Raise UserError that names the first line whose number of cells differs from the first line's."""
    number, begun = 0, False
    for chunk in line_parts(path, CHUNK):
        for line in chunk.split(b"\n")[: chunk.count(b"\n")]:
            number += 1
            cells = QUOTED.sub(b"", line).count(delimiter.encode()) + 1
            begun = begun or bool(line.strip())
            if begun and cells != width:
                raise UserError(
                    f"{path}, line {number}: {cells} cells, but the first line has {width}; correct or remove the line"
                )
    raise UserError(f"{path}: not a well-formed CSV file; export it again")
