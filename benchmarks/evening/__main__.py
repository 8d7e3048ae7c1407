"""Simulates evenings of `make matrix-test` on a host with two GPUs; writes docs/evidence/evening-figures.md.

What is run next, what counts and what a verdict takes is the real code (`harness.search`, `harness.evidence`), on the
project's own matrix.yaml; clock, downloads and runs are synthetic, in worlds whose truth is known.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from functools import partial
from math import inf
from statistics import median

from benchmarks.evening.clock import (
    BESIDE_TRAINING,
    CRASH_SHARE,
    FEATURES_LIMIT,
    FIRST_STEP_LIMIT,
    HOUR,
    MINUTE,
    RESET_SECONDS,
    STEP_LIMIT,
    TRAINING,
)
from benchmarks.evening.simulated import BUDGET, Evening, evening, in_turn
from benchmarks.evening.worlds import HINDERED, SOUND, WORLDS, stacks
from benchmarks.pages import simulation
from harness.base.paths import CHECKOUT
from harness.campaign.planning.prepare import ASSUMED_BUILD_SECONDS

PAGE = CHECKOUT / "docs" / "evidence" / "evening-figures.md"
ANSWER_WITHIN, ANSWER_GB = 90 * MINUTE, 8.0
GOAL, WORLDS_TO_PASS = 0.9, 14


def shares(made: Sequence[Evening]) -> tuple[float, float]:
    """Return the shares of evenings whose answer is right, and of those that named something else."""
    return sum(one.right for one in made) / len(made), sum(one.wrong for one in made) / len(made)


def lines(worlds: Iterable[str], seeds: int, pool: Executor) -> Iterator[str]:
    """Yield a table: worlds, in stages and in turn."""
    yield "| world | right | another named | hours, 9 of 10 within | runs | trains on one GPU | in turn: right |"
    yield "|---|---|---|---|---|---|---|"
    for name in worlds:
        if sys.stderr.isatty():
            sys.stderr.write(f"{seeds} evenings: {name}\n")
        made = list(pool.map(partial(evening, name), range(seeds), chunksize=5))
        turns = list(pool.map(partial(in_turn, name), range(seeds), chunksize=5))
        right, wrong = shares(made)
        hours = sorted(one.seconds / HOUR for one in made)
        most = hours[min(len(hours) - 1, int(0.9 * len(hours)))]
        yield (
            f"| {name} | {right:.0%} | {wrong:.0%} | {median(hours):.1f}, {most:.1f} "
            f"| {median(one.runs for one in made):.0f} | {_first_answer(made)} | {shares(turns)[0]:.0%} |"
        )


def _first_answer(made: Sequence[Evening]) -> str:
    """Return when a cell first trained on one GPU, what was downloaded then, and how often both are within the goal."""
    answers = [(one.one_gpu_seconds or inf, one.one_gpu_gb or inf) for one in made]
    in_time = sum(seconds <= ANSWER_WITHIN and gigabytes <= ANSWER_GB for seconds, gigabytes in answers)
    seconds, gigabytes = (median(column) for column in zip(*answers, strict=True))
    said = "never" if seconds == inf else f"{seconds / MINUTE:.0f} min, {gigabytes:.1f} GB"
    return f"{said} ({in_time / len(made):.0%} in time)"


PAGE_TEXT = """\
# Figures on an evening of `make matrix-test`

`make bench-evening` wrote this page. It is a simulation: which run comes next, what counts, and what a verdict takes is
the real code, on the project's own matrix.yaml and its {stacks} ROCm stacks; clock, downloads and runs are synthetic,
on a host with two GPUs. Nothing here is about a GPU. [Running](../running.md#in-stages) says what is
decided, and how.

{seeds} evenings of each world, of {budget:g} hours at most. **Right**: the tier `good` is reached on two GPUs by a cell
that is, and it is named; or, where none is, none is named and every stack had its turn. **Another named**: one is
called good that is not. **Trains on one GPU**: when the first cell did that on real training, and how much was
downloaded by then; in time is within {within:.0f} minutes and {gigabytes:g} GB. **In turn**: the first version's way,
told to train on both GPUs: all stacks at once, then each cell of the selection in turn, round after round. It has no
time to show anything to be good, and so is right only where nothing is.

{table}

The goal: {goal:.0%} right in {to_pass} of the {worlds} worlds. Where only ROCm 6.x trains, its stack is the third to be
downloaded, and alone as large as those two and more: {gigabytes:g} GB do not reach that far.

Evenings on which no GPU can be reset, so that each is lost for the night with its first hang, and evenings with a
screen on one GPU, where right is what is good on the other one:

{hindered}

Without a reset the answer on two GPUs is lost with the first hang: the evening then goes on with the other GPU, if
there is one left, names nothing that uses both, and says which GPU is unhealthy.

## What is assumed

A download of 100 Mbit/s and {build:.0f} minutes to build a stack; {beside:.0f} s of a run beside training; of training
{quick:.0f} s (`quick`), {standard:.0f} s (`standard`), {endurance:.0f} minutes (`endurance`). A hang is found after
{features:.0f} s in the VPOC phase, after {first:.0f} s at the first step, after {step:.0f} s later; {crashes:.0%} of
failures are crashes. A GPU that hangs is reset in {reset:.0f} s; without a reset a hang takes all GPUs of its run. What
is sound starts {starts:.1%} of the time and runs {mtbf:.0f} h between failures.

Where everything hangs after an hour each stack would cost that hour, and ten hours are too short for nine of them: once
two failed so, the others have their turn on seconds of training before another is run for hours.
"""


def page(seeds: int, pool: Executor) -> str:
    """The page, as Markdown."""
    return PAGE_TEXT.format(
        stacks=len(stacks()),
        seeds=seeds,
        budget=BUDGET / HOUR,
        within=ANSWER_WITHIN / MINUTE,
        gigabytes=ANSWER_GB,
        table="\n".join(lines(WORLDS, seeds, pool)),
        hindered="\n".join(lines(HINDERED, seeds, pool)),
        goal=GOAL,
        to_pass=WORLDS_TO_PASS,
        worlds=len(WORLDS),
        build=ASSUMED_BUILD_SECONDS / MINUTE,
        beside=BESIDE_TRAINING,
        quick=TRAINING["quick"],
        standard=TRAINING["standard"],
        endurance=TRAINING["endurance"] / MINUTE,
        features=FEATURES_LIMIT,
        first=FIRST_STEP_LIMIT,
        step=STEP_LIMIT,
        crashes=CRASH_SHARE,
        reset=RESET_SECONDS,
        starts=SOUND.starts,
        mtbf=SOUND.mtbf,
    )


def main() -> None:
    """Simulate, and write the page."""
    simulation(__doc__, PAGE, "--seeds", "simulated evenings of a world", page, 100)


if __name__ == "__main__":
    main()
