import datetime as dt
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from vpoc.data.load import load_bars
from vpoc.errors import UserError
from vpoc.features.build import build_features
from vpoc.features.feature_options import FeatureOptions
from vpoc.features.feature_set import FeatureSet
from vpoc.features.table import FEATURES, NAMES
from vpoc.training.inputs.samples import inputs_of, split
from vpoc.training.inputs.scaling import FURTHEST


def features(rows, labels, per_session=2):
    days = [dt.date(2024, 1, 1) + dt.timedelta(i // per_session) for i in range(len(labels))]
    frame = pl.DataFrame({"trade_date": days, "y": labels, **dict.fromkeys(NAMES, 10.0), "adr20": 50.0})
    return FeatureSet(frame, FeatureOptions(rows=rows), "", 0, 60, len(set(days)), len(set(days)), {})


def test_columns_in_ticks_are_divided_by_the_rows_range_and_others_are_as_they_are():
    frame = pl.DataFrame({**{name: [10.0, 10.0, 10.0] for name in NAMES}, "adr20": [50.0, 20.0, 0.0]})
    inputs = inputs_of(frame)
    assert (inputs.dtype, inputs.shape) == (np.float32, (3, len(NAMES)))
    for column, feature in enumerate(FEATURES):
        expected = [0.2, 0.5, 10] if feature.unit == "ticks" else [10] * 3
        expected = [50, 20, 0] if feature.name == "adr20" else expected
        assert inputs[:, column].tolist() == pytest.approx(expected), feature.name


def test_what_enters_a_network_is_of_the_order_of_one(merged):
    samples = split(build_features(load_bars(merged), FeatureOptions(rows="bar", lookback=20)), "prior_vpoc_touched")
    rows = samples.train.inputs[samples.train.ends]
    assert np.abs(samples.train.inputs).max() <= FURTHEST
    varied = ~np.isinf(samples.scaling.size)
    assert varied.sum() > 45
    assert (np.abs(np.median(rows, axis=0)) < 0.2).all()
    assert (rows[:, varied].std(axis=0) > 0.3).all()


def test_only_training_rows_decide_about_the_scaling(merged):
    features_ = build_features(load_bars(merged), FeatureOptions(rows="bar", lookback=20))
    samples = split(features_, "prior_vpoc_touched", inner=True)
    last = np.datetime64(int(samples.train.dates[-1]), "D")
    later = pl.col("trade_date") > last.astype(dt.date)
    changed = features_.frame.with_columns(
        *(pl.when(later).then(9e6).otherwise(pl.col(name)).alias(name) for name in NAMES)
    )
    other = split(replace(features_, frame=changed), "prior_vpoc_touched", inner=True)
    assert other.scaling.as_json() == samples.scaling.as_json()
    assert (other.train.inputs[other.train.ends] == samples.train.inputs[samples.train.ends]).all()
    assert other.validation.inputs[other.validation.ends].max() == FURTHEST


def test_the_scaling_is_the_same_for_all_windows(merged):
    built = build_features(load_bars(merged), FeatureOptions(rows="bar", lookback=20))
    narrow, wide = (split(built, "prior_vpoc_touched", window, inner=True) for window in (1, 32))
    assert narrow.scaling.as_json() == wide.scaling.as_json()
    assert (narrow.train.inputs == wide.train.inputs).all()


def test_the_last_fifth_of_the_sessions_validates():
    samples = split(features("bar", [float(i % 2) for i in range(40)]), "y")
    assert (samples.train.sessions, samples.inner, samples.validation.sessions) == (16, None, 4)
    assert (len(samples.train), len(samples.validation)) == (32, 8)


def test_the_last_fifth_of_the_rest_chooses_the_epoch():
    samples = split(features("bar", [float(i % 2) for i in range(40)]), "y", inner=True)
    assert [part.sessions for part in (samples.train, samples.inner, samples.validation)] == [13, 3, 4]
    assert samples.train.dates[-1] < samples.inner.dates[0]
    assert samples.inner.dates[-1] < samples.validation.dates[0]


def test_too_few_sessions_choose_nothing():
    samples = split(features("bar", [0.0, 1.0, 1.0], per_session=1), "y", inner=True)
    assert (samples.train.sessions, samples.inner, samples.validation.sessions) == (2, None, 1)


def test_the_last_training_session_is_purged_when_labels_look_at_the_next():
    rows = features("session", [float(i) for i in range(10)], per_session=1)
    samples = split(rows, "y")
    assert samples.train.labels.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert samples.validation.labels.tolist() == [8, 9]
    samples = split(rows, "y", inner=True)
    assert samples.train.labels.tolist() == [0, 1, 2, 3, 4]
    assert samples.inner is not None
    assert samples.inner.labels.tolist() == [6]
    assert samples.validation.labels.tolist() == [8, 9]


def test_rows_without_a_label_are_left_out():
    samples = split(features("bar", [0.0, None] * 5), "y")
    assert (len(samples.train), len(samples.validation)) == (4, 1)


def test_up_30_needs_more_than_30_bars_in_a_session():
    with pytest.raises(UserError, match="which has 26 bars of 900 seconds; give shorter bars or choose another"):
        split(replace(features("bar", [0.0, 1.0] * 5), bar_seconds=900), "up_30")


def test_too_few_labels():
    with pytest.raises(UserError, match="2 sessions have a value of y, 3 are needed"):
        split(features("bar", [1.0, 0.0, 1.0, None, None, None]), "y")
