import numpy as np
import pytest

from vpoc.evaluation.bootstrap import Interval
from vpoc.evaluation.placebo import run_placebos, shuffled

BETTER, CHANCE = Interval(-0.2, -0.3, -0.1), Interval(0.0, -0.1, 0.1)


def runs_of(labels, sessions, run):
    blocks = sessions // run
    return sorted(tuple(labels[blocks == number]) for number in np.unique(blocks))


@pytest.mark.parametrize(("per_session", "run"), [(3, 1), (1, 5), (1, 7)])
def test_runs_of_sessions_are_moved_as_a_whole(make_rows, per_session, run):
    rows = make_rows(sessions=35, per_session=per_session)
    rows = rows.with_labels(np.arange(len(rows), dtype=float), np.arange(len(rows)) / 10)
    found = shuffled(rows, run, 1, 1)
    assert found.inputs is rows.inputs
    assert runs_of(found.labels, rows.sessions, run) == runs_of(rows.labels, rows.sessions, run)
    assert (found.labels != rows.labels).mean() > 0.7
    assert found.weights == pytest.approx(found.labels / 10)


def test_no_label_is_lost_where_sessions_have_different_lengths(make_rows):
    rows = make_rows(sessions=20, per_session=3)
    kept = np.random.default_rng(1).random(60) < 0.7
    uneven = rows.head(20)
    uneven = type(rows)(
        *(getattr(uneven, name)[kept] for name in ("inputs", "places", "labels", "weights", "sessions")), rows.dates, 0
    )
    uneven = uneven.with_labels(np.arange(len(uneven), dtype=float), uneven.weights)
    found = shuffled(uneven, 1, 1, 1)
    assert sorted(found.labels) == uneven.labels.tolist()


def test_each_shuffle_is_another_and_comes_again(make_rows):
    rows = make_rows(sessions=40)
    rows = rows.with_labels(np.arange(40.0), rows.weights)
    one, same, other, seed = (shuffled(rows, 1, *way).labels for way in ((1, 1), (1, 1), (1, 2), (2, 1)))
    assert (one == same).all()
    assert (one != other).any()
    assert (one != seed).any()


def test_one_shuffle_is_enough_where_all_are_at_chance():
    found = run_placebos(lambda shuffle: {"a": CHANCE, "b": CHANCE})
    assert (found.alarms, found.gains) == ((), {"a": (CHANCE,), "b": (CHANCE,)})


def test_luck_in_one_shuffle_is_no_alarm():
    found = run_placebos(lambda shuffle: {"a": BETTER if shuffle == 1 else CHANCE, "b": CHANCE})
    assert found.alarms == ()
    assert found.gains["a"] == (BETTER, CHANCE)


def test_better_than_chance_each_time_is_an_alarm_of_that_model():
    found = run_placebos(lambda shuffle: {"a": BETTER, "b": CHANCE})
    assert found.alarms == ("a",)
    assert found.gains == {"a": (BETTER,) * 3, "b": (CHANCE,) * 3}


def test_few_sessions_raise_no_alarm():
    found = run_placebos(lambda shuffle: {"a": BETTER}, too_few=True)
    assert (found.alarms, found.too_few, found.gains) == ((), True, {"a": (BETTER,)})
