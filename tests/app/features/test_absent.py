"""Files without bars at night or in the evening: what needs them is missing, and all else is as it was."""

import numpy as np
import polars as pl
import pytest

from vpoc.data.load import load_bars
from vpoc.features.build import build_features
from vpoc.features.feature_options import FeatureOptions
from vpoc.features.table import NAMES
from vpoc.training.samples import inputs_of
from vpoc.training.scaling import fit_scaling

NIGHT = {"on_vol_share", "on_range_frac"}
CLOSES = {"vix_chg", "vix_z20"}


def cut(merged, tmp_path, first, last):
    """The merged file with the bars alone that begin from `first` to `last`, New York."""
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


def test_a_missing_feature_tells_a_network_nothing(merged, tmp_path):
    frame = built(cut(merged, tmp_path, "09:30", "15:59"), rows="bar").frame
    inputs = inputs_of(frame)
    inputs = fit_scaling(inputs, np.arange(len(inputs))).apply(inputs)
    places = [NAMES.index(name) for name in NIGHT | CLOSES]
    assert (inputs[:, places] == 0).all()
