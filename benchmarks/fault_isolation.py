"""Simulate controls on hosts whose fault is known; writes docs/evidence/fault-isolation-figures.md.

The real code (`harness.search.fault_isolation`) decides; only the runs are simulated.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from math import log
from random import Random
from statistics import mean, median, quantiles

from scipy.optimize import linprog
from scipy.stats import binomtest

from benchmarks.pages import simulation
from harness.base.paths import CHECKOUT
from harness.search.fault_isolation import (
    CAMPAIGN_ERROR,
    FAULTY_RATE,
    MOST_RUNS,
    SOUND_RATE,
    Arm,
    Controls,
    FaultModel,
    Isolation,
    isolate,
    relative_entropy,
)

PAGE = CHECKOUT / "docs" / "evidence" / "fault-isolation-figures.md"
OWN_STACK = ("cell", "plain")
TOLD_GOAL = 0.8
# A GPU that heats up begins to fail after this many runs.
WARM_AFTER = 12
# The number of runs on the same GPU that fail for certain after a failed run.
BURST = 2

Answer = str
ALL_CONTROLS = Controls()


@dataclass(frozen=True)
class World:
    """A simulated host.

    `faults`: the number of faults that meet in an arm; each multiplies the arm's pass rate.
    `right`: the right answers.
    `drifts`: the faults begin only after WARM_AFTER runs.
    `bursts`: a failure is followed by BURST more on its GPU.
    """

    faults: Callable[[Arm], int]
    right: frozenset[Answer]
    sound: float = SOUND_RATE
    faulty: float = FAULTY_RATE
    controls: Controls = ALL_CONTROLS
    drifts: bool = False
    bursts: bool = False

    def rate(self, arm: Arm) -> float:
        """Return the pass rate of an arm."""
        faults = self.faults(arm)
        return self.faulty**faults if faults else self.sound


def world(faults: Callable[[Arm], int], *right: Answer, **more: float | Controls | bool) -> World:
    """Return a world with these right answers."""
    return World(faults, frozenset(right), **more)  # type: ignore[arg-type]


def of_cell(arm: Arm) -> int:
    """Return the number of faults of an arm if a preset is bad."""
    return arm.unit == "cell"


def of_stack(arm: Arm) -> int:
    """Return the number of faults of an arm if a stack is bad."""
    return arm.unit in OWN_STACK


def of_gpu(arm: Arm) -> int:
    """Return the number of faults of an arm if a GPU is bad."""
    return arm.gpu == 0


def of_host(_arm: Arm) -> int:
    """Return the number of faults of an arm if the host is bad."""
    return 1


def of_none(_arm: Arm) -> int:
    """Return the number of faults of an arm if nothing is at fault."""
    return 0


# The goal is about these worlds.
WORLDS: Mapping[str, World] = {
    "one bad preset": world(of_cell, "cell"),
    "one bad stack": world(of_stack, "stack"),
    "one bad GPU of two": world(of_gpu, "gpu"),
    "the other GPU is bad": world(lambda arm: arm.gpu == 1, "other-gpu"),
    "a bad host": world(of_host, "host"),
    "all fine": world(of_none, "sound"),
    "a bad preset on a bad GPU": world(lambda arm: of_cell(arm) + of_gpu(arm), "cell", "gpu"),
    "a bad stack on a bad GPU": world(lambda arm: of_stack(arm) + of_gpu(arm), "stack", "gpu"),
}
HIDDEN: Mapping[str, World] = {
    "the preset fails on one GPU only": world(lambda arm: of_cell(arm) * of_gpu(arm), "cell"),
    "the stack fails on one GPU only": world(lambda arm: of_stack(arm) * of_gpu(arm), "stack"),
    "the other stack is bad": world(lambda arm: arm.unit == "other-plain", "sound"),
    "the preset and the other stack are bad": world(lambda arm: arm.unit != "plain", "cell"),
    "only `plain` is bad": world(lambda arm: arm.unit == "plain", "sound"),
    "the preset avoids what is bad in both stacks": world(lambda arm: arm.unit != "cell", "sound"),
}
FEWER: Mapping[str, World] = {
    "one GPU: bad preset": world(of_cell, "cell", controls=Controls(other_gpu=False)),
    "one GPU: bad stack": world(of_stack, "stack", controls=Controls(other_gpu=False)),
    "one GPU: it or the host is bad": world(of_host, "host", controls=Controls(other_gpu=False)),
    "one stack: bad preset": world(of_cell, "cell", controls=Controls(other_stack=False)),
    "one stack: bad GPU": world(of_gpu, "gpu", controls=Controls(other_stack=False)),
    "one stack: it or the host is bad": world(of_host, "host", controls=Controls(other_stack=False)),
    "the cell is `plain`: bad stack": world(of_stack, "stack", controls=Controls(cell=False)),
    "the cell is `plain`: bad GPU": world(of_gpu, "gpu", controls=Controls(cell=False)),
}
# Worlds outside of the claim: other rates, and runs that depend on earlier runs.
OUTSIDE: Mapping[str, World] = {
    "bad preset, always fails; the rest .99": world(of_cell, "cell", sound=0.99, faulty=0.0),
    "bad preset .5, the rest .9": world(of_cell, "cell", sound=0.9),
    "bad GPU .5, the rest .9": world(of_gpu, "gpu", sound=0.9),
    "bad preset .7, the rest .95": world(of_cell, "cell", faulty=0.7),
    "bad GPU .8, the rest .99": world(of_gpu, "gpu", sound=0.99, faulty=0.8),
    "everything .9": world(of_none, "sound", "host", sound=0.9),
    "everything .8": world(of_none, "sound", "host", sound=0.8),
    "everything .7": world(of_none, "sound", "host", sound=0.7),
    "bad host, from the 13th run on": world(of_host, "host", drifts=True),
    "bad GPU, from the 13th run on": world(of_gpu, "gpu", drifts=True),
    "bad preset, each failure followed by two on its GPU": world(of_cell, "cell", bursts=True),
    "bad GPU, each failure followed by two on it": world(of_gpu, "gpu", bursts=True),
    "all fine, each failure followed by two on its GPU": world(of_none, "sound", bursts=True),
}


def simulate(of: World, seed: int) -> Isolation:
    """Let the controls choose the runs, and chance decide how each run ends."""
    chance, runs, poisoned = Random(f"world {seed}"), 0, Counter[int]()

    def run(arm: Arm) -> bool:
        nonlocal runs
        runs += 1
        if poisoned[arm.gpu]:
            poisoned[arm.gpu] -= 1
            return False
        passed = chance.random() < (of.sound if of.drifts and runs <= WARM_AFTER else of.rate(arm))
        poisoned[arm.gpu] = BURST * (of.bursts and not passed)
        return passed

    return isolate(of.controls, run, MOST_RUNS, CAMPAIGN_ERROR, seed)


def fewest_runs(of: World) -> float:
    """Return a lower bound of the mean number of runs for any way of choosing and reading runs, at rates .95 and .5.

    The bound holds for every method that names a right cause with probability TOLD_GOAL at least and a wrong cause with
    CAMPAIGN_ERROR at most, even if the method knows both rates. The runs must distinguish the world from each set of
    faults without that cause: the sum over arms of the mean number of runs times the relative entropy of the arm's two
    rates must be at least the relative entropy of the two probabilities (Garivier and Kaufmann 2016, "Optimal best arm
    identification with fixed confidence", lemma 1). The result is the smallest sum of runs that satisfies this, by
    linear programming.
    """
    causes = FaultModel(of.controls).causes
    true = frozenset(arm for arm in of.controls.arms if of.faults(arm))
    goal, error = TOLD_GOAL, CAMPAIGN_ERROR
    needed = goal * log(goal / error) + (1 - goal) * log((1 - goal) / (1 - error))
    rivals = [[one for one in causes if cause not in causes[one]] for cause in causes[true]]

    def least(against: Sequence[frozenset[Arm]]) -> float:
        told_by = [
            [-relative_entropy(faulty=arm in true) * (arm in true ^ one) for arm in of.controls.arms] for one in against
        ]
        return float(linprog([1.0] * len(of.controls.arms), A_ub=told_by, b_ub=[-needed] * len(told_by)).fun)

    return min(least(against) for against in rivals or [[one for one in causes if causes[one]]])


def answer(isolation: Isolation) -> Answer | None:
    """Return the answer of an isolation; None if it named nothing."""
    return isolation.cause or ("sound" if isolation.sound else None)


def lines(pool: Executor, worlds: Mapping[str, World], campaigns: int, *, bound: bool = True) -> Iterator[str]:
    """Yield a table: how often the controls named a cause in each world, and a wrong one; `bound`: with fewest runs."""
    fewest = " fewest possible |" if bound else ""
    yield f"| at fault | told | wrong | runs: mean | median | 9 of 10 within |{fewest} said |"
    yield f"| --- | --- | --- | --- | --- | --- |{' --- |' * bound} --- |"
    for name, of in worlds.items():
        if sys.stderr.isatty():
            sys.stderr.write(f"{campaigns} campaigns: {name}\n")
        results = list(pool.map(partial(_simulated, name), range(campaigns), chunksize=20))
        answers = Counter(one for one, _ in results if one)
        wrong = sum(count for one, count in answers.items() if one not in of.right)
        most = binomtest(wrong, campaigns, alternative="less").proportion_ci(0.95).high
        runs = [runs for _, runs in results]
        all_said = ", ".join(f"{one} {count / campaigns:.1%}" for one, count in answers.most_common())
        fewest = f" {fewest_runs(of):.0f} |" if bound else ""
        yield (
            f"| {name} | {answers.total() / campaigns:.0%} | {wrong / campaigns:.1%} (< {most:.1%}) | {mean(runs):.0f} "
            f"| {median(runs):.0f} | {_most(runs):.0f} |{fewest} {all_said} |"
        )


def _simulated(name: str, seed: int) -> tuple[Answer | None, int]:
    # The world is passed by name, because not every world can be pickled.
    isolation = simulate({**WORLDS, **HIDDEN, **FEWER, **OUTSIDE}[name], seed)
    return answer(isolation), isolation.runs


def _most(runs: Sequence[int]) -> float:
    return quantiles(runs, n=10)[-1]


PAGE_TEXT = """\
# Figures on controls

`make bench-fault-isolation` wrote this page, with {campaigns:,} simulated campaigns for each row. The real code
decides; the runs are simulated. Nothing here is about a GPU. [Verdicts](../verdicts.md#cell-stack-gpu-or-host)
explains how the controls are chosen.

Here, sound parts pass {sound:.0%} of their runs, a part at fault passes {faulty:.0%}, and two faults at once pass
{both:.0%}. Each campaign makes new runs of the cell, of its stack's `plain` and of another stack's `plain`, each on
two GPUs, {most} runs at most. Told: a cause was named, or that nothing fails (`sound`). The goal is an answer (told)
in at least 80 % of the campaigns and a wrong one in at most {error:.0%}; the brackets give the upper bound of that
share with 95 % confidence. Fewest possible: no way to choose and read runs that reaches the goal needs fewer runs on
average, even if it knows both rates (`fewest_runs` in the program explains why).

{worlds}

## Faults that are harder to see

{hidden}

## Fewer controls

With one GPU, or without another stack, the answer `host` covers everything that the runs have in common.

{fewer}

## Where the model does not hold

The bound on wrong answers holds if sound arms pass at least {sound:.0%} of their runs and faulty arms at most
{faulty:.0%}, with any rate for each arm, and if runs do not depend on earlier runs. These worlds break these
conditions.

{outside}
"""


def page(campaigns: int, pool: Executor) -> str:
    """Simulate, and return the page as Markdown."""
    tables = [
        "\n".join(lines(pool, worlds, campaigns, bound=worlds is not OUTSIDE))
        for worlds in (WORLDS, HIDDEN, FEWER, OUTSIDE)
    ]
    return PAGE_TEXT.format(
        campaigns=campaigns,
        sound=SOUND_RATE,
        faulty=FAULTY_RATE,
        both=FAULTY_RATE**2,
        most=MOST_RUNS,
        error=CAMPAIGN_ERROR,
        worlds=tables[0],
        hidden=tables[1],
        fewer=tables[2],
        outside=tables[3],
    )


def main() -> None:
    """Simulate, and write the page."""
    simulation(__doc__, PAGE, "--campaigns", "simulated campaigns of each row", page, 1000)


if __name__ == "__main__":
    main()
