"""Computes features and targets from bars: one row per session or per RTH bar."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl

from vpoc.arrays import Floats, Ints
from vpoc.data.bars import Bars
from vpoc.data.exchange.rolls import roll_numbers, rolls_sha256
from vpoc.data.exchange.selection import (
    FEWEST,
    SHORTEST_LOOKBACK,
    Selection,
    longest_lookback,
    require_enough,
    select_sessions,
)
from vpoc.data.exchange.sessions import Sessions, ranges, split_sessions
from vpoc.errors import UserError
from vpoc.features.absent import Absent, absent_of_bars, absent_of_sessions
from vpoc.features.feature_options import FeatureOptions
from vpoc.features.feature_set import FeatureSet
from vpoc.features.market import market_of
from vpoc.features.session_facts import SessionFacts, find_session_facts
from vpoc.features.snapshots import NAKED_SESSIONS, bar_snapshots, session_snapshot
from vpoc.features.table import FEATURES, Snapshot
from vpoc.features.targets import HORIZON, label_weight, move_30, session_targets, touched_later
from vpoc.kernel import cores
from vpoc.profile.session_profiles import session_chunks
from vpoc.progress import Progress
from vpoc.terminal import watched

_T = TypeVar("_T")
_MINUTE_S = 60
AT_ONCE = 8
"""Most chunks that are computed concurrently, because each needs memory."""


def build_features(
    bars: Bars, options: FeatureOptions, *, fewest: int | None = None, progress: Progress | None = None
) -> FeatureSet:
    """Compute the features and targets of `bars`.

    `options.chunk_size` sessions are computed at a time; it does not change the result.

    UserError when fewer than `fewest` sessions give rows (by default what training needs).
    Columns: trade_date, ts (bar rows), the features in order, the targets.
    """
    progress = progress or Progress(None)
    return features_of(bars, all_session_facts(bars, options, progress), options, fewest=fewest, progress=progress)


def all_session_facts(bars: Bars, options: FeatureOptions, progress: Progress) -> SessionFacts:
    """Return the facts of the sessions of `bars`; UserError if there are no regular hours."""
    return facts_of_blocks(iter([bars]), options, progress)[1]


def features_of(
    bars: Bars, days: SessionFacts, options: FeatureOptions, *, fewest: int | None = None, progress: Progress
) -> FeatureSet:
    """Do what `build_features` does, with the facts `days` of these bars.

    For session rows only facts of `bars`, no rows, are used.
    """
    rolls, found, kept = select_rows(bars, days, options, fewest)
    if options.rows == "session":
        frame = _session_frame(days, rolls, kept, options)
    else:
        frame = _bar_frame(bars, days, rolls, kept, options, progress)
    # The VIX is null if the file has no bars that would know it.
    known = frame.filter(pl.col("vix").is_not_nan().fill_null(value=True))
    dates = known["trade_date"].unique(maintain_order=True).to_physical().to_numpy()
    return feature_set(known, bars, days, found, options, dates, frame.height - known.height)


def stream_features(blocks: Iterator[Bars], options: FeatureOptions, progress: Progress | None = None) -> FeatureSet:
    """Return the session rows, as from `build_features`, of bars that come in blocks of whole sessions."""
    progress = progress or Progress(None)
    block, days = facts_of_blocks(blocks, options, progress)
    return features_of(block, days, options, progress=progress)


def facts_of_blocks(
    blocks: Iterator[Bars],
    options: FeatureOptions,
    progress: Progress,
    look: Callable[[Bars, SessionFacts | None], None] = lambda _bars, _part: None,
) -> tuple[Bars, SessionFacts]:
    """Return the last block of whole sessions, and the facts of all; `look` gets each block and its facts.

    UserError when no block has regular hours.
    """
    block = next(blocks)
    parts: list[SessionFacts | None] = []
    for following in chain(blocks, [None]):
        parts.append(_traded_session_facts(block, options, progress, continues=following is not None))
        look(block, parts[-1])
        block = block if following is None else following
    some = [part for part in parts if part is not None]
    if not some:
        raise no_regular_hours(block.path)
    return block, SessionFacts.concatenate(some)


def no_regular_hours(path: Path) -> UserError:
    """Return the error for a file without bars in regular trading hours."""
    return UserError(f"{path}: no bars in regular hours, from 09:30 New York; check --zone at the merge")


def _traded_session_facts(
    bars: Bars, options: FeatureOptions, progress: Progress, *, continues: bool
) -> SessionFacts | None:
    """Return the facts of the sessions of `bars` that have regular hours; None if there are none."""
    sessions = split_sessions(bars, options.close_minute, continues=continues)
    traded = sessions.take(sessions.stop > sessions.start)
    if not len(traded):
        return None
    parts = _watched(lambda chunk: find_session_facts(bars, chunk, options), traded, options, progress, "sessions")
    return SessionFacts.concatenate(parts)


def _watched(
    work: Callable[[Sessions], _T], sessions: Sessions, options: FeatureOptions, progress: Progress, label: str
) -> list[_T]:
    """Return the results of `work` on all chunks of `sessions`; several run concurrently if there are cores."""
    count = -(-len(sessions) // options.chunk_size)
    progress.phase("features", count)
    parts: list[_T] = []
    started = time.monotonic()
    pool = ThreadPoolExecutor(min(cores(), AT_ONCE))
    try:
        for part in watched(pool.map(work, session_chunks(sessions, options.chunk_size)), label, count):
            parts.append(part)
            now = time.monotonic()
            progress.step(len(parts), now - started)
            started = now
    finally:
        # After an interruption, wait only for the chunks that have begun.
        pool.shutdown(cancel_futures=True)
    return parts


def select_rows(
    bars: Bars, days: SessionFacts, options: FeatureOptions, fewest: int | None = None
) -> tuple[Ints, Selection, Ints]:
    """Return rolls before each session, the sessions that give rows, and the requested most recent part of these."""
    rolls = roll_numbers(days.sessions, bars.symbols, options.rolls)
    needed = FEWEST[options.rows] if fewest is None else fewest
    next_open = options.as_of == "open"
    select = partial(select_sessions, days.sessions, rolls, days.vix_close, rows=options.rows, next_open=next_open)
    found = select(lookback=options.lookback)
    # A model can do with fewer sessions, but looks for naked levels over as many sessions as in its training.
    shortest = SHORTEST_LOOKBACK if fewest is None else min(NAKED_SESSIONS, options.lookback)
    longest = longest_lookback(days.sessions, select(lookback=shortest), needed)
    require_enough(bars.path, days.sessions, found, options.lookback, needed, longest, shortest)
    return rolls, found, most_recent(bars.path, found.sessions, options.data_fraction, needed)


def most_recent(path: Path, sessions: Ints, data_fraction: float, fewest: int) -> Ints:
    """Return the last `data_fraction` of `sessions`; UserError when fewer than `fewest` are left."""
    keep = round(len(sessions) * data_fraction)
    if keep < fewest:
        raise UserError(
            f"{path}: --data-fraction {data_fraction} of {len(sessions)} sessions leaves {keep}; "
            f"give at least {fewest / len(sessions):.3g}, or more data"
        )
    return sessions[len(sessions) - keep :]


def _session_frame(days: SessionFacts, rolls: Ints, kept: Ints, options: FeatureOptions) -> pl.DataFrame:
    targets = session_targets(days, rolls, kept, at_open=options.as_of == "open")
    absent = absent_of_sessions(days, kept, at_open=options.as_of == "open")
    stamps = {"trade_date": days.sessions.date[kept]}
    return _frame(stamps, session_snapshot(days, rolls, kept, options), targets, absent)


def _bar_frame(
    bars: Bars, days: SessionFacts, rolls: Ints, kept: Ints, options: FeatureOptions, progress: Progress
) -> pl.DataFrame:
    used = days.sessions.take(np.isin(np.arange(len(days)), kept))
    options = replace(options, chunk_size=sessions_at_a_time(bars, options))
    parts = _watched(lambda chunk: bar_rows(bars, days, rolls, chunk, options), used, options, progress, "bars")
    return pl.concat(parts, rechunk=False)


def sessions_at_a_time(bars: Bars, options: FeatureOptions) -> int:
    """Return the number of sessions of bar rows to compute together."""
    # A session of seconds or of trades has as many rows as a hundred sessions of minutes.
    return options.chunk_size if bars.bar_seconds >= _MINUTE_S else 1


def bar_rows(bars: Bars, days: SessionFacts, rolls: Ints, chunk: Sessions, options: FeatureOptions) -> pl.DataFrame:
    """Return a row for each RTH bar of the sessions `chunk`, which are among `days`.

    The row numbers of `chunk` refer to `bars`.
    """
    place = np.searchsorted(days.sessions.date, chunk.date)
    rows = ranges(chunk.start, chunk.stop)
    stamps = {"trade_date": np.repeat(chunk.date, chunk.stop - chunk.start), "ts": bars.ts[rows]}
    targets = _bar_targets(bars, days, chunk, place)
    sizes = chunk.stop - chunk.start
    absent = {name: np.repeat(flags, sizes) for name, flags in absent_of_bars(days, place).items()}
    return _frame(stamps, bar_snapshots(bars, days, rolls, place, options), targets, absent)


def _bar_targets(bars: Bars, days: SessionFacts, chunk: Sessions, place: Ints) -> dict[str, Floats]:
    done = np.flatnonzero(days.sessions.complete)
    prior = days.profile.levels.vpoc[done[np.searchsorted(done, place) - 1]]
    moves, weights, touched = [], [], []
    for number, (start, stop, vpoc) in enumerate(zip(chunk.start, chunk.stop, prior, strict=True)):
        part = slice(int(start), int(stop))
        over = not (chunk.in_progress and number == len(chunk) - 1)
        moves.append(move_30(bars.close[part]))
        weights.append(label_weight(moves[-1]))
        touched.append(touched_later(bars.low[part], bars.high[part], int(vpoc), session_over=over))
    move = np.concatenate(moves)
    return {
        f"up_{HORIZON}": np.where(np.isnan(move), np.nan, move > 0),
        f"move_{HORIZON}": move,
        "prior_vpoc_touched": np.concatenate(touched),
        "label_weight": np.concatenate(weights),
    }


def _frame(stamps: dict[str, Ints], snapshot: Snapshot, targets: dict[str, Floats], absent: Absent) -> pl.DataFrame:
    columns: dict[str, Any] = {"trade_date": pl.Series(stamps["trade_date"]).cast(pl.Int32).cast(pl.Date)}
    if "ts" in stamps:
        columns["ts"] = pl.Series(stamps["ts"] * 1_000_000).cast(pl.Datetime("us", "UTC"))
    columns |= {feature.name: feature.compute(snapshot).astype(np.float64) for feature in FEATURES}
    columns |= {
        name: pl.Series(columns[name]).set(pl.Series(flags), None) for name, flags in absent.items() if flags.any()
    }
    columns |= {name: pl.Series(values, nan_to_null=True) for name, values in targets.items()}
    return pl.DataFrame(columns)


def feature_set(
    frame: pl.DataFrame,
    bars: Bars,
    days: SessionFacts,
    found: Selection,
    options: FeatureOptions,
    dates: Ints,
    without_vix: int,
    accepted: tuple[str, ...] = (),
) -> FeatureSet:
    """Return the set of these rows with their facts; `dates`: the trade dates that have rows, in order."""
    trained = dates
    if options.rows == "session":
        # The outcome of the last session is in no file yet: a model forecasts it, and is not trained on it.
        trained = frame.drop_nulls("next_up")["trade_date"].to_physical().to_numpy()
    return FeatureSet(
        frame=frame,
        options=options,
        data_sha256=bars.sha256,
        data_rows=bars.rows_in_file,
        bar_seconds=bars.bar_seconds,
        sessions_total=len(days),
        sessions_used=len(dates),
        left_out={**found.left_out, "rows_without_vix": without_vix},
        market=market_of(bars.symbols, days, trained),
        accepted=accepted,
        smaller_kept=bars.smaller_kept,
        rolls_sha256=rolls_sha256(options.rolls),
    )
