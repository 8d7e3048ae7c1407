"""Bars in memory, in integer ticks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vpoc.arrays import Flags, Floats, Ints
from vpoc.data.columns import PRICES, TICK

DAY_SECONDS = 86_400
MAX_TICKS = 2**31
OFF_GRID_TICKS = 1e-6
"""Distance in ticks from the grid above which a price is off the grid."""


@dataclass(frozen=True)
class Bars:
    """Bars in file order; every array is [rows].

    `ts`: start of the bar, seconds since 1970 UTC.
    `open` .. `close`: ticks of 0.25 points.
    `volume`: contracts.
    `vix`: points, NaN where none was published yet.
    `off_grid`: whether a price of the bar was no multiple of the tick.
    `contract`: index into `symbols`, which is empty when the file names none.
    `bar_seconds`: the most common step between bars, 0 for single trades.
    `smaller_kept`: a line for each session in which the kept contract traded less than another one in the file.
    """

    path: Path
    sha256: str
    ts: Ints
    open: Ints
    high: Ints
    low: Ints
    close: Ints
    volume: Ints
    vix: Floats
    off_grid: Flags
    contract: Ints
    symbols: tuple[str, ...]
    bar_seconds: int
    rows_in_file: int
    smaller_kept: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ts)

    def take(self, rows: Flags | Ints | slice) -> "Bars":
        """Return the bars selected by `rows`."""
        return replace(self, **{name: getattr(self, name)[rows] for name in COLUMNS})

    @staticmethod
    def concatenate(parts: "Sequence[Bars]") -> "Bars":
        """Return the bars of `parts`, in their order.

        The step is that of the first part, other facts are those of the last.
        """
        columns: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS}
        return replace(parts[-1], **columns, bar_seconds=parts[0].bar_seconds)


COLUMNS = ("ts", *PRICES, "volume", "vix", "off_grid", "contract")
"""The names of the arrays of Bars."""


def to_ticks(prices: Floats) -> tuple[Ints, Flags]:
    """Convert `prices` [rows], finite and below 2^31 ticks, to ticks.

    Also flag those that are no multiple of a tick.
    """
    scaled = prices / TICK
    rounded = np.rint(scaled)
    return rounded.astype(np.int64), np.abs(scaled - rounded) > OFF_GRID_TICKS


def made_bars(
    path: Path,
    ts: Ints,
    prices: Mapping[str, Floats],
    volume: Ints,
    vix: Floats,
    contract: Ints,
    symbols: tuple[str, ...],
) -> Bars:
    """Return bars from columns [rows], `prices` by name and in points; if no row has a range, each row is a trade."""
    ticks = {name: to_ticks(values) for name, values in prices.items()}
    off_grid = np.logical_or.reduce([off for _, off in ticks.values()])
    high, low = ticks["high"][0], ticks["low"][0]
    seconds = 0 if len(ts) and np.array_equal(high, low) else bar_seconds(ts)
    return Bars(
        path=path,
        sha256="",
        ts=ts,
        **{name: values for name, (values, _) in ticks.items()},
        volume=volume,
        vix=vix,
        off_grid=off_grid,
        contract=contract,
        symbols=symbols,
        bar_seconds=seconds,
        rows_in_file=len(ts),
        smaller_kept=(),
    )


def bar_seconds(ts: Ints) -> int:
    """Return the most common positive step between stamps, in seconds, at most a day; 60 when there is none."""
    steps = np.diff(ts)
    if len(steps) and steps.min() <= 0:
        steps = steps[steps > 0]
    return int(np.bincount(np.minimum(steps, DAY_SECONDS)).argmax()) if len(steps) else 60


def exact_duplicates(bars: Bars) -> Flags:
    """Return the flags [rows] of the bars that repeat the bar before them in every column."""
    same = np.zeros(len(bars), dtype=np.bool_)
    rows = np.flatnonzero(bars.ts[1:] == bars.ts[:-1]) + 1
    equal = np.ones(len(rows), dtype=np.bool_)
    for name in (*PRICES, "volume", "contract"):
        column = getattr(bars, name)
        equal &= column[rows] == column[rows - 1]
    now, before = bars.vix[rows], bars.vix[rows - 1]
    equal &= (now == before) | (np.isnan(now) & np.isnan(before))
    same[rows] = equal
    return same


def conflicting_duplicates(bars: Bars) -> Flags:
    """Return the flags [rows] of the bars with the stamp of the bar before them but other values."""
    same_stamp = np.zeros(len(bars), dtype=np.bool_)
    same_stamp[1:] = bars.ts[1:] == bars.ts[:-1]
    return same_stamp & ~exact_duplicates(bars)


def ohlc_violations(bars: Bars) -> Flags:
    """Return the flags [rows] of the bars with an open or close outside low..high."""
    top = np.maximum(bars.open, bars.close)
    bottom = np.minimum(bars.open, bars.close)
    return (bars.high < top) | (bars.low > bottom)
