import json

import numpy as np
import pytest

from vpoc.training.inputs import scaling as module
from vpoc.training.inputs.scaling import FURTHEST, Scaling, fit_scaling, outside_words

NUMBERS = np.random.default_rng(3)


def fitted(*columns):
    rows = np.column_stack(columns).astype(np.float32)
    return rows, fit_scaling(rows, np.arange(len(rows)))


def test_a_normal_column_becomes_a_standard_one_whatever_its_outliers():
    column = NUMBERS.normal(7, 0.01, 2000)
    column[::100] = 1e6
    rows, scaling = fitted(column)
    assert scaling.centre[0] == pytest.approx(7, abs=0.002)
    assert scaling.size[0] == pytest.approx(0.01, rel=0.1)
    scaled = scaling.apply(rows.copy())
    assert scaled.max() == FURTHEST
    assert np.delete(scaled[:, 0], np.s_[::100]).std() == pytest.approx(1, rel=0.1)


def test_a_code_that_is_mostly_0_has_its_standard_deviation_and_a_still_column_is_0():
    code = np.zeros(1000)
    code[:100] = 1
    _, scaling = fitted(code, np.full(1000, 19.5))
    assert scaling.size.tolist() == pytest.approx([0.3, np.inf])
    assert scaling.apply(np.array([[1, 19.5], [0, 1000]], np.float32)).tolist() == [[pytest.approx(1 / 0.3), 0], [0, 0]]


def test_what_is_not_known_counts_for_nothing_and_tells_a_network_nothing():
    column = NUMBERS.normal(7, 0.01, 2000)
    partly = np.where(np.arange(2000) < 500, np.nan, column)
    rows, scaling = fitted(partly, np.full(2000, np.nan))
    assert scaling.as_json() == {
        name: [value, other]
        for (name, [value]), other in zip(fitted(column[500:])[1].as_json().items(), (0, None, 0, 0), strict=True)
    }
    scaled = scaling.apply(rows.copy())
    assert np.isfinite(scaled).all()
    assert (scaled[:500] == 0).all()
    assert (scaled[:, 1] == 0).all()
    assert (scaled[500:, 0] != 0).sum() > 1400
    assert Scaling.from_json(json.loads(json.dumps(scaling.as_json(), allow_nan=False)), 2).is_close(scaling)
    assert scaling.outside(rows).tolist() == [0.25, 0]


def test_it_is_what_it_was_after_json():
    rows, scaling = fitted(NUMBERS.normal(size=50), np.ones(50))
    again = Scaling.from_json(json.loads(json.dumps(scaling.as_json(), allow_nan=False)), 2)
    assert again.as_json() == scaling.as_json()
    assert again.is_close(scaling)
    assert (again.apply(rows.copy()) == scaling.apply(rows.copy())).all()
    assert not fitted(NUMBERS.normal(size=50), np.ones(50))[1].is_close(scaling)


@pytest.mark.parametrize(
    ("name", "value"), [("size", [0.0, 1.0]), ("centre", [1.0]), ("low", ["x", 1]), ("centre", [float("nan"), 1.0])]
)
def test_what_is_no_scaling_is_refused(name, value):
    document = fitted(NUMBERS.normal(size=50), NUMBERS.normal(size=50))[1].as_json()
    with pytest.raises(ValueError, match=r"."):
        Scaling.from_json({**document, name: value}, 2)


def test_of_many_rows_some_are_enough(monkeypatch):
    rows = NUMBERS.normal(size=(5000, 1)).astype(np.float32)
    monkeypatch.setattr(module, "FIT_ROWS", 1000)
    scaling = fit_scaling(rows, np.arange(5000))
    assert scaling.as_json() == fit_scaling(rows[::5], np.arange(1000)).as_json()


def test_what_is_scaled_in_parts_is_the_same(monkeypatch):
    rows, scaling = fitted(NUMBERS.normal(size=50), NUMBERS.normal(size=50))
    whole = scaling.apply(rows.copy())
    monkeypatch.setattr(module, "FIT_ROWS", 7)
    assert (scaling.apply(rows.copy()) == whole).all()


def test_features_out_of_range_are_named_the_worst_first():
    _, scaling = fitted(np.arange(100), np.arange(100), np.arange(100))
    rows = np.full((200, 3), 50, np.float32)
    rows[:50, 0], rows[:1, 1], rows[:, 2] = -1, 100, 1000
    assert outside_words(scaling, rows, ("a", "b", "c")) == ["c (100.0 %)", "a (25.0 %)"]
