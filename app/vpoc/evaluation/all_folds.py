"""The evaluation: every model in every fold, pooled and held out, then the placebos, then the verdict."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vpoc.arrays import Floats
from vpoc.evaluation.bootstrap import FEWEST_RUNS, Bootstrap, Interval, run_length
from vpoc.evaluation.forecast_tests import p_beats_chance, p_better
from vpoc.evaluation.models import BASELINES, Fitter, Model, all_models
from vpoc.evaluation.placebo import Placebo, run_placebos, shuffled
from vpoc.evaluation.rows import LabelledRows
from vpoc.evaluation.scores import Scores, differences, plain_scores, scores
from vpoc.evaluation.verdict import CONSTANT, NETWORK, Compared, Verdict, decide
from vpoc.evaluation.walk_forward import Fold, Lengths, Plan, plan
from vpoc.terminal import watched

RETRAINED = ("constant", "logistic", NETWORK)
"""Models that are trained on shuffled labels; the first one scores what chance does."""


@dataclass(frozen=True)
class Part:
    """Sessions [start, stop) of the rows: their number of rows, their weight, and the rate of 1 among the labels.

    Always giving the majority answer has an accuracy of max(rate, 1 - rate).
    """

    start: int
    stop: int
    rows: int
    weight: float
    rate: float


@dataclass(frozen=True)
class FoldResult:
    """Scores of each model in the test block of one fold, by model and score."""

    fold: Fold
    trained: Part
    tested: Part
    models: dict[str, dict[str, float]]


@dataclass(frozen=True)
class Outcome:
    """Scores of each model over `tested`, and the network's differences to each baseline, with intervals.

    `beats_chance`: p-values by model, without the constant rate.
    `network_better`: p-values by baseline.
    """

    tested: Part
    run: int
    models: dict[str, Scores]
    differences: dict[str, dict[str, Interval]]
    beats_chance: dict[str, float]
    network_better: dict[str, float]


@dataclass(frozen=True)
class Evaluation:
    """The results of an evaluation."""

    rows: LabelledRows
    plan: Plan
    folds: tuple[FoldResult, ...]
    pooled: Outcome
    held_out: Outcome
    placebo: Placebo
    verdict: Verdict


def evaluate(rows: LabelledRows, network: Fitter, lengths: Lengths, *, replicates: int, seed: int) -> Evaluation:
    """Evaluate `network` beside the baselines; the same arguments give the same numbers.

    `replicates`: the number of bootstrap replicates. UserError when there are too few sessions for three folds.
    """
    planned = plan(len(rows.dates), lengths, rows.reach)
    folds = (*planned.folds, planned.held_out)
    predicted = _predict(rows, all_models(rows, network), folds, seed, "folds")
    blocks = {name: parts[:-1] for name, parts in predicted.items()}
    pooled = _outcome(
        rows,
        Fold(0, planned.folds[0].start, planned.folds[-1].stop),
        {name: np.concatenate(parts) for name, parts in blocks.items()},
        replicates,
        seed,
    )
    held_out = _outcome(
        rows, planned.held_out, {name: parts[-1] for name, parts in predicted.items()}, replicates, seed
    )
    placebo = _placebo(rows.head(planned.held_out.start), network, planned.folds, replicates, seed)
    return Evaluation(
        rows=rows,
        plan=planned,
        folds=tuple(_fold_result(rows, fold, number, blocks) for number, fold in enumerate(planned.folds)),
        pooled=pooled,
        held_out=held_out,
        placebo=placebo,
        verdict=decide(_compared(pooled), _compared(held_out), placebo),
    )


def _predict(
    rows: LabelledRows, models: Sequence[Model], folds: Sequence[Fold], seed: int, label: str
) -> dict[str, list[Floats]]:
    """Return predictions for the test block of each fold, by model, each fitted only on that fold's training rows."""
    found: dict[str, list[Floats]] = {model.name: [] for model in models}
    jobs = [(model, fold) for fold in folds for model in models]
    for model, fold in watched(jobs, label, len(jobs)):
        train, test = rows.span(0, fold.train_stop), rows.span(fold.start, fold.stop)
        predict = model.fit(model.inputs[train], rows.labels[train], rows.weights[train], seed)
        found[model.name].append(predict(model.inputs[test]))
    return found


def _placebo(rows: LabelledRows, network: Fitter, folds: Sequence[Fold], replicates: int, seed: int) -> Placebo:
    block = Fold(0, folds[0].start, folds[-1].stop)
    span = rows.span(block.start, block.stop)
    run = run_length(block.stop - block.start, rows.reach)
    bootstrap = Bootstrap.draw(block.stop - block.start, run, replicates, seed)

    def gains_of(shuffle: int) -> dict[str, Interval]:
        made = shuffled(rows, run, seed, shuffle)
        models = [model for model in all_models(made, network) if model.name in RETRAINED]
        found = _predict(made, models, folds, seed, f"placebo {shuffle}")
        whole = {name: np.concatenate(parts) for name, parts in found.items()}
        chance = whole.pop("constant")
        return {name: differences(made, span, p, chance, bootstrap)["log_loss"] for name, p in whole.items()}

    return run_placebos(gains_of, too_few=bootstrap.runs < FEWEST_RUNS)


def _outcome(rows: LabelledRows, block: Fold, predicted: dict[str, Floats], replicates: int, seed: int) -> Outcome:
    span = rows.span(block.start, block.stop)
    run = run_length(block.stop - block.start, rows.reach)
    bootstrap = Bootstrap.draw(block.stop - block.start, run, replicates, seed)
    return Outcome(
        tested=part_of(rows, block.start, block.stop),
        run=run,
        models={name: scores(rows, span, p, bootstrap) for name, p in predicted.items()},
        differences={
            name: differences(rows, span, predicted[NETWORK], predicted[name], bootstrap) for name in BASELINES
        },
        beats_chance={
            name: p_beats_chance(rows, span, found, predicted[CONSTANT], run)
            for name, found in predicted.items()
            if name != CONSTANT
        },
        network_better={name: p_better(rows, span, predicted[NETWORK], predicted[name], run) for name in BASELINES},
    )


def _fold_result(rows: LabelledRows, fold: Fold, number: int, blocks: dict[str, list[Floats]]) -> FoldResult:
    span = rows.span(fold.start, fold.stop)
    return FoldResult(
        fold=fold,
        trained=part_of(rows, 0, fold.train_stop),
        tested=part_of(rows, fold.start, fold.stop),
        models={name: plain_scores(rows, span, parts[number]) for name, parts in blocks.items()},
    )


def part_of(rows: LabelledRows, start: int, stop: int) -> Part:
    """The sessions [start, stop) of `rows`."""
    span = rows.span(start, stop)
    weight = float(rows.weights[span].sum())
    rate = float((rows.weights[span] * rows.labels[span]).sum()) / weight
    return Part(start, stop, span.stop - span.start, weight, rate)


def _compared(outcome: Outcome) -> Compared:
    return Compared(
        sessions=outcome.tested.stop - outcome.tested.start,
        labels=outcome.tested.weight,
        run=outcome.run,
        log_loss={name: scores.log_loss.value for name, scores in outcome.models.items()},
        beats_chance=outcome.beats_chance,
        network_better=outcome.network_better,
    )
