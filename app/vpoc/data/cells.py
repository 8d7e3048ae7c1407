"""The lines of a merged CSV as values; a line that is no bar is told with its reason, and the rest is read."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from vpoc.arrays import Floats, Ints
from vpoc.data.bars import MAX_TICKS
from vpoc.data.calendar import FIRST, LAST
from vpoc.data.columns import PRICES, REQUIRED, STAMP_FORMAT, TICK
from vpoc.data.text_table import MAX_VOLUME, Table, require_columns
from vpoc.errors import UserError, from_os_error

BLOCK_BYTES = 1 << 25
HEAD_BYTES = 1 << 16
NUMBERS = (*PRICES, "volume", "vix")
EARLIEST, LATEST = (int(stamp.astype("datetime64[s]").astype(np.int64)) for stamp in (FIRST + 3, LAST + 1))
LATEST -= 3600
"""Stamps, seconds since 1970 UTC, from the first on and before the second are of sessions that the calendar knows."""
UNENDED = "the file does not end with a newline, so that its last line may be cut short"
QUOTED = r'"[^"]*"'


@dataclass(frozen=True)
class Head:
    """`names`: of the columns, as in the file but in lower case. `lines`: how many stand above the first row."""

    path: Path
    names: tuple[str, ...]
    lines: int


@dataclass(frozen=True)
class Readable:
    """Rows of a part of a file, in file order; arrays are [rows].

    `line`: from 1. `ts`: seconds since 1970 UTC. Prices in points. `vix`: NaN where the cell is empty. `symbol`: None
    without such a column. `unreadable`: `line` and `reason` of the lines that are no bars.
    """

    line: Ints
    ts: Ints
    prices: dict[str, Floats]
    volume: Ints
    vix: Floats
    symbol: pl.Series | None
    unreadable: pl.DataFrame


def read_head(path: Path) -> Head | None:
    """The header of a merged CSV, None when the file is something else.

    UserError when the file cannot be read or is empty, and on columns that are missing or twice there.
    """
    try:
        with path.open("rb") as stream:
            start = stream.read(HEAD_BYTES)
    except IsADirectoryError:
        return None
    except OSError as error:
        raise from_os_error(error, path) from error
    if not start:
        raise UserError(f"{path}: the file is empty; give a file with data")
    blank = len(start) - len(start.lstrip(b"\r\n"))
    header, newline, _ = start[blank:].partition(b"\n")
    names = tuple(name.strip(' "\r').lower() for name in header.decode("utf-8-sig", "replace").split(","))
    if not {"ts", "vix"} <= set(names):
        return None
    if len(set(names)) < len(names):
        raise UserError(f"{path}: a column name appears twice in the header ({', '.join(names)}); remove one")
    if not newline:
        raise UserError(f"{path}: there is a header but no rows; give a file with bars")
    require_columns(Table(path, "", pl.DataFrame(schema=names), newline_at_end=True), REQUIRED)
    return Head(path, names, start.count(b"\n", 0, blank) + 1)


def text_parts(head: Head) -> Iterator[tuple[bytes, int]]:
    """The lines under the header in parts, and the number of the first line of each part.

    Blank lines at the end of the file are left out; a last line that is not ended is a part of its own.
    """
    number, left = 1 + head.lines, b""
    try:
        with head.path.open("rb") as stream:
            for _ in range(head.lines):
                stream.readline()
            while block := stream.read(BLOCK_BYTES):
                part = left + block
                end = part.rfind(b"\n") + 1
                if end and not part[max(end - 2, 0) : end].strip():
                    # The blank lines may be the end of the file.
                    filled = len(part[:end].rstrip())
                    end = part.find(b"\n", filled) + 1 if filled else 0
                if end:
                    yield part[:end], number
                    number += part.count(b"\n", 0, end)
                left = part[end:]
    except OSError as error:
        raise from_os_error(error, head.path) from error
    if left.strip():
        cut = left.rfind(b"\n") + 1
        if cut:
            yield left[:cut], number
        yield left[cut:], number + left.count(b"\n")


def readable_rows(content: bytes, first_line: int, head: Head) -> Readable:
    """The rows in `content`, lines of a file that begin with line `first_line`."""
    if not content.endswith(b"\n"):
        none = pl.DataFrame(schema={"line": pl.Int64, **dict.fromkeys(head.names, pl.String)})
        return _values(none, head, _reasons([first_line], [UNENDED]))
    plain = content.isascii() and not any(mark in content for mark in (b"\0", b'"'))
    if plain and content.count(b",") == (len(head.names) - 1) * content.count(b"\n"):
        frame = _table(content, head)
        if frame is not None and frame.height == content.count(b"\n"):
            lines = pl.int_range(first_line, first_line + frame.height, dtype=pl.Int64, eager=True)
            return _values(frame.with_columns(line=lines), head, _reasons([], []))
    return _line_by_line(content, first_line, head)


def _line_by_line(content: bytes, first_line: int, head: Head) -> Readable:
    text = pl.Series(content.decode("utf-8", "replace").split("\n")[:-1], dtype=pl.String).str.strip_suffix("\r")
    bare = pl.col("text").str.replace_all(QUOTED, "")
    cells = bare.str.count_matches(",", literal=True) + 1
    reason = (
        pl.when(pl.col("text").str.contains("\ufffd", literal=True))
        .then(pl.lit("the line is not UTF-8 text"))
        .when(pl.col("text").str.contains("\0", literal=True))
        .then(pl.lit("a NUL byte, so that this is not text"))
        .when(pl.col("text").str.strip_chars() == "")
        .then(pl.lit("the line is blank"))
        .when(bare.str.contains('"', literal=True))
        .then(pl.lit("a quote that is not closed"))
        .when(cells != len(head.names))
        .then(pl.format("{} cells, but the header has {}", cells, pl.lit(len(head.names))))
    )
    lines = pl.int_range(first_line, first_line + len(text), dtype=pl.Int64, eager=True)
    judged = pl.DataFrame({"line": lines, "text": text}).with_columns(reason=reason)
    good = judged.filter(pl.col("reason").is_null())
    frame = _table(("\n".join(good["text"]) + "\n").encode(), head) if good.height else None
    if frame is None or frame.height != good.height:
        frame = pl.DataFrame(schema=dict.fromkeys(head.names, pl.String))
        judged = judged.with_columns(pl.col("reason").fill_null("not a line of a CSV file"))
        good = good.clear()
    return _values(
        frame.with_columns(line=good["line"]),
        head,
        judged.filter(pl.col("reason").is_not_null()).select("line", "reason"),
    )


def _table(content: bytes, head: Head) -> pl.DataFrame | None:
    try:
        return pl.read_csv(io.BytesIO(content), has_header=False, schema=dict.fromkeys(head.names, pl.String))
    except pl.exceptions.PolarsError:
        return None


def _values(text: pl.DataFrame, head: Head, no_rows: pl.DataFrame) -> Readable:
    parsed, bad = _parsed(text)
    if bad.any():
        # Blanks around a value are no fault.
        text = text.with_columns(pl.col(*head.names).str.strip_chars().fill_null(""))
        parsed, bad = _parsed(text)
    unreadable = no_rows
    if bad.any():
        both = pl.concat([text.filter(bad).rename(_shown), parsed.filter(bad)], how="horizontal")
        found = both.select(pl.col("shown_line").alias("line"), reason=_reason())
        unreadable = pl.concat([no_rows, found]).sort("line")
        text, parsed = text.filter(~bad), parsed.filter(~bad)
    return Readable(
        line=text["line"].to_numpy(),
        ts=parsed["ts"].to_numpy(),
        prices={name: parsed[name].to_numpy() for name in PRICES},
        volume=parsed["volume"].cast(pl.Int64).to_numpy(),
        vix=parsed["vix"].fill_null(np.nan).to_numpy(),
        symbol=text["symbol"].str.strip_chars().fill_null("") if "symbol" in head.names else None,
        unreadable=unreadable,
    )


def _parsed(text: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series]:
    """Stamps and numbers of the cells, and which rows have one that cannot be."""
    parsed = text.select(
        ts=pl.col("ts").str.to_datetime(STAMP_FORMAT, time_unit="us", strict=False).dt.epoch("s"),
        **{name: pl.col(name).cast(pl.Float64, strict=False) for name in NUMBERS},
    )
    return parsed, parsed.select(_wrong(text)).to_series()


def _wrong(text: pl.DataFrame) -> pl.Expr:
    """Whether each row of the parsed columns has a value that cannot be."""
    wrong = [~_is_number(name) for name in (*PRICES, "volume")]
    wrong += [pl.col(name).abs() > MAX_TICKS * TICK for name in PRICES]
    wrong += [(pl.col("volume") < 0) | (pl.col("volume") != pl.col("volume").round()) | (pl.col("volume") > MAX_VOLUME)]
    wrong += [~_is_number("vix") & pl.lit((text["vix"] != "").fill_null(value=False))]
    return pl.any_horizontal(_stamp_wrong(), *wrong)


def _reason() -> pl.Expr:
    """What the first wrong value of a row is, in words; the texts of the cells are in columns `shown_...`."""
    shown = {name: pl.col(_shown(name)) for name in ("ts", *NUMBERS)}
    stamp = pl.format("ts is '{}', not like 2018-01-02T14:30:00Z", shown["ts"])
    first, last = FIRST.item().year, LAST.item().year
    years = pl.format(f"ts is '{{}}', not in the years {first} to {last}", shown["ts"])
    chain = pl.when(pl.col("ts").is_null()).then(stamp).when(_stamp_wrong()).then(years)
    for name in NUMBERS:
        chain = chain.when((shown[name] == "") & pl.lit(name != "vix")).then(
            pl.lit(f"{name} is an empty cell, not a number")
        )
        chain = chain.when(~_is_number(name) & (shown[name] != "")).then(
            pl.format("{} is '{}', not a number", pl.lit(name), shown[name])
        )
    for name in PRICES:
        chain = chain.when(pl.col(name).abs() > MAX_TICKS * TICK).then(pl.lit(f"{name} is beyond any price"))
    return (
        chain.when(pl.col("volume") < 0)
        .then(pl.format("volume {} is negative", shown["volume"]))
        .when(pl.col("volume") != pl.col("volume").round())
        .then(pl.format("volume {} is not a whole number", shown["volume"]))
        .otherwise(pl.format("volume {} is more than any market trades", shown["volume"]))
    )


def _stamp_wrong() -> pl.Expr:
    return pl.col("ts").is_null() | (pl.col("ts") < EARLIEST) | (pl.col("ts") >= LATEST)


def _is_number(name: str) -> pl.Expr:
    return pl.col(name).is_finite().fill_null(value=False)


def _shown(name: str) -> str:
    return f"shown_{name}"


def _reasons(lines: list[int], reasons: list[str]) -> pl.DataFrame:
    return pl.DataFrame({"line": lines, "reason": reasons}, schema={"line": pl.Int64, "reason": pl.String})
