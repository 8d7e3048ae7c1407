"""How often `vpoc evaluate` is right where it is known what is in the data: synthetic rows, with an edge or none.

    .cache/envs/cpu-test/bin/python -m benchmarks.planted_edges --seeds 100

Prints a line per kind of data: how often the answers were right, and which others came.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "app"))

from vpoc.evaluation.all_folds import evaluate
from vpoc.evaluation.models import ByNumber
from vpoc.evaluation.network import NetworkFit, training_options
from vpoc.evaluation.placebo import shuffled
from vpoc.evaluation.rows import LabelledRows
from vpoc.evaluation.verdict import Verdict
from vpoc.evaluation.walk_forward import Lengths
from vpoc.features.feature_options import FeatureOptions
from vpoc.features.table import NAMES
from vpoc.training.samples import Samples

FIRST, SECOND = 30, 3
"""Columns that tell something; neither is one of the three of the small regression."""
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
class Kind:
    """Data of `sessions` of so many rows, whose labels have the logit `logit` of the rows, and what is right to say."""

    sessions: int
    per_session: int
    logit: Callable[[np.ndarray], np.ndarray]
    right: Callable[[Verdict], bool]
    shuffle: bool = False


def _nothing(rows: np.ndarray) -> np.ndarray:
    return np.zeros(len(rows))


KINDS = {
    "linear": Kind(
        600,
        20,
        lambda rows: 0.5 * rows[:, FIRST],
        lambda found: (found.outcome, found.simplest, found.network_adds) == ("edge", "linear", False),
    ),
    "interaction": Kind(
        600,
        20,
        lambda rows: 2.0 * rows[:, FIRST] * rows[:, SECOND],
        lambda found: (found.outcome, found.simplest, found.network_adds) == ("edge", "network", True),
    ),
    "none": Kind(600, 20, _nothing, lambda found: found.outcome == "no-edge"),
    "none, few sessions": Kind(250, 1, _nothing, lambda found: found.outcome == "not-enough-sessions"),
    "tiny, few sessions": Kind(
        250, 1, lambda rows: 0.05 * rows[:, FIRST], lambda found: found.outcome == "not-enough-sessions"
    ),
    "shuffled labels": Kind(
        600, 20, lambda rows: 0.5 * rows[:, FIRST], lambda found: found.outcome == "no-edge", shuffle=True
    ),
}


def rows_of(kind: Kind, seed: int) -> LabelledRows:
    """Rows of the kind."""
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


def verdict(kind: Kind, seed: int) -> Verdict:
    """The answers of the evaluation on such data."""
    rows = rows_of(kind, seed)
    options = training_options(FeatureOptions(), "up_30", TRAINING)
    samples = Samples(
        inputs=rows.inputs,
        ends=np.arange(len(rows)),
        labels=rows.labels.astype(np.float32),
        weights=rows.weights.astype(np.float32),
        dates=rows.dates[rows.sessions].astype(np.int32),
    )
    network = ByNumber(NetworkFit(samples, samples, options, None, purge=rows.reach > 0))
    lengths = Lengths(first=kind.sessions // 2, block=kind.sessions // 8, held_out=kind.sessions // 8)
    return evaluate(rows, network, lengths, replicates=100, seed=seed).verdict


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="planted_edges", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--kind", choices=KINDS, action="append", help="only this; may be given several times")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    for name in chosen.kind or KINDS:
        kind = KINDS[name]
        found = [verdict(kind, seed) for seed in range(chosen.seeds)]
        right = sum(kind.right(one) for one in found)
        wrong = Counter((one.outcome, one.simplest, one.network_adds) for one in found if not kind.right(one))
        others = "".join(f"; {count} x {answer}" for answer, count in wrong.most_common())
        print(f"{name:<20} right in {right} of {len(found)}{others}", flush=True)


if __name__ == "__main__":
    main()
