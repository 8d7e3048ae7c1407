"""Every row, recomputed from a file that ends at the row's as-of time, is the same to the last bit."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from vpoc.data.bars import load_bars
from vpoc.data.sessions import new_york, split_sessions
from vpoc.features import build
from vpoc.features.build import build_features
from vpoc.features.table import NAMES
from vpoc.features.targets import TARGETS

WARM_UP = 20
KNOWN = ["trade_date", "vpoc", "vah", "val", *NAMES, "atr20"]


def causes_nothing_from_later(path: Path, tmp_path: Path, rows: str) -> bool:
    header, *lines = path.read_text().splitlines(keepends=True)
    bars = load_bars(path)
    sessions = split_sessions(bars)
    whole = build_features(bars, rows, warm_up=WARM_UP).frame
    # The first two sessions are needed beside the last one, so truncated files end in the third or later.
    first = WARM_UP + 2
    if rows == "bar":
        ends = [row + 1 for t in range(first, len(sessions)) for row in range(sessions.start[t], sessions.stop[t])]
        expected = whole.slice(2 * 39)
    else:
        date, minute = new_york(bars.ts)
        ends = [int(np.flatnonzero(date == sessions.date[t])[-1]) + 1 for t in range(first, len(sessions))]
        assert all(minute[end - 1] == 16 * 60 + 50 for end in ends)
        expected = whole.slice(2)
    truncated = tmp_path / "truncated.csv"
    found = []
    for end in ends:
        truncated.write_text(header + "".join(lines[:end]))
        found.append(build_features(load_bars(truncated), rows, warm_up=WARM_UP, fewest=1).frame.tail(1).select(KNOWN))
    return pl.concat(found).equals(expected.select(KNOWN))


@pytest.mark.parametrize("rows", ["bar", "session"])
def test_rows_depend_on_nothing_later(merged, tmp_path, rows):
    assert causes_nothing_from_later(merged, tmp_path, rows)


@pytest.mark.parametrize("rows", ["bar", "session"])
def test_a_planted_leak_is_found(merged, tmp_path, rows, monkeypatch):
    honest = build._range_mean

    def leaks(days, last):
        return honest(days, np.minimum(last + 1, len(days.high) - 1))

    monkeypatch.setattr(build, "_range_mean", leaks)
    assert not causes_nothing_from_later(merged, tmp_path, rows)


def test_a_leak_within_the_session_is_found(merged, tmp_path, monkeypatch):
    def final_levels(bars, sessions, chunk_size):
        for levels in build.session_levels(bars, sessions, chunk_size):
            yield levels.take(np.repeat(np.arange(len(levels.vpoc)), 39)[: int((sessions.stop - sessions.start).sum())])

    monkeypatch.setattr(build, "developing_levels", final_levels)
    assert not causes_nothing_from_later(merged, tmp_path, "bar")


def contradicted_targets(path: Path, tmp_path: Path, rows: str) -> int:
    """How many targets, known in a file that ends at some bar, are another value or unknown in the whole file."""
    header, *lines = path.read_text().splitlines(keepends=True)
    bars = load_bars(path)
    sessions = split_sessions(bars)
    keys = ["trade_date", "ts"] if rows == "bar" else ["trade_date"]
    whole = build_features(bars, rows, warm_up=WARM_UP).frame
    truncated = tmp_path / "truncated.csv"
    wrong = 0
    for session in range(WARM_UP + 3, len(sessions)):
        for end in range(sessions.start[session] + 1, sessions.stop[session] + 1):
            truncated.write_text(header + "".join(lines[:end]))
            early = build_features(load_bars(truncated), rows, warm_up=WARM_UP, fewest=1).frame
            both = early.join(whole, on=keys, how="left", suffix="_whole")
            for target in TARGETS[rows]:
                known = both.filter(pl.col(target).is_not_null())
                wrong += known.filter(~pl.col(target).eq_missing(pl.col(f"{target}_whole"))).height
    return wrong


@pytest.mark.parametrize("rows", ["bar", "session"])
def test_a_target_once_known_never_changes(merged, tmp_path, rows):
    assert contradicted_targets(merged, tmp_path, rows) == 0


@pytest.mark.parametrize("rows", ["bar", "session"])
def test_a_target_known_too_early_is_found(merged, tmp_path, rows, monkeypatch):
    """A session counts as over before it is."""
    honest = build.split_sessions

    def hasty(bars):
        found = honest(bars)
        found.complete[-1] |= found.in_progress
        return replace(found, in_progress=False)

    monkeypatch.setattr(build, "split_sessions", hasty)
    assert contradicted_targets(merged, tmp_path, rows) > 0
