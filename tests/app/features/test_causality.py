"""Tests of causality: each row is bitwise identical when computed from a file that ends at the row's as-of time."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from vpoc.data.exchange.sessions import new_york, split_sessions
from vpoc.data.load import load_bars
from vpoc.features import build, snapshots
from vpoc.features.build import build_features
from vpoc.features.feature_options import FeatureOptions
from vpoc.features.table import NAMES
from vpoc.features.targets import SIZE_TARGETS, TARGETS
from vpoc.profile.rth import session_rth_facts

LOOKBACK = 20
BAR_SESSIONS = (21, 25)
"""Sessions whose bars are all checked: the first is the half day of `summer`, and the last one ends the file."""
KINDS = [("bar", "close"), ("session", "close"), ("session", "open")]


def options_of(rows, as_of):
    return FeatureOptions(rows=rows, as_of=as_of, lookback=LOOKBACK)


def ends(path: Path, rows: str, as_of: str) -> list[int]:
    """Return how many lines of the file are known at the as-of time of each row to check."""
    bars = load_bars(path)
    sessions = split_sessions(bars)
    if rows == "bar":
        return [row + 1 for t in BAR_SESSIONS for row in range(sessions.start[t], sessions.stop[t])]
    if as_of == "open":
        return [int(start) + 1 for start in sessions.start[LOOKBACK + 1 :]]
    date, minute = new_york(bars.ts)
    found = [int(np.flatnonzero(date == day)[-1]) + 1 for day in sessions.date[LOOKBACK:]]
    assert all(minute[end - 1] == 16 * 60 + 50 for end in found)
    return found


def only_its_open(line: str) -> str:
    """Change everything in the first bar of regular hours except its open, which is all that is known when it opens."""
    ts, price, *_ = line.split(",")
    high, low = float(price) + 60, float(price) - 45
    return f"{ts},{price},{high:.2f},{low:.2f},{low:.2f},987654,77.77\n"


def causes_nothing_from_later(path: Path, tmp_path: Path, rows: str, as_of: str = "close") -> bool:
    header, *lines = path.read_text().splitlines(keepends=True)
    chosen = options_of(rows, as_of)
    whole = build_features(load_bars(path), chosen).frame
    stamps = ["trade_date", "ts"] if rows == "bar" else ["trade_date"]
    truncated = tmp_path / "truncated.csv"
    for end in ends(path, rows, as_of):
        last = only_its_open(lines[end - 1]) if as_of == "open" else lines[end - 1]
        truncated.write_text(header + "".join(lines[: end - 1]) + last)
        row = build_features(load_bars(truncated), chosen, fewest=1).frame.tail(1).select(*stamps, *NAMES)
        same = whole.join(row.select(stamps), on=stamps, how="semi").select(row.columns)
        assert same.height == 1
        if not row.equals(same):
            return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "rows", "as_of"), [("merged", *kind) for kind in KINDS[1:]] + [("summer", *kind) for kind in KINDS]
)
def test_rows_depend_on_nothing_later(request, tmp_path, data, rows, as_of):
    assert causes_nothing_from_later(request.getfixturevalue(data), tmp_path, rows, as_of)


@pytest.mark.parametrize(("rows", "as_of"), KINDS)
def test_a_mean_that_reaches_one_session_too_far_is_found(merged, tmp_path, rows, as_of, monkeypatch):
    honest = snapshots.mean_of_last
    monkeypatch.setattr(
        snapshots,
        "mean_of_last",
        lambda values, stop, count: honest(values, np.minimum(stop + 1, len(values)), count),
    )
    assert not causes_nothing_from_later(merged, tmp_path, rows, as_of)


def plant_vpoc_of_the_next_session(monkeypatch):
    """Take vpoc_chg5 from the VPOC of the next session, where there is one."""
    honest = snapshots._prior

    def leaks(days, done, place):
        later = days.profile.levels.vpoc[done[np.minimum(place + 1, len(done) - 1)]]
        return honest(days, done, place) | {"vpoc_5": later}

    monkeypatch.setattr(snapshots, "_prior", leaks)


@pytest.mark.parametrize(("rows", "as_of"), KINDS)
def test_the_vpoc_of_the_next_session_is_found(merged, tmp_path, rows, as_of, monkeypatch):
    plant_vpoc_of_the_next_session(monkeypatch)
    assert not causes_nothing_from_later(merged, tmp_path, rows, as_of)


def vix_at_10(bars, sessions):
    """Return the VIX of each session's last RTH bar that starts by 10:00, as far as the bars go."""
    row = np.searchsorted(bars.ts, sessions.open_utc + 1800, side="right") - 1
    return bars.vix[row]


def test_the_vix_of_10_oclock_is_found_in_the_bars_before(merged, tmp_path, monkeypatch):
    honest = build.bar_snapshots

    def leaks(bars, days, rolls, t, options):
        sessions = days.sessions.take(t)
        at_10 = np.repeat(vix_at_10(bars, sessions), sessions.stop - sessions.start)
        found = honest(bars, days, rolls, t, options)
        early = bars.ts[build.ranges(sessions.start, sessions.stop)] < np.repeat(
            sessions.open_utc + 1800, sessions.stop - sessions.start
        )
        return replace(found, vix=np.where(early, at_10, found.vix))

    monkeypatch.setattr(build, "bar_snapshots", leaks)
    assert not causes_nothing_from_later(merged, tmp_path, "bar")


def test_the_vix_of_10_oclock_is_found_as_of_the_open(merged, tmp_path, monkeypatch):
    honest = build.find_session_facts
    monkeypatch.setattr(
        build,
        "find_session_facts",
        lambda bars, sessions, options: replace(honest(bars, sessions, options), vix_open=vix_at_10(bars, sessions)),
    )
    assert not causes_nothing_from_later(merged, tmp_path, "session", "open")


@pytest.mark.parametrize("name", ["high", "low", "close", "volume", "vix"])
def test_any_more_of_the_opening_bar_than_its_open_is_found(merged, tmp_path, monkeypatch, name):
    honest = build.find_session_facts

    def leaks(bars, sessions, options):
        found = honest(bars, sessions, options)
        opening = getattr(bars, name)[sessions.start]
        return replace(found, vix_open=opening) if name == "vix" else replace(found, open=opening)

    monkeypatch.setattr(build, "find_session_facts", leaks)
    assert not causes_nothing_from_later(merged, tmp_path, "session", "open")


def test_a_leak_within_the_session_is_found(merged, tmp_path, monkeypatch):
    def final(bars, sessions, rth, placement, method):
        return snapshots._take(session_rth_facts(bars, sessions, rth, placement, method)[0], rth.session)

    monkeypatch.setattr(snapshots, "developing_facts", final)
    assert not causes_nothing_from_later(merged, tmp_path, "bar")


def contradicts_no_target(path: Path, tmp_path: Path, rows: str, as_of: str = "close") -> bool:
    """Return whether targets that are known in a file that ends at some bar are the same in the whole file.

    Weights of labels are not compared, because a weight falls when later labels share its bars.
    """
    header, *lines = path.read_text().splitlines(keepends=True)
    bars = load_bars(path)
    sessions = split_sessions(bars)
    keys = ["trade_date", "ts"] if rows == "bar" else ["trade_date"]
    chosen = options_of(rows, as_of)
    whole = build_features(bars, chosen).frame
    truncated = tmp_path / "truncated.csv"
    for end in range(sessions.start[-1] + 1, sessions.stop[-1] + 1):
        truncated.write_text(header + "".join(lines[:end]))
        early = build_features(load_bars(truncated), chosen, fewest=1).frame
        both = early.join(whole, on=keys, how="left", suffix="_whole")
        for target in {*TARGETS[rows], *SIZE_TARGETS[rows]} - {"label_weight"}:
            known = both.filter(pl.col(target).is_not_null())
            if known.filter(~pl.col(target).eq_missing(pl.col(f"{target}_whole"))).height:
                return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "as_of"), KINDS)
def test_a_target_once_known_never_changes(merged, tmp_path, rows, as_of):
    assert contradicts_no_target(merged, tmp_path, rows, as_of)


@pytest.mark.parametrize(("rows", "as_of"), KINDS)
def test_a_target_known_too_early_is_found(merged, tmp_path, rows, as_of, monkeypatch):
    """The planted fault counts a session as over before it is."""
    honest = build.split_sessions

    def hasty(bars, close, *, continues):
        found = honest(bars, close, continues=continues)
        found.complete[-1] |= found.in_progress
        return replace(found, in_progress=False)

    monkeypatch.setattr(build, "split_sessions", hasty)
    assert not contradicts_no_target(merged, tmp_path, rows, as_of)
