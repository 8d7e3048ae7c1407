"""Measure how often `vpoc evaluate` is right on synthetic rows that are known to have an edge, or none.

    .cache/envs/cpu-test/bin/python -m benchmarks.planted_edges --seeds 100

Prints a line for each kind of data: how often the answers were right, and the wrong answers. A run over all kinds also
writes docs/evidence/planted-edges.md. `--answers FILE` stores each answer at once and does not compute stored answers
again, so that an interrupted run can be continued.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "app"))

from vpoc.evaluation.all_folds import evaluate
from vpoc.evaluation.network import NetworkFit, training_options
from vpoc.evaluation.placebo import shuffled
from vpoc.evaluation.rows import LabelledRows
from vpoc.evaluation.walk_forward import Lengths
from vpoc.features.feature_options import FeatureOptions
from vpoc.features.table import NAMES
from vpoc.training.inputs.samples import Samples

PAGE = Path(__file__).parents[1] / "docs" / "evidence" / "planted-edges.md"
NEEDED = 0.95
FIRST, SECOND = 30, 3
"""Columns that carry information; neither is among the three of the small regression."""
TRAINING = {
    "data": "none",
    "model": "mlp",
    "epochs": 15,
    "batch_size": 64,
    "learning_rate": 3e-3,
    "hidden_layers": (32, 16),
    "weight_decay": 0.01,
    "clip_norm": 1.0,
    "schedule": "constant",
    "keep": "best",
    "patience": 3,
    "seed": 1,
    "threads": 1,
    "device": "cpu",
}


@dataclass(frozen=True)
class Answer:
    """The part of a verdict that is judged here."""

    outcome: str
    simplest: str | None
    network_adds: bool | None


@dataclass(frozen=True)
class Kind:
    """A kind of data: `sessions` of `per_session` rows each, whose labels have the logit `logit`.

    `right`: whether an answer is right.
    `answer`: the right answer in the page's words.
    """

    sessions: int
    per_session: int
    logit: Callable[[np.ndarray], np.ndarray]
    right: Callable[[Answer], bool]
    answer: str
    shuffle: bool = False


def _nothing(rows: np.ndarray) -> np.ndarray:
    return np.zeros(len(rows))


KINDS = {
    "linear": Kind(
        600,
        20,
        lambda rows: 0.5 * rows[:, FIRST],
        lambda found: found == Answer("edge", "linear", network_adds=False),
        "an edge, of the linear model, to which the network adds nothing",
    ),
    "interaction": Kind(
        600,
        20,
        lambda rows: 2.0 * rows[:, FIRST] * rows[:, SECOND],
        lambda found: found == Answer("edge", "network", network_adds=True),
        "an edge, of the network alone",
    ),
    "none": Kind(600, 20, _nothing, lambda found: found.outcome == "no-edge", "no edge"),
    "none, few sessions": Kind(
        250, 1, _nothing, lambda found: found.outcome == "not-enough-sessions", "not enough sessions"
    ),
    "tiny, few sessions": Kind(
        250,
        1,
        lambda rows: 0.05 * rows[:, FIRST],
        lambda found: found.outcome == "not-enough-sessions",
        "not enough sessions",
    ),
    "shuffled labels": Kind(
        600, 20, lambda rows: 0.5 * rows[:, FIRST], lambda found: found.outcome == "no-edge", "no edge", shuffle=True
    ),
}


def rows_of(kind: Kind, seed: int) -> LabelledRows:
    """Return rows of the kind."""
    random = np.random.default_rng(seed)
    count = kind.sessions * kind.per_session
    inputs = random.normal(size=(count, len(NAMES))).astype(np.float32)
    chance = 1 / (1 + np.exp(-kind.logit(inputs.astype(np.float64))))
    rows = LabelledRows(
        inputs=inputs,
        places=random.integers(0, 4, count),
        labels=(random.random(count) < chance).astype(np.float64),
        weights=np.ones(count),
        sessions=np.repeat(np.arange(kind.sessions), kind.per_session),
        dates=np.arange(17_000, 17_000 + kind.sessions),
        reach=int(kind.per_session == 1),
    )
    return shuffled(rows, 1, seed, 1) if kind.shuffle else rows


def verdict(kind: Kind, seed: int) -> Answer:
    """Return the evaluation's answer on such data."""
    rows = rows_of(kind, seed)
    options = training_options(FeatureOptions(), "up_30", TRAINING)
    samples = Samples(
        inputs=rows.inputs,
        ends=np.arange(len(rows)),
        labels=rows.labels.astype(np.float32),
        weights=rows.weights.astype(np.float32),
        dates=rows.dates[rows.sessions].astype(np.int32),
    )
    network = NetworkFit(samples, samples, options, None, purge=rows.reach > 0)
    lengths = Lengths(first=kind.sessions // 2, block=kind.sessions // 8, held_out=kind.sessions // 8)
    found = evaluate(rows, network, lengths, replicates=100, seed=seed).verdict
    return Answer(found.outcome, found.simplest, found.network_adds)


class Answers:
    """The answers by kind and seed; if there is a `file`, it stores each as a line of JSON."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        lines = file.read_text(encoding="utf-8").splitlines() if file is not None and file.exists() else []
        found = (json.loads(line) for line in lines)
        self._known = {(name, seed): Answer(*answer) for name, seed, answer in found}

    def of(self, name: str, seed: int) -> Answer:
        """Return the answer on data of the kind `name` made with `seed`."""
        if (name, seed) not in self._known:
            answer = self._known[name, seed] = verdict(KINDS[name], seed)
            if self._file is not None:
                with self._file.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps([name, seed, list(vars(answer).values())]) + "\n")
        return self._known[name, seed]


def page(found: dict[str, list[Answer]]) -> str:
    """Return the page as Markdown."""
    lines = [
        "# Planted edges",
        "",
        f"Written by `python -m benchmarks.planted_edges` on {time.strftime('%Y-%m-%d')}: how often `vpoc evaluate`",
        f"answers right, by seed, on synthetic rows known to hold an edge or none. torch {torch.__version__},",
        f"{platform.machine()}, {os.cpu_count()} cores. The goal is {NEEDED:.0%} of each kind.",
        "",
        "| data | sessions | rows | right | answered so | met | other answers |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, answers in found.items():
        kind = KINDS[name]
        right = sum(map(kind.right, answers))
        met = "met" if right >= NEEDED * len(answers) else "**not met**"
        counted = f"{right} of {len(answers)}"
        rows = kind.sessions * kind.per_session
        cells = (name, kind.sessions, rows, kind.answer, counted, met, others(name, answers))
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, ""])


def others(name: str, answers: list[Answer]) -> str:
    """Return the wrong answers, and how often each was given."""
    wrong = Counter(answer for answer in answers if not KINDS[name].right(answer))
    told = (
        f"{count} x {answer.outcome}"
        + (f" of {answer.simplest}" if answer.simplest else "")
        + (", the network adds" if answer.network_adds else "")
        for answer, count in wrong.most_common()
    )
    return "; ".join(told) or "-"


def main() -> None:
    """Read the command line, evaluate, and write the page."""
    parser = argparse.ArgumentParser(prog="planted_edges", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--kind", choices=KINDS, action="append", help="only this; may be given several times")
    parser.add_argument("--answers", type=Path, help="file of the answers so far")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    answers = Answers(chosen.answers)
    found = {}
    for name in chosen.kind or KINDS:
        found[name] = [answers.of(name, seed) for seed in range(chosen.seeds)]
        right = sum(map(KINDS[name].right, found[name]))
        print(f"{name:<20} right in {right} of {chosen.seeds}; others: {others(name, found[name])}", flush=True)
    if not chosen.kind:
        PAGE.write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
