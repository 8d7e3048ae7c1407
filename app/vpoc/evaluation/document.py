"""The evaluation as plain JSON values: evaluation.json."""

from dataclasses import asdict
from typing import Any

import numpy as np

from vpoc.data.exchange.sessions import day
from vpoc.evaluation.all_folds import Evaluation, FoldResult, Outcome, Part, part_of
from vpoc.evaluation.bootstrap import LEVEL
from vpoc.evaluation.open_place import PLACES
from vpoc.evaluation.walk_forward import Fold, Lengths

Document = dict[str, Any]

EVALUATION_SCHEMA = 3
WEIGHTS = (
    "each label counts by its average uniqueness, a touch as 1 / the labels of its session, in training and in every "
    "score; labels of session rows count as 1"
)


def document(evaluation: Evaluation, asked: Lengths, replicates: int, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the whole evaluation; `facts`: the facts of its input, which come first."""
    plan, placebo, verdict = evaluation.plan, evaluation.placebo, evaluation.verdict
    return {
        "schema": EVALUATION_SCHEMA,
        "verdict": {**asdict(verdict), "sentence": verdict.sentence},
        **facts,
        "sample": {
            **_part(evaluation, part_of(evaluation.rows, 0, len(evaluation.rows.dates))),
            "open_places": _places(evaluation),
            "weights": WEIGHTS,
        },
        "plan": {
            "asked": asdict(asked),
            "used": asdict(plan.lengths),
            "lowered": plan.lowered,
            "purged_sessions": evaluation.rows.reach,
        },
        "bootstrap": {"replicates": replicates, "level": LEVEL},
        "folds": [_fold(evaluation, fold) for fold in evaluation.folds],
        "pooled": _outcome(evaluation, evaluation.pooled),
        "held_out": {**_trained(plan.held_out), **_outcome(evaluation, evaluation.held_out)},
        "placebo": {
            "gains": {name: [gain.as_json() for gain in gains] for name, gains in placebo.gains.items()},
            "better_than_chance": list(placebo.alarms),
            "too_few_sessions": placebo.too_few,
        },
    }


def _part(evaluation: Evaluation, part: Part) -> dict[str, Any]:
    dates = evaluation.rows.dates
    return {
        "sessions": part.stop - part.start,
        "rows": part.rows,
        "weight": part.weight,
        "first_date": day(dates[part.start]),
        "last_date": day(dates[part.stop - 1]),
        "rate": part.rate,
        "base_rate_accuracy": max(part.rate, 1 - part.rate),
    }


def _places(evaluation: Evaluation) -> dict[str, int]:
    counts = np.bincount(evaluation.rows.places, minlength=len(PLACES))
    return dict(zip(PLACES, counts.tolist(), strict=True))


def _fold(evaluation: Evaluation, result: FoldResult) -> dict[str, Any]:
    return {
        "trained": _part(evaluation, result.trained),
        "left_out_sessions": result.fold.start - result.fold.train_stop,
        "tested": _part(evaluation, result.tested),
        "models": result.models,
    }


def _trained(fold: Fold) -> dict[str, Any]:
    return {"trained_sessions": fold.train_stop, "left_out_sessions": fold.start - fold.train_stop}


def _outcome(evaluation: Evaluation, outcome: Outcome) -> dict[str, Any]:
    return {
        "tested": _part(evaluation, outcome.tested),
        "sessions_drawn_together": outcome.run,
        "models": {name: scores.as_json() for name, scores in outcome.models.items()},
        "network_less_baseline": {
            name: {score: interval.as_json() for score, interval in found.items()}
            for name, found in outcome.differences.items()
        },
        "p_values": {"beats_chance": outcome.beats_chance, "network_better": outcome.network_better},
    }
