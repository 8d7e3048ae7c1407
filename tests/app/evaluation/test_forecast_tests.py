import numpy as np
import pytest

from vpoc.evaluation.forecast_tests import p_beats_chance, p_better, rejected

TRIALS = 400


def p_values(test, made, edge=0.0, **chosen):
    """Return p-values of forecasts from the feature; labels follow it as strongly as `edge` says (0: noise)."""
    found = []
    for seed in range(TRIALS):
        rows = made(sessions=120, edge=edge, column=0, seed=seed, **chosen)
        logits = (edge or 0.3) * rows.inputs[:, 0].astype(float)
        predicted = 1 / (1 + np.exp(-logits))
        found.append(test(rows, slice(0, len(rows)), predicted, np.full(len(rows), 0.5), 5 if rows.reach else 1))
    return np.array(found)


@pytest.mark.parametrize("chosen", [{"reach": 0, "per_session": 3}, {"reach": 1}], ids=["sessions", "runs"])
@pytest.mark.parametrize(("test", "least"), [(p_beats_chance, 0.005), (p_better, 0.0)])
def test_noise_is_taken_for_knowledge_as_often_as_the_level_says(test, least, make_rows, chosen):
    found = p_values(test, make_rows, **chosen)
    assert least * 10 <= (found < 0.1).mean() < 0.15
    assert (found < 0.01).mean() < 0.03


def test_knowledge_is_found_and_sooner_than_a_better_forecast(make_rows):
    found, better = p_values(p_beats_chance, make_rows, edge=0.6), p_values(p_better, make_rows, edge=0.6)
    assert (found < 0.01).mean() > (better < 0.01).mean() > 0.2


def test_rows_of_a_session_are_one_observation(make_rows):
    rows = make_rows(sessions=60, per_session=1, edge=1.0, column=0, reach=0)
    again = type(rows)(
        *(np.repeat(getattr(rows, name), 20, axis=0) for name in ("inputs", "places", "labels", "weights", "sessions")),
        rows.dates,
        0,
    )
    for test in (p_beats_chance, p_better):
        values = []
        for one in (rows, again):
            predicted = 1 / (1 + np.exp(-one.inputs[:, 0].astype(float)))
            values.append(test(one, slice(0, len(one)), predicted, np.full(len(one), 0.5), 1))
        assert values[0] == pytest.approx(values[1])


def test_equal_forecasts_are_no_news(make_rows):
    rows = make_rows(sessions=30)
    same = np.full(30, 0.4)
    assert p_better(rows, slice(0, 30), same, same, 1) == p_beats_chance(rows, slice(0, 30), same, same, 1) == 1.0


@pytest.mark.parametrize(
    ("p_values", "names"),
    [
        ({"a": 0.002, "b": 0.5, "c": 0.004}, ("a", "c")),
        ({"a": 0.004, "b": 0.5, "c": 0.004}, ()),
        ({"a": 0.5, "b": 0.001, "c": 0.009}, ("b",)),
        ({"a": 0.003, "b": 0.004, "c": 0.009}, ("a", "b", "c")),
    ],
)
def test_holm(p_values, names):
    assert rejected(p_values) == names


def test_a_model_that_only_has_another_level_knows_nothing(make_rows):
    """A constant offset must not pass for skill where the base rate drifts the same way after training."""
    rows = make_rows(sessions=400, reach=0)
    rows = rows.with_labels((np.arange(400) % 100 < 60).astype(float), rows.weights)
    chance = np.repeat([0.5, 0.52], 200)
    level = chance + 0.05
    assert p_beats_chance(rows, slice(0, 400), level, chance, 1) == 1.0
