"""The one reader of the merged CSV: turns lines of the file into values, with the reason for each line that is no bar.

Training, `vpoc check` and `vpoc check --fix` all use it. If everything is valid, polars parses the columns as numbers
directly; otherwise they are parsed as text, so that each wrong line can be named.
"""

import io
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from vpoc.arrays import Floats, Ints
from vpoc.data.bars import MAX_TICKS, Bars, made_bars
from vpoc.data.columns import PRICES, STAMP_FORMAT, TICK
from vpoc.data.exchange.calendar import FIRST, LAST
from vpoc.data.merged_head import Head
from vpoc.data.text_table import MAX_VOLUME
from vpoc.errors import from_os_error
from vpoc.files import LONGEST_LINE, changed_while_read, require_lines
from vpoc.kernel import cores

if TYPE_CHECKING:
    import hashlib

BLOCK_BYTES = 1 << 23
COUNTED_AT_A_TIME = 1 << 18
NUMBERS = (*PRICES, "volume", "vix")
TYPES: dict[str, Any] = {
    "ts": pl.String,
    **dict.fromkeys(PRICES, pl.Float64),
    "volume": pl.Int64,
    "vix": pl.Float64,
}
EARLIEST, LATEST = (int(stamp.astype("datetime64[s]").astype(np.int64)) for stamp in (FIRST + 3, LAST + 1))
LATEST -= 3600
"""Seconds since 1970 UTC: stamps from the first on and before the second belong to sessions that the calendar knows."""
UNENDED = "the file does not end with a newline, so that its last line may be cut short"
QUOTED_CELL = r'"[^"]*"'


@dataclass(frozen=True)
class MergedRows:
    """Rows of a part of a file, in file order; arrays are [rows].

    `line`: from 1.
    `ts`: seconds since 1970 UTC.
    `prices`: in points.
    `vix`: NaN where the cell is empty.
    `symbol`: None without such a column.
    `unreadable`: `line` and `reason` of the lines that are no bars.
    """

    line: Ints
    ts: Ints
    prices: dict[str, Floats]
    volume: Ints
    vix: Floats
    symbol: pl.Series | None
    unreadable: pl.DataFrame

    def bars(self, path: Path, symbols: dict[str, int]) -> Bars:
        """Return the rows as Bars; `symbols` numbers the contracts of the file, and gets new ones added."""
        contract = np.zeros(len(self.line), dtype=np.int64)
        if self.symbol is not None and len(contract):
            for symbol in self.symbol.unique(maintain_order=True).to_list():
                symbols.setdefault(symbol, len(symbols))
            contract = self.symbol.replace_strict(symbols, return_dtype=pl.Int64).to_numpy()
        return made_bars(path, self.ts, self.prices, self.volume, self.vix, contract, tuple(symbols))


def read_parts(head: Head, size: int | None = None, digest: "hashlib._Hash | None" = None) -> Iterator[MergedRows]:
    """Yield the rows under the header, about `size` bytes of text at a time (by default BLOCK_BYTES).

    The next parts are read meanwhile, on all available cores. Blank lines at the end of the file are ignored. `digest`
    has the whole file once the generator is asked for a part after the last. UserError when the file cannot be read.
    """
    number = 1 + head.lines
    parts: deque[Future[MergedRows]] = deque()
    pool = ThreadPoolExecutor(cores())
    try:
        for content in _text_parts(head, size or BLOCK_BYTES, digest):
            count = _count(content, b"\n")
            parts.append(pool.submit(read_rows, content, number, count, head))
            number += count
            if len(parts) > cores():
                yield parts.popleft().result()
        while parts:
            yield parts.popleft().result()
    finally:
        _leave(pool)


def _leave(pool: ThreadPoolExecutor) -> None:
    """Shut down the threads of a generator without waiting for them.

    The garbage collector may close an unfinished generator in any thread at any time.
    """
    pool.shutdown(wait=False, cancel_futures=True)


def _count(content: bytes, mark: bytes) -> int:
    """Return `content.count(mark)`, which itself is slow for a frequent byte."""
    array, step = np.frombuffer(content, np.uint8), COUNTED_AT_A_TIME
    return sum(int(np.count_nonzero(array[at : at + step] == mark[0])) for at in range(0, len(array), step))


def _text_parts(head: Head, size: int, digest: "hashlib._Hash | None") -> Iterator[bytes]:
    """Yield the lines under the header in parts of about `size` bytes.

    Blank lines at the end of the file are ignored; an unterminated last line is a part of its own.
    """
    left = b""
    hashed: Future[None] | None = None
    pool = ThreadPoolExecutor(1)

    def taken(block: bytes) -> None:
        nonlocal hashed
        if digest is not None:
            if hashed is not None:
                hashed.result()
            hashed = pool.submit(digest.update, block)

    try:
        with head.path.open("rb") as stream:
            # The header decides what the rows mean.
            if (above := stream.read(len(head.content))) != head.content:
                raise changed_while_read(head.path)
            taken(above)
            while block := stream.read(size) + stream.readline(LONGEST_LINE):
                taken(block)
                part = left + block
                end = part.rfind(b"\n") + 1
                if end and not part[max(end - 2, 0) : end].strip():
                    # These blank lines may be the end of the file.
                    filled = len(part[:end].rstrip())
                    end = part.find(b"\n", filled) + 1 if filled else 0
                if end:
                    yield part[:end]
                left = part[end:]
                require_lines(head.path, left)
        if hashed is not None:
            hashed.result()
    except OSError as error:
        raise from_os_error(error, head.path) from error
    finally:
        _leave(pool)
    if left.strip():
        cut = left.rfind(b"\n") + 1
        if cut:
            yield left[:cut]
        yield left[cut:]


def read_rows(content: bytes, first_line: int, count: int, head: Head) -> MergedRows:
    """Return the rows in `content`: `count` lines of a file, from line `first_line` on."""
    if not content.endswith(b"\n"):
        none = pl.DataFrame(schema={"line": pl.Int64, **dict.fromkeys(head.names, pl.String)})
        return _values(none, head, _reasons([first_line], [UNENDED]))
    plain = content.isascii() and not any(mark in content for mark in (b"\0", b'"'))
    if plain and _count(content, b",") == (len(head.names) - 1) * count:
        rows = _sound_rows(content, count, first_line, head)
        if rows is not None:
            return rows
        frame = _text_columns(content, head)
        if frame is not None and frame.height == count:
            lines = pl.int_range(first_line, first_line + count, dtype=pl.Int64, eager=True)
            return _values(frame.with_columns(line=lines), head, _reasons([], []))
    return _line_by_line(content, first_line, head)


def _sound_rows(content: bytes, count: int, first_line: int, head: Head) -> MergedRows | None:
    """Return the rows if every cell is valid, parsed directly as numbers; None if one is not."""
    try:
        schema = {name: TYPES.get(name, pl.String) for name in head.names}
        frame = pl.read_csv(io.BytesIO(content), has_header=False, schema=schema)
        stamps = frame["ts"].str.to_datetime(STAMP_FORMAT, time_unit="us", cache=False).dt.epoch("s")
    except pl.exceptions.PolarsError:
        return None
    if frame.height != count or any(frame[name].null_count() for name in (*PRICES, "volume")) or stamps.null_count():
        return None
    ts, volume, vix = stamps.to_numpy(), frame["volume"].to_numpy(), frame["vix"]
    prices = {name: frame[name].to_numpy() for name in PRICES}
    if not (ts.min() >= EARLIEST and ts.max() < LATEST and volume.min() >= 0 and volume.max() <= MAX_VOLUME):
        return None
    # A comparison with NaN is false, so NaN fails this check.
    if not all(abs(bound) <= MAX_TICKS * TICK for p in prices.values() for bound in (p.min(), p.max())):
        return None
    if not vix.is_finite().fill_null(value=True).all():
        return None
    line = np.arange(first_line, first_line + count)
    symbol = frame["symbol"].str.strip_chars().fill_null("") if "symbol" in head.names else None
    return MergedRows(line, ts, prices, volume, vix.fill_null(np.nan).to_numpy(), symbol, _reasons([], []))


def _line_by_line(content: bytes, first_line: int, head: Head) -> MergedRows:
    text = pl.Series(content.decode("utf-8", "replace").split("\n")[:-1], dtype=pl.String).str.strip_suffix("\r")
    bare = pl.col("text").str.replace_all(QUOTED_CELL, "")
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
    frame = _text_columns(("\n".join(good["text"]) + "\n").encode(), head) if good.height else None
    if frame is None or frame.height != good.height:
        frame = pl.DataFrame(schema=dict.fromkeys(head.names, pl.String))
        judged = judged.with_columns(pl.col("reason").fill_null("not a line of a CSV file"))
        good = good.clear()
    return _values(
        frame.with_columns(line=good["line"]),
        head,
        judged.filter(pl.col("reason").is_not_null()).select("line", "reason"),
    )


def _text_columns(content: bytes, head: Head) -> pl.DataFrame | None:
    try:
        return pl.read_csv(io.BytesIO(content), has_header=False, schema=dict.fromkeys(head.names, pl.String))
    except pl.exceptions.PolarsError:
        return None


def _values(text: pl.DataFrame, head: Head, no_rows: pl.DataFrame) -> MergedRows:
    rows = _parsed(text)
    if rows["wrong"].any():
        # Blanks around a value are allowed.
        text = text.with_columns(pl.col(*head.names).str.strip_chars().fill_null(""))
        rows = _parsed(text)
    wrong = rows["wrong"]
    unreadable = no_rows
    if wrong.any():
        found = rows.filter(wrong).select("line", reason=pl.coalesce(pl.when(x).then(why) for x, why in _faults()))
        unreadable = pl.concat([no_rows, found]).sort("line")
        rows = rows.filter(~wrong)
    return MergedRows(
        line=rows["line"].to_numpy(),
        ts=rows["ts"].to_numpy(),
        prices={name: rows[name].to_numpy() for name in PRICES},
        volume=rows["volume"].cast(pl.Int64).to_numpy(),
        vix=rows["vix"].fill_null(np.nan).to_numpy(),
        symbol=rows["symbol"].str.strip_chars().fill_null("") if "symbol" in head.names else None,
        unreadable=unreadable,
    )


def _parsed(text: pl.DataFrame) -> pl.DataFrame:
    """Stamps and numbers of the cells beside their texts, which are called `shown_...`, and which rows are `wrong`."""
    parsed = text.with_columns(pl.col("ts", *NUMBERS).name.prefix("shown_")).with_columns(
        ts=pl.col("ts").str.to_datetime(STAMP_FORMAT, time_unit="us", strict=False).dt.epoch("s"),
        **{name: pl.col(name).cast(pl.Float64, strict=False) for name in NUMBERS},
    )
    return parsed.with_columns(wrong=pl.any_horizontal(wrong for wrong, _ in _faults()))


def _faults() -> list[tuple[pl.Expr, pl.Expr]]:
    """Pairs of whether a row has a value that cannot be, and why in words; of several the first is reported."""
    shown = {name: pl.col(f"shown_{name}").fill_null("") for name in ("ts", *NUMBERS)}
    ts, volume = pl.col("ts"), pl.col("volume")
    first, last = FIRST.item().year, LAST.item().year
    faults = [
        (ts.is_null(), pl.format("ts is '{}', not like 2018-01-02T14:30:00Z", shown["ts"])),
        ((ts < EARLIEST) | (ts >= LATEST), pl.format(f"ts is '{{}}', not in the years {first} to {last}", shown["ts"])),
    ]
    for name in NUMBERS:
        empty, number = shown[name] == "", pl.col(name).is_finite().fill_null(value=False)
        faults += [(empty, pl.lit(f"{name} is an empty cell, not a number"))] if name != "vix" else []
        faults.append((~empty & ~number, pl.format(f"{name} is '{{}}', not a number", shown[name])))
    faults += [(pl.col(name).abs() > MAX_TICKS * TICK, pl.lit(f"{name} is beyond any price")) for name in PRICES]
    return [
        *faults,
        (volume < 0, pl.format("volume {} is negative", shown["volume"])),
        (volume != volume.round(), pl.format("volume {} is not a whole number", shown["volume"])),
        (volume > MAX_VOLUME, pl.format("volume {} is more than any market trades", shown["volume"])),
    ]


def _reasons(lines: list[int], reasons: list[str]) -> pl.DataFrame:
    return pl.DataFrame({"line": lines, "reason": reasons}, schema={"line": pl.Int64, "reason": pl.String})
