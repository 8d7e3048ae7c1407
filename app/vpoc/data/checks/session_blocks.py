"""Reads the rows of a file in blocks of whole sessions; a wrong row does not stop the others."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise

import numpy as np
import polars as pl

from vpoc.arrays import Ints
from vpoc.data.bars import MAX_TICKS, Bars
from vpoc.data.columns import PRICES, TICK
from vpoc.data.exchange.sessions import session_dates
from vpoc.data.merged_csv import EARLIEST, LATEST, read_parts
from vpoc.data.merged_head import Head
from vpoc.data.readers.vendor import VendorBars

BLOCK_ROWS = 1 << 20


@dataclass(frozen=True)
class Block:
    """Bars of whole sessions, sorted by time; bars with the same stamp are in the order of the file.

    `line` [rows]: the line of each bar in the file.
    `unreadable`: `line` and `reason` of rows that are no bars.
    `late`: lines whose stamp is before that of the line above.
    `last`: whether no block follows.
    """

    bars: Bars
    line: Ints
    unreadable: pl.DataFrame
    late: Ints
    last: bool


def merged_blocks(head: Head) -> Iterator[Block]:
    """Yield the blocks of a merged CSV of any size, using a few hundred MB of memory."""
    symbols: dict[str, int] = {}
    left: Block | None = None
    above = EARLIEST
    for found in read_parts(head):
        bars = found.bars(head.path, symbols)
        previous = np.concatenate([[above], bars.ts])
        above = int(previous[-1])
        fresh = Block(bars, found.line, found.unreadable, found.line[bars.ts < previous[:-1]], last=False)
        whole, left = _parted(fresh if left is None else _joined(left, fresh))
        if whole is not None:
            yield whole
    if left is not None:
        yield replace(left, last=True)


def joined(blocks: Sequence[Block]) -> Block:
    """Return all rows of `blocks`, at least one, as one sorted block."""
    whole = reduce(_joined, blocks)
    bars, line = _sorted(whole.bars, whole.line)
    return replace(whole, bars=bars, line=line, last=True)


def vendor_blocks(vendor: VendorBars) -> Iterator[Block]:
    """Yield the blocks of a vendor's file with one contract at a time."""
    frame = vendor.frame
    reason = _impossible()
    unreadable = frame.select("line", reason=reason).filter(pl.col("reason").is_not_null())
    if unreadable.height:
        frame = frame.filter(reason.is_null())
    ts = frame["ts"].to_numpy()
    late = frame["line"].to_numpy()[1:][np.diff(ts) < 0]
    if len(late):
        frame = frame.sort("ts", maintain_order=True)
        ts = frame["ts"].to_numpy()
    borders = _borders(ts)
    for place, (start, stop) in enumerate(pairwise(borders)):
        part = frame[start:stop]
        yield Block(
            vendor.bars(part, part["vix"].to_numpy() if "vix" in part.columns else np.full(part.height, np.nan)),
            part["line"].to_numpy(),
            unreadable if place == 0 else unreadable.clear(),
            late if place == 0 else late[:0],
            last=stop == len(ts),
        )


def _parted(block: Block) -> tuple[Block | None, Block]:
    """Return `block` without its last session, and that session, because it may continue in the next block.

    Unreadable rows go with the first part.
    """
    bars, line = block.bars, block.line
    if not len(bars):
        return None, block
    bars, line = _sorted(bars, line)
    date = session_dates(bars.ts)
    cut = int(np.searchsorted(date, date[-1]))
    if not cut:
        return None, replace(block, bars=bars, line=line)
    left = Block(bars.take(slice(cut, None)), line[cut:], block.unreadable.clear(), block.late[:0], last=False)
    return replace(block, bars=bars.take(slice(cut)), line=line[:cut]), left


def _joined(before: Block, after: Block) -> Block:
    return Block(
        Bars.concatenate((before.bars, after.bars)),
        np.concatenate([before.line, after.line]),
        pl.concat([before.unreadable, after.unreadable]),
        np.concatenate([before.late, after.late]),
        last=False,
    )


def _sorted(bars: Bars, line: Ints) -> tuple[Bars, Ints]:
    if not (np.diff(bars.ts) < 0).any():
        return bars, line
    order = np.lexsort((line, bars.ts))
    return bars.take(order), line[order]


def _borders(ts: Ints) -> list[int]:
    """Return the row numbers, from 0 to the end, between which there are whole sessions.

    Each part has about BLOCK_ROWS rows, or is one longer session.
    """
    borders = [0]
    date = session_dates(ts) if len(ts) else ts
    while len(ts) - borders[-1] > BLOCK_ROWS:
        day = date[borders[-1] + BLOCK_ROWS]
        cut = int(np.searchsorted(date, day))
        borders.append(cut if cut > borders[-1] else int(np.searchsorted(date, day, side="right")))
    return borders if borders[-1] == len(ts) > 0 else [*borders, len(ts)]


def _impossible() -> pl.Expr:
    """Return why a row of a vendor's file is no bar, in words; null if it may be one."""
    beyond = pl.any_horizontal(pl.col(PRICES).abs() > MAX_TICKS * TICK)
    outside = (pl.col("ts") < EARLIEST) | (pl.col("ts") >= LATEST)
    return (
        pl.when(beyond)
        .then(pl.lit("a price is beyond any price"))
        .when(outside)
        .then(pl.lit("the stamp is not in the years of the trading calendar"))
    )
