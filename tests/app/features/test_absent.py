"""Tests of files without bars at night or in the evening: only features that need those bars are missing."""

import numpy as np
import polars as pl
import pytest

from vpoc.data.checks.quality import inspect
from vpoc.data.exchange.sessions import split_sessions
from vpoc.data.load import load_bars
from vpoc.features.build import build_features
from vpoc.features.feature_options import FeatureOptions
from vpoc.features.table import NAMES
from vpoc.training.inputs.samples import inputs_of
from vpoc.training.inputs.scaling import fit_scaling

NIGHT = {"on_vol_share", "on_range_frac"}
CLOSES = {"vix_chg", "vix_z20"}


def cut(merged, tmp_path, first, last):
    """Return a copy of the merged file with only the bars that begin from `first` to `last`, New York time."""
    frame = pl.read_csv(merged, infer_schema=False)
    stamps = frame["ts"].str.to_datetime("%Y-%m-%dT%H:%M:%SZ").dt.replace_time_zone("UTC")
    clock = stamps.dt.convert_time_zone("America/New_York").dt.to_string("%H:%M")
    path = tmp_path / "cut.csv"
    frame.filter(clock.is_between(pl.lit(first), pl.lit(last))).write_csv(path)
    return path


def built(path, **chosen):
    return build_features(load_bars(path), FeatureOptions(lookback=20, **chosen), fewest=1)


@pytest.mark.parametrize(
    ("hours", "chosen", "missing"),
    [
        (("09:30", "15:59"), {"rows": "bar"}, NIGHT | CLOSES),
        (("09:30", "16:59"), {"rows": "bar"}, NIGHT),
        (("09:30", "15:59"), {"rows": "session"}, NIGHT | CLOSES | {"vix", "range_to_expected_move"}),
        (("09:30", "16:59"), {"rows": "session"}, NIGHT),
        (("09:30", "15:59"), {"rows": "session", "as_of": "open"}, NIGHT | CLOSES | {"vix", "range_to_expected_move"}),
        (("00:00", "23:59"), {"rows": "session"}, set()),
    ],
)
def test_what_the_file_cannot_know_is_missing_and_nothing_else_changes(merged, tmp_path, hours, chosen, missing):
    whole, part = built(merged, **chosen), built(cut(merged, tmp_path, *hours), **chosen)
    assert part.frame.height == whole.frame.height
    nulls = {name for name in NAMES if part.frame[name].null_count()}
    assert nulls == missing
    assert all(part.frame[name].null_count() == part.frame.height for name in missing)
    same = [name for name in NAMES if name not in missing]
    assert part.frame.select(same).equals(whole.frame.select(same))
    told = part.summary()
    assert ("missing, for want of bars" in told) == bool(missing)
    assert all(name in told for name in missing)


NIGHT_OF_23, EVENING_OF_21 = (23, -930, 0), (21, 390, 450)


def rows_without(merged, tmp_path, *parts):
    """Mark the file's lines in `parts`, (session, first, stop) in minutes from 09:30, and write a copy without them."""
    bars = load_bars(merged)
    opens, inside = split_sessions(bars).open_utc, np.zeros(len(bars), dtype=np.bool_)
    for session, first, stop in parts:
        since = (bars.ts - opens[session]) // 60
        inside |= (since >= first) & (since < stop)
    lines = merged.read_text().splitlines(keepends=True)
    path = tmp_path / "without.csv"
    path.write_text(lines[0] + "".join(line for line, gone in zip(lines[1:], inside, strict=True) if not gone))
    return inside, path


@pytest.mark.parametrize(
    ("chosen", "missing"),
    [
        (
            {"rows": "bar"},
            {"on_vol_share": {23}, "on_range_frac": {23}, "vix_chg": {22}, "vix_z20": {22, 23, 24, 25}},
        ),
        (
            {"rows": "session"},
            {"on_vol_share": {21, 23}, "on_range_frac": {23}, "vix": {21}, "range_to_expected_move": {21}}
            | {"vix_chg": {21, 22}, "vix_z20": {21, 22, 23, 24, 25}},
        ),
        (
            {"rows": "session", "as_of": "open"},
            {"on_vol_share": {22}, "on_range_frac": {22}, "vix": {22}, "range_to_expected_move": {22}}
            | {"vix_chg": {22}, "vix_z20": {21, 22, 23, 24}},
        ),
    ],
)
def test_what_one_session_cannot_know_is_missing_there_alone(merged, tmp_path, chosen, missing):
    _, path = rows_without(merged, tmp_path, NIGHT_OF_23, EVENING_OF_21)
    whole, part = built(merged, **chosen), built(path, **chosen)
    number = np.searchsorted(split_sessions(load_bars(merged)).date, part.frame["trade_date"].to_physical().to_numpy())
    for name in NAMES:
        unknown = np.isin(number, sorted(missing.get(name, ())))
        assert part.frame[name].is_null().to_list() == unknown.tolist(), name
        assert part.frame[name].filter(~unknown).equals(whole.frame[name].filter(~unknown)), name
        if unknown.any():
            assert f"{name} in {unknown.sum()} rows" in part.summary()


def test_bars_without_volume_are_bars(merged, tmp_path):
    inside, path = rows_without(merged, tmp_path, NIGHT_OF_23)
    frame = pl.read_csv(merged, infer_schema=False)
    frame.with_columns(volume=pl.when(pl.Series(inside)).then(pl.lit("0")).otherwise("volume")).write_csv(path)
    found = built(path, rows="session").frame
    shares = found["on_vol_share"].to_list()
    assert found["on_vol_share"].null_count() == 0
    assert [place for place, share in enumerate(shares) if share == 0] == [3]


def test_check_warns_of_sessions_without_bars_at_night_or_in_the_evening(merged, tmp_path):
    _, path = rows_without(merged, tmp_path, NIGHT_OF_23, EVENING_OF_21)
    dates = split_sessions(load_bars(merged)).date.astype("datetime64[D]")
    found = [warning for warning in inspect(path).warnings if "have no bars" in warning]
    assert found == [
        "1 session(s) have no bars before 09:30, so that on_vol_share and on_range_frac are missing; the first is "
        f"{dates[23]}",
        "1 session(s) have no bars after regular hours, so that VIX at 17:00, and on_vol_share of the session, are "
        f"missing; the first is {dates[21]}",
    ]
    assert [name for name in NIGHT if name not in found[0]] == []
    # A file that begins in the morning and ends in the afternoon is not warned about.
    _, path = rows_without(merged, tmp_path, (0, -930, 0), (25, 390, 450))
    assert not [warning for warning in inspect(path).warnings if "have no bars" in warning]


def test_a_missing_feature_tells_a_network_nothing(merged, tmp_path):
    frame = built(cut(merged, tmp_path, "09:30", "15:59"), rows="bar").frame
    inputs = inputs_of(frame)
    inputs = fit_scaling(inputs, np.arange(len(inputs))).apply(inputs)
    places = [NAMES.index(name) for name in NIGHT | CLOSES]
    assert (inputs[:, places] == 0).all()
