"""Shuffled labels, in which there is nothing to find: a model that finds something there has seen the answers."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vpoc.data.prng import words
from vpoc.evaluation.bootstrap import Interval
from vpoc.evaluation.rows import LabelledRows

SHUFFLES = 3
"""One interval in forty excludes 0 on the good side by chance; three that do so mean that labels leak."""


@dataclass(frozen=True)
class Placebo:
    """The results on shuffled labels.

    `gains`: log-loss of each retrained model less that of the constant rate, by model and shuffle; below 0: better.
    `alarms`: models that were better than chance in every shuffle; empty if there are too few sessions to say.
    `too_few`: whether there are too few sessions.
    """

    gains: dict[str, tuple[Interval, ...]]
    alarms: tuple[str, ...]
    too_few: bool = False


def shuffled(rows: LabelledRows, run: int, seed: int, shuffle: int) -> LabelledRows:
    """Return `rows` with the labels, and their weights, of runs of `run` sessions in another order.

    Labels keep their neighbours within a run, so that overlapping labels still overlap.
    """
    block = rows.sessions // run
    blocks = int(block[-1]) + 1
    starts = np.searchsorted(block, np.arange(blocks + 1))
    order = words(seed, shuffle, blocks).argsort(kind="stable")
    source = np.concatenate([np.arange(starts[number], starts[number + 1]) for number in order])
    return rows.with_labels(rows.labels[source], rows.weights[source])


def run_placebos(gains_of: Callable[[int], dict[str, Interval]], *, too_few: bool = False) -> Placebo:
    """Shuffle once, and up to three times while some model scores better than chance each time.

    `gains_of` retrains on the labels of the shuffle with this number, from 1, and returns the models' gains.
    """
    gains: dict[str, tuple[Interval, ...]] = {}
    alarms: tuple[str, ...] = ()
    for shuffle in range(1, SHUFFLES + 1):
        found = gains_of(shuffle)
        gains = {name: (*gains.get(name, ()), gain) for name, gain in found.items()}
        alarms = tuple(name for name in gains if all(gain.high < 0 for gain in gains[name]))
        if too_few or not alarms:
            break
    return Placebo(gains, () if too_few else alarms, too_few)
