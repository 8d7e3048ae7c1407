from dataclasses import replace

import numpy as np
import pytest

from vpoc.evaluation import all_folds as run
from vpoc.evaluation.all_folds import evaluate
from vpoc.evaluation.walk_forward import Fold, Lengths, plan

LENGTHS = Lengths(first=120, block=50, held_out=60)


def evaluated(rows, network, lengths=LENGTHS):
    return evaluate(rows, network, lengths, replicates=300, seed=1)


def poisoned(rows, start, stop):
    """Return the rows with inputs, places, labels and weights changed in sessions [start, stop)."""
    inside = (rows.sessions >= start) & (rows.sessions < stop)
    return replace(
        rows,
        inputs=np.where(inside[:, None], rows.inputs * -1000 + 5, rows.inputs),
        places=np.where(inside, 4, rows.places),
        labels=_turned(rows, start, stop),
        weights=np.where(inside, 7 * rows.weights, rows.weights),
    )


def test_a_planted_edge_is_found(make_rows, network):
    rows = make_rows(per_session=8, reach=0, edge=1.0)
    found = evaluated(rows, network(rows))
    assert (found.verdict.outcome, found.verdict.simplest) == ("edge", "linear"), found.verdict.sentence
    assert not found.verdict.network_adds
    assert found.pooled.models["network"].accuracy.low > 0.54
    assert found.placebo.alarms == ()


def test_nothing_is_found_where_there_is_nothing(make_rows, network):
    rows = make_rows()
    found = evaluated(rows, network(rows))
    assert found.verdict.outcome == "not-enough-sessions"
    assert found.placebo.alarms == ()


@pytest.mark.slow
def test_a_label_among_the_features_is_a_huge_edge(make_rows, network):
    rows = make_rows(per_session=8, reach=0)
    inputs = rows.inputs.copy()
    inputs[:, 12] = rows.labels
    rows = replace(rows, inputs=inputs)
    found = evaluated(rows, network(rows, epochs=8))
    assert found.verdict.outcome == "edge"
    assert found.pooled.models["network"].accuracy.low > 0.85
    assert found.pooled.differences["constant"]["log_loss"].high < -0.25
    assert found.placebo.alarms == ()


def fit_memoriser(inputs, labels, weights, seed):
    """Fit a model that remembers every row of its training exactly."""
    known = {row.tobytes(): label for row, label in zip(inputs, labels, strict=True)}
    return lambda given: np.array([0.1 + 0.8 * known.get(row.tobytes(), 0.5) for row in given])


def test_training_on_the_test_block_is_an_alarm(make_rows, in_place_of_network, monkeypatch):
    rows = make_rows()
    honest = evaluated(rows, in_place_of_network(rows, fit_memoriser))
    assert (honest.placebo.alarms, honest.verdict.outcome) == ((), "not-enough-sessions")

    def careless(sessions, asked, reach):
        found = plan(sessions, asked, reach)
        return replace(found, folds=tuple(Fold(fold.stop, fold.start, fold.stop) for fold in found.folds))

    monkeypatch.setattr(run, "plan", careless)
    found = evaluated(rows, in_place_of_network(rows, fit_memoriser))
    assert found.placebo.alarms == ("network",)
    assert (found.verdict.outcome, len(found.placebo.gains["network"])) == ("invalid", 3)


@pytest.mark.parametrize("reach", [0, 1])
def test_what_comes_after_the_training_sessions_changes_no_fitted_model(make_rows, network, reach):
    rows = make_rows(sessions=260, per_session=2, edge=0.5, reach=reach)
    fold = plan(260, LENGTHS, reach).folds[1]
    tested = rows.span(fold.start, fold.stop)
    # The inputs of the tested rows stay as they are; their labels change, and so does everything after them.
    other = poisoned(rows, fold.stop, 260)
    other = other.with_labels(_turned(other, fold.train_stop, fold.stop), other.weights)
    for later in (rows, other):
        models = run.all_models(later, network(later))
        answers = []
        for model in models:
            train = later.span(0, fold.train_stop)
            predict = model.fit(model.inputs[train], later.labels[train], later.weights[train], 1)
            answers.append(predict(model.inputs[tested]))
        if later is rows:
            wanted = answers
    for answer, expected in zip(answers, wanted, strict=True):
        assert (answer == expected).all()


@pytest.mark.slow
def test_scores_of_a_block_depend_on_nothing_but_training_sessions_and_the_block(make_rows, in_place_of_network):
    rows = make_rows(sessions=330, edge=0.5)
    whole = evaluated(rows, in_place_of_network(rows))
    fold = whole.plan.folds[0]
    assert (fold.train_stop, fold.start, fold.stop) == (114, 120, 170)
    between = rows.with_labels(_turned(rows, 114, 120), rows.weights)
    after = poisoned(rows, 170, 330)
    for other in (between, after):
        assert evaluated(other, in_place_of_network(other)).folds[0].models == whole.folds[0].models
        assert evaluated(other, in_place_of_network(other)).folds[1].models != whole.folds[1].models
    last = evaluated(rows.with_labels(_turned(rows, 113, 114), rows.weights), in_place_of_network(rows))
    for name, scores in last.folds[0].models.items():
        assert scores != whole.folds[0].models[name]


def _turned(rows, start, stop):
    """Return the labels, inverted in sessions [start, stop)."""
    return np.where((rows.sessions >= start) & (rows.sessions < stop), 1 - rows.labels, rows.labels)


def test_the_held_out_sessions_are_in_no_fold_and_no_placebo(make_rows, in_place_of_network):
    rows = make_rows(sessions=320, edge=0.5)
    whole = evaluated(rows, in_place_of_network(rows))
    start = whole.plan.held_out.start
    later = poisoned(rows, start, 320)
    other = evaluated(later, in_place_of_network(later))
    assert (other.folds, other.pooled, other.placebo) == (whole.folds, whole.pooled, whole.placebo)
    assert other.held_out != whole.held_out


def test_pooled_scores_are_those_of_all_blocks_by_weight(make_rows, in_place_of_network):
    rows = make_rows(sessions=320, per_session=3, edge=0.5)
    rows = rows.with_labels(rows.labels, np.random.default_rng(1).random(len(rows)) + 0.1)
    found = evaluated(rows, in_place_of_network(rows))
    weights = [fold.tested.weight for fold in found.folds]
    for name, scores in found.pooled.models.items():
        losses = [fold.models[name]["log_loss"] for fold in found.folds]
        assert scores.log_loss.value == pytest.approx(np.average(losses, weights=weights))
    assert sum(fold.tested.rows for fold in found.folds) == found.pooled.tested.rows


@pytest.mark.slow
def test_a_row_without_weight_neither_trains_nor_counts(make_rows, in_place_of_network):
    rows = make_rows(sessions=330, per_session=2, edge=0.5)
    weights = np.tile([1.0, 0.0], 330)
    one, other = (
        evaluated(rows.with_labels(np.where(weights > 0, rows.labels, silent), weights), in_place_of_network(rows))
        for silent in (0.0, 1.0)
    )
    for part in ("folds", "pooled", "held_out"):
        for name in ("constant", "conditional", "logistic", "network"):
            assert _score(one, part, name) == _score(other, part, name)


def _score(found, part, name):
    if part == "folds":
        return [fold.models[name] for fold in found.folds]
    scores = getattr(found, part).models[name]
    return scores.log_loss, scores.brier, scores.accuracy, scores.slope, scores.intercept


def test_the_same_arguments_give_the_same_numbers(make_rows, in_place_of_network):
    rows = make_rows(sessions=240, edge=0.5)
    assert evaluated(rows, in_place_of_network(rows)).pooled == evaluated(rows, in_place_of_network(rows)).pooled
