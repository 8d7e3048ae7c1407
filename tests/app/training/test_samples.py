import datetime as dt
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from vpoc.errors import UserError
from vpoc.features.build import FeatureSet
from vpoc.features.table import FEATURES, NAMES
from vpoc.training.samples import scaled_inputs, split


def features(rows, labels, per_session=2):
    days = [dt.date(2024, 1, 1) + dt.timedelta(i // per_session) for i in range(len(labels))]
    frame = pl.DataFrame({"trade_date": days, "y": labels, "atr20": 50.0, **dict.fromkeys(NAMES, 10.0)})
    return FeatureSet(frame, rows, "", 0, 60, 20, 1.0, 0, 0, 0, 0)


def test_columns_in_ticks_are_divided_by_the_rows_atr():
    frame = pl.DataFrame({"atr20": [50.0, 20.0, 0.0], **{name: [10.0, 10.0, 10.0] for name in NAMES}})
    inputs = scaled_inputs(frame)
    assert inputs.dtype == np.float32
    for column, feature in enumerate(FEATURES):
        expected = [0.2, 0.5, 10] if feature.unit == "ticks" else [10, 10, 10]
        assert inputs[:, column].tolist() == pytest.approx(expected)


def test_a_row_is_scaled_by_itself_alone():
    frame = pl.DataFrame({"atr20": [50.0, 20.0], **{name: [10.0, 4000.0] for name in NAMES}})
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
