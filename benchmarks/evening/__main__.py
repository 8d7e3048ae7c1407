"""Simulate evenings of `make matrix-test` on a host with two GPUs; writes docs/evidence/evening-figures.md.

The real code (`harness.search`, `harness.evidence`) decides what runs next, what counts and what a verdict needs, on
the project's own matrix.yaml. Clock, downloads and runs are simulated, in worlds whose truth is known.
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
    """Return the share of evenings whose answer is right, and the share that named something else."""
    return sum(one.right for one in made) / len(made), sum(one.wrong for one in made) / len(made)


def lines(worlds: Iterable[str], seeds: int, pool: Executor) -> Iterator[str]:
    """Yield the table of worlds: evenings in stages, and with every cell in turn."""
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
    """Return when the first cell trained on one GPU, what was downloaded by then, and how often both meet the goal."""
    answers = [(one.one_gpu_seconds or inf, one.one_gpu_gb or inf) for one in made]
    in_time = sum(seconds <= ANSWER_WITHIN and gigabytes <= ANSWER_GB for seconds, gigabytes in answers)
    seconds, gigabytes = (median(column) for column in zip(*answers, strict=True))
    said = "never" if seconds == inf else f"{seconds / MINUTE:.0f} min, {gigabytes:.1f} GB"
    return f"{said} ({in_time / len(made):.0%} in time)"


PAGE_TEXT = """\
# Figures on an evening of `make matrix-test`

`make bench-evening` wrote this page. It is a simulation: the real code chooses the next run, counts runs and decides
verdicts, on the project's own matrix.yaml and its {stacks} ROCm stacks; clock, downloads and runs are synthetic,
on a host with two GPUs. Nothing here is about a GPU. [Running](../running.md#in-stages) explains how runs are chosen.

Each world has {seeds} evenings of {budget:g} hours at most. **Right**: the answer names a cell that is good on two
GPUs and reached the tier `good` there; or, if no cell is good there, it names none and every stack had its turn.
**Another named**: it names a cell as good that is not. **Trains on one GPU**: when a cell first completed real
training on one GPU, and how much was downloaded by then; in time means within {within:.0f} minutes and {gigabytes:g}
GB. **In turn**: the method of the first version, set to train on both GPUs. It makes all stacks at once, then runs
each cell of the selection in turn, round after round. It has no time to show that a cell is good, so it is right only
if none is.

{table}

The goal is {goal:.0%} right in {to_pass} of the {worlds} worlds. If only ROCm 6.x trains, its stack is the third to
be downloaded, and larger than the first two together: {gigabytes:g} GB are not enough for it.

The next table has evenings on which no GPU can be reset, so that the first hang of a GPU loses it for the night, and
evenings with a screen on one GPU, on which an answer is right if it is good on the other GPU:

{hindered}

Without a reset, the first hang makes an answer on two GPUs impossible: the evening continues with the other GPU, if
there is one left, names nothing that uses both, and says which GPU is unhealthy.

## What is assumed

Downloads run at 100 Mbit/s, and a stack takes {build:.0f} minutes to build. A run takes {beside:.0f} s besides
training, and training takes {quick:.0f} s (`quick`), {standard:.0f} s (`standard`) or {endurance:.0f} minutes
(`endurance`). A hang is found after {features:.0f} s in the VPOC phase, after {first:.0f} s at the first step, and
after {step:.0f} s later. {crashes:.0%} of failures are crashes. A GPU that hangs is reset in {reset:.0f} s; without a
reset, a hang loses all GPUs of its run. A sound cell starts {starts:.1%} of the time and runs {mtbf:.0f} h between
failures.

If everything hangs after an hour, each stack would cost that hour, and ten hours are too short for nine stacks. So
after two stacks failed in this way, the others have their turn with seconds of training before another stack runs for
hours.
"""


def page(seeds: int, pool: Executor) -> str:
    """Simulate, and return the page as Markdown."""
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
