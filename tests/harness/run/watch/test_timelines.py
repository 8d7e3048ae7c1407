"""Tests of the watchdog's limits: healthy and hanging trainings of many shapes, replayed in simulated time."""

import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pytest

from harness.evidence.app_reports.step_position import Position
from harness.evidence.files.app_files import Phase, Progress, Wait
from harness.run.watch.limits import Limits, limits_of
from harness.run.watch.watchdog import Watchdog
from tests.harness.run.watch.test_limits import line

OUTSIDE, WAITING, BACKWARD, EXCHANGE = 0, 1, 3, 4
HEALTHY, HANGS = (1000, 200) if os.environ.get("LONG") else (400, 100)


@dataclass(frozen=True)
class Moment:
    """The moment `at`, in seconds, at which a rank writes `line`; the rank is at `position` from then on."""

    at: float
    line: Progress
    position: Position | None = None


@dataclass(frozen=True)
class Shape:
    """The seconds that each part of a training takes, as random draws. `first`: the step that it resumes from."""

    step: Callable[[random.Random, int], float] = lambda draw, _: draw.uniform(0.01, 0.4)
    first_step: Callable[[random.Random], float] = lambda draw: draw.uniform(1, 20)
    new_workers: Callable[[random.Random], float] = lambda draw: draw.uniform(0, 5)
    validate: Callable[[random.Random], float] = lambda draw: draw.uniform(1, 20)
    checkpoint: Callable[[random.Random], float] = lambda draw: draw.uniform(0, 2)
    data: Callable[[random.Random], float] = lambda draw: draw.uniform(1, 60)
    first: int = 0
    ranks: int = 1
    models: int = 1


SHAPES: Mapping[str, Shape] = {
    "even": Shape(),
    "every third step takes 30 s": Shape(step=lambda draw, step: 29.9 if step % 3 == 2 else draw.uniform(0.01, 0.1)),
    "steps of a minute": Shape(step=lambda draw, _: draw.uniform(40, 100)),
    "heavy tail": Shape(step=lambda draw, _: min(25.0, 0.05 * draw.paretovariate(1.0))),
    "a first step of 150 s": Shape(first_step=lambda draw: draw.uniform(120, 200)),
    "resumed": Shape(first=40, first_step=lambda draw: draw.uniform(1, 200)),
    "slow checkpoints": Shape(checkpoint=lambda draw: draw.uniform(30, 110)),
    "slow validation": Shape(validate=lambda draw: draw.uniform(60, 110)),
    "slow new workers": Shape(new_workers=lambda draw: draw.uniform(30, 110)),
    "a slow disk": Shape(data=lambda draw: draw.uniform(60, 115), checkpoint=lambda draw: draw.uniform(1, 100)),
    "two ranks": Shape(ranks=2, checkpoint=lambda draw: draw.uniform(1, 100)),
    "two models": Shape(models=2, first_step=lambda draw: draw.uniform(1, 120)),
}


def training(shape: Shape, draw: random.Random, epochs: int = 3, steps: int = 25) -> list[Moment]:
    """Return the moments of a training: its ranks step together, and only the first one writes checkpoints."""
    now = 0.0
    moments: list[Moment] = []

    def all_ranks(phase: Phase, done: int, stage: int, step: int) -> None:
        moments.extend(Moment(now, line(phase, done, rank), Position(step, stage)) for rank in range(shape.ranks))

    for phase, seconds in (("import", draw.uniform(1, 50)), ("init", draw.uniform(0, 50)), ("data", shape.data(draw))):
        all_ranks(phase, 0, OUTSIDE, 0)  # type: ignore[arg-type]
        now += seconds
    for _ in range(shape.models):
        done = shape.first
        all_ranks("step" if done else "first-step", done, WAITING, done + 1)
        now += shape.first_step(draw)
        for epoch in range(epochs):
            for number in range(steps):
                done += 1
                all_ranks("step", done, OUTSIDE, done)
                now += shape.step(draw, number)
            all_ranks("validate", 0, OUTSIDE, done)
            now += shape.validate(draw)
            moments.append(Moment(now, line("checkpoint", done), Position(done, OUTSIDE)))
            waiting = Position(done + 1, EXCHANGE)
            moments.extend(Moment(now, line("step", done, rank), waiting) for rank in range(1, shape.ranks))
            now += shape.checkpoint(draw)
            moments.append(Moment(now, line("step", done), Position(done + 1, WAITING)))
            now += shape.new_workers(draw) if epoch < epochs - 1 else 0.0
    all_ranks("teardown", 0, OUTSIDE, done)
    return moments


def alarms(moments: Sequence[Moment], limits: Limits) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Yield each moment just before which ranks are late, in seconds, with those ranks."""
    positions: dict[int, Position] = {}
    dog = Watchdog(0, limits, positions.get)
    now = 0.0
    for moment in moments:
        if moment.at > now and (late := dog.late(moment.at - 1e-6)):
            yield moment.at, tuple(one.rank for one in late)
        now = moment.at
        dog.saw(moment.line, now)
        if moment.position:
            positions[moment.line.rank] = moment.position


def known(moments: Sequence[Moment]) -> Mapping[Wait, float]:
    dog = Watchdog(0, limits_of([], "cpu"), lambda _: None)
    for moment in moments:
        dog.saw(moment.line, moment.at)
    return dog.longest_stall(moments[-1].at)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("runs", [0, 5])
@pytest.mark.parametrize("name", SHAPES)
def test_no_healthy_training_alarms(name: str, runs: int, device: str) -> None:
    shape = SHAPES[name]
    for seed in range(-(-HEALTHY // (4 * len(SHAPES)))):
        draw = random.Random(f"{name} {seed}")
        history = [known(training(shape, draw)) for _ in range(runs)]
        limits = limits_of(history, "cuda" if device == "cuda" else "cpu")
        assert list(alarms(training(shape, draw), limits)) == []


def is_steady(moment: Moment, shape: Shape) -> bool:
    """Return whether rank 0 has just made a step, other than the first step of its process."""
    made = moment.line.phase == "step" and moment.position is not None and moment.position.stage == OUTSIDE
    return made and moment.line.rank == 0 and moment.line.done > shape.first + 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["even", "resumed", "two ranks", "two models"])
def test_every_hang_in_a_steady_step_is_reported_after_30_s_with_its_rank(name: str) -> None:
    shape = SHAPES[name]
    for seed in range(HANGS // 4):
        draw = random.Random(f"{name} hangs {seed}")
        limits = limits_of([known(training(shape, draw)) for _ in range(5)], "cuda")
        moments = training(shape, draw)
        steady = [at for at, one in enumerate(moments) if is_steady(one, shape)]
        at = draw.choice(steady)
        guilty = draw.randrange(shape.ranks)
        before, began = moments[: at + shape.ranks], moments[at + shape.ranks - 1].at
        step = moments[at].line.done + 1
        stages = {rank: BACKWARD if rank == guilty else EXCHANGE for rank in range(shape.ranks)}
        positions = {rank: Position(step, stage) for rank, stage in stages.items()}
        dog = Watchdog(0, limits, positions.get)
        for moment in before:
            dog.saw(moment.line, moment.at)
        assert dog.late(began + 29.9) == ()
        assert {one.rank for one in dog.late(began + 30.1)} == set(range(shape.ranks))
        assert min(positions, key=lambda rank: positions[rank].order) == guilty
