import datetime as dt
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from vpoc.data.load import load_bars
from vpoc.errors import UserError
from vpoc.features.build import FeatureSet, build_features
from vpoc.features.feature_options import FeatureOptions
from vpoc.features.table import FEATURES, NAMES
from vpoc.training.samples import scaled_inputs, split


def features(rows, labels, per_session=2):
    days = [dt.date(2024, 1, 1) + dt.timedelta(i // per_session) for i in range(len(labels))]
    frame = pl.DataFrame({"trade_date": days, "y": labels, **dict.fromkeys(NAMES, 10.0), "atr20": 50.0})
    return FeatureSet(frame, FeatureOptions(rows=rows), "", 0, 60, len(set(days)), len(set(days)), {})


SIZES = {"minutes": 390, "sessions": 60, "points": 100, "count": 10, "ratio": 1, "code": 1}


def test_columns_in_ticks_are_divided_by_the_rows_atr_and_others_by_a_constant():
    frame = pl.DataFrame({**{name: [10.0, 10.0, 10.0] for name in NAMES}, "atr20": [50.0, 20.0, 0.0]})
    inputs = scaled_inputs(frame)
    assert (inputs.dtype, inputs.shape) == (np.float32, (3, 54))
    for column, feature in enumerate(FEATURES):
        expected = [0.2, 0.5, 10] if feature.unit == "ticks" else [10 / SIZES[feature.unit]] * 3
        expected = [0.05, 0.02, 0] if feature.name == "atr20" else expected
        assert inputs[:, column].tolist() == pytest.approx(expected), feature.name
    assert {feature.unit for feature in FEATURES} == {"ticks", *SIZES}


def test_inputs_of_synthetic_data_are_of_the_order_of_one(merged):
    frame = build_features(load_bars(merged), FeatureOptions(rows="bar", lookback=20)).frame
    largest = np.abs(scaled_inputs(frame)).max(axis=0)
    assert (largest < 20).all()


def test_a_row_is_scaled_by_itself_alone():
    frame = pl.DataFrame({**{name: [10.0, 4000.0] for name in NAMES}, "atr20": [50.0, 20.0]})
    assert (scaled_inputs(frame)[:1] == scaled_inputs(frame.head(1))).all()


def test_the_last_fifth_of_the_sessions_validates():
    train, validation = split(features("bar", [float(i % 2) for i in range(40)]), "y")
    assert (train.sessions, validation.sessions) == (16, 4)
    assert (len(train), len(validation)) == (32, 8)


def test_the_last_training_session_is_purged_when_labels_look_at_the_next():
    train, validation = split(features("session", [float(i) for i in range(10)], per_session=1), "y")
    assert train.labels.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert validation.labels.tolist() == [8, 9]


def test_rows_without_a_label_are_left_out():
    train, validation = split(features("bar", [0.0, None] * 5), "y")
    assert (len(train), len(validation)) == (4, 1)


def test_up_30_needs_more_than_30_bars_in_a_session():
    with pytest.raises(UserError, match="which has 26 bars of 900 seconds; give shorter bars or choose another"):
        split(replace(features("bar", [0.0, 1.0] * 5), bar_seconds=900), "up_30")


def test_too_few_labels():
    with pytest.raises(UserError, match="2 sessions have a value of y, 3 are needed"):
        split(features("bar", [1.0, 0.0, 1.0, None, None, None]), "y")
