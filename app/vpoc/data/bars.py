"""The merged CSV in memory: bars in integer ticks, and the rules they must obey."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vpoc.data.columns import PRICES, REQUIRED, STAMP_FORMAT, TICK
from vpoc.data.table import Table, numbers, one_symbol, read_table, require_columns, require_years, volumes
from vpoc.errors import UserError

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

MAX_OFF_GRID_SHARE = 0.001
MAX_TICKS = 2**31


@dataclass(frozen=True)
class Bars:
    """Bars in file order; every array is [rows].

    `ts`: start of the bar, seconds since 1970 UTC. `open` .. `close`: ticks of 0.25 points. `volume`: contracts.
    `vix`: points, NaN where none was published yet. `off_grid`: bars with a price that was no multiple of the tick.
    `bar_seconds`: the most common step between bars.
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
    symbol: str | None
    bar_seconds: int
    rows_in_file: int

    def __len__(self) -> int:
        return len(self.ts)

    def take(self, rows: Flags) -> "Bars":
        """The bars where `rows` [rows] is true."""
        names = ("ts", *PRICES, "volume", "vix", "off_grid")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})


@dataclass(frozen=True)
class Problem:
    """A broken rule: how many rows break it, the first of them (from 0), and what to do."""

    name: str
    rows: int
    first_row: int
    advice: str


def load_bars(path: Path) -> Bars:
    """Read a merged CSV for training; exact duplicates are dropped.

    UserError, in one line with the line number, on the first rule that is broken.
    """
    table = read_table(path)
    bars = parse_bars(table)
    for problem in problems(bars):
        raise UserError(f"{table.line(problem.first_row)}: {problem.name} ({problem.rows} rows); {problem.advice}")
    return bars.take(~exact_duplicates(bars))


def parse_bars(table: Table) -> Bars:
    """The columns of a merged CSV as arrays; UserError when a value cannot be read as what it should be."""
    if not table.newline_at_end:
        raise UserError(
            f"{table.line(table.frame.height - 1)}: the file does not end with a newline, so that its last line may be "
            "cut short; copy or make it again, or end the line if it is whole"
        )
    require_columns(table, REQUIRED)
    ts = _stamps(table)
    ticks: dict[str, Ints] = {}
    off_grid = np.zeros(len(ts), dtype=np.bool_)
    for name in PRICES:
        ticks[name], off = to_ticks(table, name, numbers(table, name))
        off_grid |= off
    return Bars(
        path=table.path,
        sha256=table.sha256,
        ts=ts,
        **ticks,
        volume=volumes(table),
        vix=numbers(table, "vix", empty=np.nan),
        off_grid=off_grid,
        symbol=one_symbol(table),
        bar_seconds=bar_seconds(ts),
        rows_in_file=len(ts),
    )


def to_ticks(table: Table, name: str, prices: Floats) -> tuple[Ints, Flags]:
    """`prices` [rows], of column `name`, in ticks, and which are no multiple of it; UserError on absurd ones."""
    scaled = prices / TICK
    if (np.abs(scaled) > MAX_TICKS).any():
        row = int(np.flatnonzero(np.abs(scaled) > MAX_TICKS)[0])
        raise UserError(f"{table.line(row)}: {name} is beyond any price; correct or remove the row")
    rounded = np.rint(scaled)
    return rounded.astype(np.int64), np.abs(scaled - rounded) > 1e-6


def grid_problem(off_grid: Flags) -> "Problem | None":
    """More than 0.1 % of the bars have a price off the grid."""
    if off_grid.mean() <= MAX_OFF_GRID_SHARE:
        return None
    return Problem(
        f"a price is not a multiple of {TICK}",
        int(off_grid.sum()),
        int(np.flatnonzero(off_grid)[0]),
        "use unadjusted prices of one ES contract (no calendar spreads, no ratio adjustment)",
    )


def bar_seconds(ts: Ints) -> int:
    """The most common positive step between stamps, in seconds; 60 when there is none."""
    steps = np.diff(ts)
    steps = steps[steps > 0]
    if not len(steps):
        return 60
    values, counts = np.unique(steps, return_counts=True)
    return int(values[np.argmax(counts)])


def exact_duplicates(bars: Bars) -> Flags:
    """Which bars [rows] repeat the bar before them in every column."""
    same = np.zeros(len(bars), dtype=np.bool_)
    same[1:] = np.diff(bars.ts) == 0
    for name in (*PRICES, "volume"):
        same[1:] &= np.diff(getattr(bars, name)) == 0
    same[1:] &= (bars.vix[1:] == bars.vix[:-1]) | (np.isnan(bars.vix[1:]) & np.isnan(bars.vix[:-1]))
    return same


def conflicting_duplicates(bars: Bars) -> Flags:
    """Which bars [rows] have the stamp of the bar before them but other values."""
    same_stamp = np.zeros(len(bars), dtype=np.bool_)
    same_stamp[1:] = np.diff(bars.ts) == 0
    return same_stamp & ~exact_duplicates(bars)


def ohlc_violations(bars: Bars) -> Flags:
    """Which bars [rows] have an open or close outside low..high."""
    top = np.maximum(bars.open, bars.close)
    bottom = np.minimum(bars.open, bars.close)
    return (bars.high < top) | (bars.low > bottom)


def problems(bars: Bars) -> list[Problem]:
    """Every rule that `bars` break so that training must not use them."""
    backwards = np.zeros(len(bars), dtype=np.bool_)
    backwards[1:] = np.diff(bars.ts) < 0
    rules = [
        ("a price is not above zero", bars.low <= 0, "correct or remove the row"),
        ("the stamp is before that of the line above", backwards, "sort the file by ts"),
        ("the same stamp with other values", conflicting_duplicates(bars), "keep one of the rows"),
        (
            "open or close is outside low..high",
            ohlc_violations(bars),
            "correct or remove the row, and check that the columns are not swapped",
        ),
        ("vix is not above zero", bars.vix <= 0, "correct the row, or leave the cell empty"),
    ]
    found = [
        Problem(name, int(broken.sum()), int(np.flatnonzero(broken)[0]), advice)
        for name, broken, advice in rules
        if broken.any()
    ]
    off_grid = grid_problem(bars.off_grid)
    return found if off_grid is None else [*found, off_grid]


def _stamps(table: Table) -> Ints:
    parsed = table.frame["ts"].str.to_datetime(STAMP_FORMAT, time_unit="us", strict=False)
    if parsed.null_count():
        row = int(parsed.is_null().arg_max() or 0)
        shown = table.frame["ts"][row]
        raise UserError(
            f"{table.line(row)}: ts is {shown!r}, not like 2018-01-02T14:30:00Z; `vpoc merge` writes this format"
        )
    require_years(table, "ts", parsed)
    seconds: Ints = parsed.dt.epoch("s").to_numpy()
    return seconds
