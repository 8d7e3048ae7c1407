"""Bars -> one row of features and targets per session or per RTH bar."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from vpoc.data.bars import Bars, Floats, Ints
from vpoc.data.enough import FEWEST, after_gap, sessions_with_rows, usable_sessions
from vpoc.data.sessions import Sessions, split_sessions
from vpoc.errors import UserError
from vpoc.features.table import FEATURES, Snapshot
from vpoc.features.targets import next_touched, next_up, touched_later, up_30
from vpoc.profile.levels import Levels
from vpoc.profile.sessions import developing_levels, rth_rows, session_levels
from vpoc.progress import Progress
from vpoc.terminal import watched

ATR_SESSIONS = 20


@dataclass(frozen=True)
class FeatureSet:
    """`frame` has one row per session or RTH bar; the counts say which sessions of the file it covers.

    `sessions_total`: trade dates in the file. `sessions_dropped`: those without 95 % of their RTH bars.
    `sessions_apart`: those after the warm-up without rows because one of the 5 sessions before them is missing.
    `sessions_used`: those that have rows in `frame`.
    """

    frame: pl.DataFrame
    rows: str
    data_sha256: str
    data_rows: int
    bar_seconds: int
    warm_up: int
    data_fraction: float
    sessions_total: int
    sessions_dropped: int
    sessions_apart: int
    sessions_used: int


@dataclass(frozen=True)
class _Days:
    """RTH of each session [sessions], in ticks, and the levels of its whole profile."""

    open: Ints
    high: Ints
    low: Ints
    close: Ints
    levels: Levels


def build_features(
    bars: Bars,
    rows: str,
    *,
    warm_up: int,
    data_fraction: float = 1.0,
    chunk_size: int = 16,
    fewest: int | None = None,
    progress: Progress | None = None,
) -> FeatureSet:
    """Features and targets of `bars`, `rows` being "bar" or "session".

    The first `warm_up` complete sessions give no rows, nor does one that does not follow 5 complete ones without a gap;
    of the rest, the most recent `data_fraction` is kept. `chunk_size` sessions are in memory at a time; it does not
    change the answer. UserError when fewer than `fewest` sessions are left (by default what training needs).
    Columns: trade_date, ts (bar rows), vpoc, vah, val (ticks), the features, atr20 (ticks), the targets.
    """
    found = split_sessions(bars)
    sessions = usable_sessions(found, rows)
    kept = kept_sessions(bars.path, sessions, warm_up, data_fraction, FEWEST[rows] if fewest is None else fewest)
    progress = progress or Progress(None)
    days = _days(bars, sessions, _levels(session_levels, bars, sessions, chunk_size, progress))
    if rows == "bar":
        used = sessions.take(np.isin(np.arange(len(sessions)), kept))
        frame = _bar_rows(bars, used, days, kept, _levels(developing_levels, bars, used, chunk_size, progress))
    else:
        frame = _session_rows(sessions, days, kept)
    return FeatureSet(
        frame=frame,
        rows=rows,
        data_sha256=bars.sha256,
        data_rows=bars.rows_in_file,
        bar_seconds=bars.bar_seconds,
        warm_up=warm_up,
        data_fraction=data_fraction,
        sessions_total=len(found),
        sessions_dropped=len(found) - len(sessions),
        sessions_apart=after_gap(sessions, warm_up),
        sessions_used=len(kept),
    )


def kept_sessions(path: Path, usable: Sessions, warm_up: int, data_fraction: float, fewest: int) -> Ints:
    """Indices of the sessions that give rows; UserError when fewer than `fewest` are left."""
    found = sessions_with_rows(path, usable, warm_up, fewest)
    keep = round(len(found) * data_fraction)
    if keep < fewest:
        raise UserError(
            f"{path}: --data-fraction {data_fraction} of {len(found)} sessions leaves {keep}; "
            f"give at least {fewest / len(found):.3g}, or more data"
        )
    return found[len(found) - keep :]


def _levels(
    compute: Callable[[Bars, Sessions, int], Iterator[Levels]],
    bars: Bars,
    sessions: Sessions,
    chunk_size: int,
    progress: Progress,
) -> Levels:
    """All levels that `compute` gives, chunk by chunk, with progress."""
    chunks = -(-len(sessions) // chunk_size)
    progress.phase("features", chunks)
    parts: list[Levels] = []
    started = time.monotonic()
    for part in watched(compute(bars, sessions, chunk_size), compute.__name__.replace("_", " "), chunks):
        parts.append(part)
        now = time.monotonic()
        progress.step(len(parts), now - started)
        started = now
    return Levels.concatenate(parts)


def _days(bars: Bars, sessions: Sessions, levels: Levels) -> _Days:
    rows = rth_rows(sessions)
    sizes = sessions.stop - sessions.start
    starts = np.cumsum(sizes) - sizes
    return _Days(
        open=bars.open[sessions.start],
        high=np.maximum.reduceat(bars.high[rows], starts),
        low=np.minimum.reduceat(bars.low[rows], starts),
        close=bars.close[sessions.stop - 1],
        levels=levels,
    )


def _range_mean(days: _Days, last: Ints) -> Floats:
    """Mean RTH range, in ticks, of the 20 sessions that end with each of `last`; exact, since the sums are integers."""
    total = np.concatenate([[0], np.cumsum(days.high - days.low)])
    means: Floats = (total[last + 1] - total[last + 1 - ATR_SESSIONS]) / ATR_SESSIONS
    return means


def _session_rows(sessions: Sessions, days: _Days, kept: Ints) -> pl.DataFrame:
    vpoc = days.levels.vpoc
    snapshot = Snapshot(
        high=days.high[kept],
        low=days.low[kept],
        close=days.close[kept],
        levels=days.levels.take(kept),
        vpoc_1=vpoc[kept - 1],
        vpoc_5=vpoc[kept - 5],
    )
    # What came after a gap is not what came next.
    adjacent = np.append(sessions.follows[1:] > 0, np.False_)
    targets = {
        "next_up": np.where(adjacent, next_up(days.open, days.close), np.nan)[kept],
        "next_vpoc_touched": np.where(adjacent, next_touched(vpoc, days.low, days.high), np.nan)[kept],
    }
    return _frame(snapshot, {"trade_date": sessions.date[kept]}, _range_mean(days, kept), targets)


def _bar_rows(bars: Bars, used: Sessions, days: _Days, kept: Ints, levels: Levels) -> pl.DataFrame:
    high, low, up, touched = [], [], [], []
    for session, start, stop in zip(kept, used.start, used.stop, strict=True):
        part = slice(int(start), int(stop))
        over = not (used.in_progress and session == kept[-1])
        prior = int(days.levels.vpoc[session - 1])
        high.append(np.maximum.accumulate(bars.high[part]))
        low.append(np.minimum.accumulate(bars.low[part]))
        up.append(up_30(bars.close[part]))
        touched.append(touched_later(bars.low[part], bars.high[part], prior, session_over=over))
    rows = rth_rows(used)
    session_of_row = np.repeat(kept, used.stop - used.start)
    snapshot = Snapshot(
        high=np.concatenate(high),
        low=np.concatenate(low),
        close=bars.close[rows],
        levels=levels,
        vpoc_1=days.levels.vpoc[session_of_row - 1],
        vpoc_5=days.levels.vpoc[session_of_row - 5],
    )
    stamps = {"trade_date": np.repeat(used.date, used.stop - used.start), "ts": bars.ts[rows]}
    targets = {"up_30": np.concatenate(up), "prior_vpoc_touched": np.concatenate(touched)}
    return _frame(snapshot, stamps, _range_mean(days, session_of_row - 1), targets)


def _frame(snapshot: Snapshot, stamps: dict[str, Ints], atr: Floats, targets: dict[str, Floats]) -> pl.DataFrame:
    levels = snapshot.levels
    columns: dict[str, Any] = {"trade_date": pl.Series(stamps["trade_date"]).cast(pl.Int32).cast(pl.Date)}
    if "ts" in stamps:
        columns["ts"] = pl.Series(stamps["ts"] * 1_000_000).cast(pl.Datetime("us", "UTC"))
    columns |= {"vpoc": levels.vpoc, "vah": levels.vah, "val": levels.val}
    columns |= {feature.name: feature.compute(snapshot).astype(np.float64) for feature in FEATURES}
    columns["atr20"] = atr
    columns |= {name: pl.Series(values, nan_to_null=True) for name, values in targets.items()}
    return pl.DataFrame(columns)
