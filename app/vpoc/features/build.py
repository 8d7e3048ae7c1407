"""Bars -> one row of features and targets per session or per RTH bar."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from vpoc.data.bars import Bars, Floats, Ints
from vpoc.data.sessions import Sessions, split_sessions
from vpoc.errors import UserError
from vpoc.features.table import FEATURES, Snapshot
from vpoc.features.targets import next_touched, next_up, touched_later, up_30
from vpoc.profile.levels import Levels
from vpoc.profile.sessions import developing_levels, rth_rows, session_levels
from vpoc.progress import Progress
from vpoc.terminal import watched

ATR_SESSIONS = 20
MIN_WARM_UP = ATR_SESSIONS
"""atr20 of bar rows needs this many sessions before the first row."""
MIN_SESSIONS = 3
"""Two to train and one to validate."""


@dataclass(frozen=True)
class FeatureSet:
    """`frame` has one row per session or RTH bar; the counts say which sessions of the file it covers.

    `sessions_total`: trade dates in the file. `sessions_dropped`: those without 95 % of their RTH bars.
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
    progress: Progress | None = None,
) -> FeatureSet:
    """Features and targets of `bars`, `rows` being "bar" or "session".

    The first `warm_up` valid sessions give no rows; of the rest, the most recent `data_fraction` is kept.
    `chunk_size` sessions are in memory at a time; it does not change the answer. UserError on too few sessions.
    Columns: trade_date, ts (bar rows), vpoc, vah, val (ticks), the features, atr20 (ticks), the targets.
    """
    found = split_sessions(bars)
    usable = found.complete.copy()
    if rows == "bar":
        usable[-1:] |= found.in_progress
    sessions = found.take(usable)
    kept = kept_sessions(len(sessions), warm_up, data_fraction, bars)
    progress = progress or Progress(None)
    days = _days(bars, sessions, _levels(session_levels, bars, sessions, chunk_size, progress))
    if rows == "bar":
        used = sessions.take(slice(int(kept[0]), None))
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
        sessions_used=len(kept),
    )


def kept_sessions(available: int, warm_up: int, data_fraction: float, bars: Bars) -> Ints:
    """Indices of the sessions that give rows; UserError when fewer than 3 are left."""
    after = max(available - warm_up, 0)
    keep = round(after * data_fraction)
    if keep < MIN_SESSIONS:
        needed = warm_up + MIN_SESSIONS
        if after >= MIN_SESSIONS:
            raise UserError(
                f"{bars.path}: --data-fraction {data_fraction} of {after} sessions leaves {keep}; "
                f"give at least {MIN_SESSIONS / after:.3g}, or more data"
            )
        raise UserError(
            f"{bars.path}: {needed} complete sessions are needed ({warm_up} to warm up, {MIN_SESSIONS} to use), "
            f"the file has {available}; give more data or a smaller --warm-up (at least {MIN_WARM_UP})"
        )
    return np.arange(available - keep, available)


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
    targets = {
        "next_up": next_up(days.open, days.close)[kept],
        "next_vpoc_touched": next_touched(vpoc, days.low, days.high)[kept],
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
