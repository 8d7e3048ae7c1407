"""Tests of the plausibility check: each planted fault is found by its own rule, and sound files pass."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from vpoc.cli import run
from vpoc.data.checks.plausibility import Plausibility
from vpoc.data.checks.plausibility_rules import RULE_NAMES
from vpoc.data.checks.quality import inspect
from vpoc.data.exchange.sessions import month_starts, split_sessions
from vpoc.data.load import load_bars
from vpoc.data.merge import merge
from vpoc.data.synth import synthetic_csv
from vpoc.errors import UserError
from vpoc.features.compute import compute_features, features_for, rows_for
from vpoc.features.feature_options import FeatureOptions
from vpoc.features.row_source import block_rows
from vpoc.progress import Progress

PRICES = ("open", "high", "low", "close")
REAL = {"es-1min-2013-10.csv": None, "es-5min-2026.csv": None, "es-30min-ib-export.csv": "America/New_York"}


@pytest.fixture(scope="module")
def minutes(tmp_path_factory):
    path = tmp_path_factory.mktemp("plausible") / "m.csv"
    path.write_bytes(synthetic_csv(26, 7))
    return path


def of_session(bars, number):
    sessions = split_sessions(bars)
    return slice(int(sessions.first[number]), int(sessions.end[number]))


def wick(bars, share):
    row = len(bars) // 2
    high = bars.high.copy()
    high[row] += round(bars.close[row] * share)
    return replace(bars, high=high)


def displaced(bars, share):
    row = len(bars) // 2
    moved = {name: getattr(bars, name).copy() for name in PRICES}
    for values in moved.values():
        values[row] += round(bars.close[row] * share)
    return replace(bars, **moved)


def times(bars, names, factor, rows):
    changed = {name: getattr(bars, name).copy() for name in names}
    for values in changed.values():
        values[rows] *= factor
    return replace(bars, **changed)


def cumulative(bars, rows):
    volume = bars.volume.copy()
    volume[rows] = np.cumsum(volume[rows])
    return replace(bars, volume=volume)


def swapped(bars, rows):
    open_, close = bars.open.copy(), bars.close.copy()
    open_[rows], close[rows] = bars.close[rows], bars.open[rows]
    return replace(bars, open=open_, close=close)


def with_vix(bars, values):
    return replace(bars, vix=values)


FROM = slice(9000, None)
ALL = slice(None)
FAULTS = {
    "wick": ("bad_print", lambda bars: wick(bars, 0.05)),
    "wick of 2 %": ("bad_print", lambda bars: wick(bars, 0.02)),
    "bar above": ("bad_print", lambda bars: displaced(bars, 0.05)),
    "bar below": ("bad_print", lambda bars: displaced(bars, -0.05)),
    "volume": ("volume_scale", lambda bars: times(bars, ["volume"], 100, ALL)),
    "volume from": ("volume_scale", lambda bars: times(bars, ["volume"], 100, FROM)),
    "volume of a day": ("volume_scale", lambda bars: times(bars, ["volume"], 100, of_session(bars, 9))),
    "no volume": ("volume_scale", lambda bars: times(bars, ["volume"], 0, ALL)),
    "no volume in a day": ("volume_scale", lambda bars: times(bars, ["volume"], 0, of_session(bars, 9))),
    "adding up": ("cumulative_volume", lambda bars: cumulative(bars, ALL)),
    "adding up in a day": ("cumulative_volume", lambda bars: cumulative(bars, of_session(bars, 9))),
    "cents": ("price_scale", lambda bars: times(bars, PRICES, 100, ALL)),
    "cents from": ("price_scale", lambda bars: times(bars, PRICES, 100, FROM)),
    "swapped": ("open_close_swapped", lambda bars: swapped(bars, ALL)),
    "swapped in a day": ("open_close_swapped", lambda bars: swapped(bars, of_session(bars, 9))),
    "price as VIX": ("vix_is_price", lambda bars: with_vix(bars, bars.close * 0.25)),
    "VIX as a share": ("vix_range", lambda bars: with_vix(bars, bars.vix / 100)),
    "one VIX": ("vix_range", lambda bars: with_vix(bars, np.where(np.arange(len(bars)) == 5000, 250.0, bars.vix))),
    "end": ("end_stamps", lambda bars: replace(bars, ts=bars.ts + bars.bar_seconds)),
}


def found(bars, *, gross=True):
    gate = Plausibility()
    gate.add(bars)
    return [one for one in gate.found() if one.gross is gross]


def names_of(bars):
    return {one.rule.name for one in found(bars)}


def merged_csv(real_data, name, folder):
    path = folder / name
    path.write_bytes(merge(real_data(name), real_data("vix-daily.csv"), REAL[name]).csv)
    return path


def test_every_rule_is_planted():
    assert {rule for rule, _ in FAULTS.values()} == set(RULE_NAMES)


def test_sound_bars_pass(minutes):
    bars = load_bars(minutes)
    assert (found(bars), found(bars, gross=False)) == ([], [])


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found_by_its_rule(minutes, fault):
    rule, plant = FAULTS[fault]
    bars = plant(load_bars(minutes))
    assert rule in names_of(bars)


def found_in_blocks(bars, borders):
    gate = Plausibility()
    for start, stop in pairwise([0, *sorted(borders), len(bars)]):
        gate.add(bars.take(slice(start, stop)), np.arange(start, stop))
    return gate.found()


@pytest.mark.parametrize("fault", FAULTS)
def test_blocks_of_any_size_find_the_same(minutes, fault):
    rule, plant = FAULTS[fault]
    bars = plant(load_bars(minutes))
    whole = found_in_blocks(bars, [])
    assert rule in {one.rule.name for one in whole}
    borders = np.random.default_rng(len(fault)).integers(0, len(bars), 7)
    assert found_in_blocks(bars, borders) == whole


def test_bad_prints_beside_borders_of_blocks_and_months_are_found_wherever_the_borders_are(minutes):
    bars = load_bars(minutes)
    (_, month) = month_starts(bars.ts)
    assert bars.ts[month] == np.datetime64("2018-01-31T23:00", "s").astype(int)
    high, planted = bars.high.copy(), [3000, month - 1, month, month + 40]
    high[planted] += high[planted] // 20
    bars = replace(bars, high=high)
    (whole,) = found_in_blocks(bars, [])
    assert (whole.rule.name, whole.count, whole.line) == ("bad_print", 4, 3000)
    for borders in ([3000], [3001], [month], [month - 1, month + 1], [month - 3, month + 43], [7, 14, month + 2]):
        assert found_in_blocks(bars, borders) == [whole]


def test_an_event_with_its_volume_is_no_bad_print(minutes):
    bars = wick(load_bars(minutes), 0.02)
    volume = bars.volume.copy()
    volume[len(bars) // 2] *= 12
    assert names_of(replace(bars, volume=volume)) == set()


def test_a_small_print_is_worth_a_warning(minutes):
    bars = wick(load_bars(minutes), 0.011)
    assert found(bars) == []
    assert [one.rule.name for one in found(bars, gross=False)] == ["bad_print"]


@pytest.fixture
def bad_print(minutes, tmp_path):
    """Return the file of minute bars with one high, at 10:00 New York, raised by 5 %."""
    lines = minutes.read_text().splitlines(keepends=True)
    cells = lines[9241].split(",")
    cells[2] = str(float(cells[2]) * 1.05 // 0.25 * 0.25)
    lines[9241] = ",".join(cells)
    path = tmp_path / "bad.csv"
    path.write_text("".join(lines))
    return path


def test_a_bad_print_is_named_with_its_line_and_what_it_changes(bad_print):
    (error,) = inspect(bad_print).errors
    assert error.startswith(f"{bad_print}, line 9242: 2018-01-10T")
    assert "above the bars around it" in error
    assert "the range of its session is" in error
    assert "--accept bad_print" in error


def test_a_bad_print_off_the_grid_is_one_too(bad_print):
    lines = bad_print.read_text().splitlines(keepends=True)
    cells = lines[9241].split(",")
    cells[2] = str(float(cells[2]) + 0.03)
    lines[9241] = ",".join(cells)
    bad_print.write_text("".join(lines))
    (error,) = inspect(bad_print).errors
    assert error.startswith(f"{bad_print}, line 9242: 2018-01-10T")


def test_check_features_and_train_refuse_the_same_file(bad_print, tmp_path, capsys):
    pytest.importorskip("torch")
    output = str(tmp_path / "f.parquet")
    for command in (
        ["check", str(bad_print)],
        ["features", "--data", str(bad_print), "--lookback", "20", "--output", output],
        ["train", "--data", str(bad_print), "--lookback", "20", "--output", str(tmp_path / "t")],
    ):
        assert run(command) in {1, 2}
        assert "line 9242: 2018-01-10T" in capsys.readouterr().err
    assert not (tmp_path / "f.bars.parquet").exists()
    assert (
        run(["features", "--data", str(bad_print), "--lookback", "20", "--output", output, "--accept", "bad-print"])
        == 0
    )
    # Accepting a file for one command does not accept it for the next ones.
    assert run(["features", "--data", str(bad_print), "--lookback", "20", "--output", output]) == 2
    capsys.readouterr()
    for command in ("train", "evaluate"):
        for more in ([], ["--chunk-rows", "1000"]) if command == "train" else ([],):
            used = [command, "--data", str(bad_print), "--lookback", "20", "--features", output, *more]
            assert run([*used, "--output", str(tmp_path / "t")]) == 2
            assert "made with --accept bad_print" in capsys.readouterr().err
    stored = bad_print, Path(output), FeatureOptions(lookback=20), Progress(None)
    assert features_for(*stored, vpoc_path="cpu", device="cpu", accepted=["bad_print"]).accepted == ("bad_print",)
    assert rows_for(*stored, vpoc_path="cpu", accepted=["bad_print"]).features.accepted == ("bad_print",)


def test_files_larger_than_memory_are_judged_too(bad_print):
    options = FeatureOptions(lookback=20)
    with pytest.raises(UserError, match="line 9242"):
        block_rows(bad_print, options, Progress(None))
    assert block_rows(bad_print, options, Progress(None), accepted=["bad_print"]).features.accepted == ("bad_print",)


@pytest.mark.parametrize("large", [False, True])
def test_only_what_the_data_breaks_is_kept_as_accepted(bad_print, monkeypatch, large):
    monkeypatch.setattr("vpoc.features.compute.LARGE_BYTES", 0 if large else 1 << 30)
    options = FeatureOptions(rows="session", lookback=20)
    found = compute_features(bad_print, options, Progress(None), accepted=["bad_print", "vix_range"])
    assert found.accepted == ("bad_print",)


def test_an_unknown_rule_is_refused(bad_print, capsys):
    assert run(["check", str(bad_print), "--accept", "everything"]) == 2
    assert "is none of vix_is_price" in capsys.readouterr().err


def test_an_accepted_rule_is_a_warning(bad_print):
    quality = inspect(bad_print, accepted=["bad_print"])
    assert quality.errors == []
    assert any(warning.startswith("line 9242: 2018-01-10T") for warning in quality.warnings)
    assert [one["refused"] for one in quality.facts["implausible"]] == [False]


def test_fix_leaves_a_bad_print_out_and_the_copy_passes(bad_print, tmp_path, capsys):
    copy = tmp_path / "copy.csv"
    assert run(["check", str(bad_print), "--lookback", "20", "--fix", str(copy)]) == 0
    assert (tmp_path / "copy.changes.csv").read_text().count("9242,dropped,a price that no bar around it") == 1
    assert compute_features(copy, FeatureOptions(rows="session", lookback=20), Progress(None)).sessions_used == 6


@pytest.mark.real_data
@pytest.mark.parametrize("name", REAL)
def test_real_files_pass(real_data, tmp_path, name):
    """A real file of one month may cause at most one warning."""
    bars = load_bars(merged_csv(real_data, name, tmp_path))
    assert found(bars) == []
    assert len(found(bars, gross=False)) <= 1


@pytest.mark.real_data
@pytest.mark.parametrize("name", REAL)
def test_faults_in_real_files(real_data, tmp_path, name):
    bars = load_bars(merged_csv(real_data, name, tmp_path))
    for fault in (name for name in FAULTS if "day" not in name and "2 %" not in name):
        rule, plant = FAULTS[fault]
        planted = plant(bars)
        if fault.endswith("from"):
            planted = times(bars, ["volume"] if rule == "volume_scale" else PRICES, 100, slice(len(bars) // 2, None))
        if fault == "one VIX":
            planted = with_vix(bars, np.where(np.arange(len(bars)) == 200, 250.0, bars.vix))
        assert rule in names_of(planted), fault
