"""Watch healthy and hanging runs of many shapes, in real time and in parallel: real processes that mostly sleep.

The watchdog, its limits and its evidence are real; the watched program is benchmarks/shaped_ranks.py.
"""

import json
import multiprocessing
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.environments.executors.job import Job
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.files.run_folder import RunFolder
from harness.faults.injection import seconds_to_find
from harness.run.watch.limits import RUNS_FOR_KNOWN_LIMITS, limits_of
from harness.run.watch.watch import Watch

RANKS = Path(__file__).with_name("shaped_ranks.py")
MOST_SECONDS = 900
Part = tuple[str, Any]
Draw = random.Random


def even(draw: Draw, count: int = 60) -> list[float]:
    """Return the seconds of steps that take about equally long."""
    return [draw.uniform(0.05, 0.1) for _ in range(count)]


@dataclass(frozen=True)
class Shape:
    """The parts of a training, drawn again for each run; `first`: the number of steps made before."""

    parts: Callable[[Draw], Sequence[Part]]
    ranks: int = 1
    first: int = 0


def usual(draw: Draw, **changed: Any) -> list[Part]:
    """Return the parts of two epochs; the named parts in `changed` replace the usual ones, which are quick."""
    steps, more = changed.get("step", even(draw)), changed.get("step", even(draw))
    after = [("validate", changed.get("validate", 0.3)), ("checkpoint", changed.get("checkpoint", 0.2))]
    began: list[Part] = [
        ("import", changed.get("import", 0.5)),
        ("data", changed.get("data", 0.5)),
        ("step" if changed.get("resumed") else "first-step", changed.get("first-step", 0.3)),
    ]
    if changed.get("resumed"):
        # A resumed training is in phase `step` from its first step on, which takes as long as any first step.
        began[-1] = ("step", [changed.get("first-step", 0.3)])
    return [*began, ("step", steps), *after, ("new-workers", changed.get("new-workers", 0.2)), ("step", more), *after]


SHAPES: Mapping[str, Shape] = {
    "even steps": Shape(usual),
    "steps of 2 ms": Shape(lambda draw: usual(draw, step=[0.002] * 3000)),
    "every third step takes 25 s": Shape(
        lambda draw: usual(draw, step=[25.0 if n % 3 == 2 else 0.05 for n in range(9)])
    ),
    "steps of 40 to 60 s": Shape(
        lambda draw: usual(draw, **{"first-step": 50.0, "step": [draw.uniform(40, 60) for _ in range(3)]})
    ),
    "a heavy tail": Shape(
        lambda draw: usual(draw, step=[min(25.0, 0.05 * draw.paretovariate(1.0)) for _ in range(60)])
    ),
    "a first step of 2 min or more": Shape(lambda draw: usual(draw, **{"first-step": draw.uniform(120, 200)})),
    "resumed, its first step slow": Shape(
        lambda draw: usual(draw, resumed=True, **{"first-step": draw.uniform(20, 28)}), first=40
    ),
    "checkpoints of 1 to 2 min": Shape(lambda draw: usual(draw, checkpoint=draw.uniform(60, 110))),
    "validation of 1 to 2 min": Shape(lambda draw: usual(draw, validate=draw.uniform(60, 110))),
    "a slow disk": Shape(
        lambda draw: usual(draw, data=draw.uniform(60, 110), checkpoint=draw.uniform(10, 60), **{"new-workers": 40.0})
    ),
    "two ranks, one writes checkpoints of 1 min": Shape(lambda draw: usual(draw, checkpoint=60.0), ranks=2),
    "stopped for 10 to 25 s": Shape(
        lambda draw: [*usual(draw), ("step", even(draw)), ("pause", draw.uniform(10, 25)), ("step", even(draw))]
    ),
}
# Runs in which each kind of hang happens: number of ranks, and steps made before.
HANGING: Sequence[tuple[int, int]] = ((1, 0), (2, 0), (1, 40), (2, 40))
KINDS = {
    "wait": "waits for ever in a step",
    "exchange": "never joins the exchange",
    "hold-gil": "keeps Python's lock in C for ever",
    "stop": "is stopped (SIGSTOP)",
}


@dataclass(frozen=True)
class Asked:
    """One run to watch: its plan, the name it is counted under, and whether five quick runs are known."""

    name: str
    plan: Mapping[str, Any]
    known: bool


@dataclass(frozen=True)
class Seen:
    """The watchdog's finding; `seconds`: from the last step to the finding, None if nothing hung."""

    asked: Asked
    stopped_by: str | None
    detail: str
    seconds: float | None

    @property
    def right_rank(self) -> bool:
        """Return whether the hanging rank is named first."""
        wanted = self.asked.plan["hang"]
        return bool(wanted) and self.detail.startswith(f"rank {wanted['rank']} ")


def healthy_runs(count: int) -> Iterator[Asked]:
    """Yield `count` plans of the shapes in turn, every second round as if five quick runs were known."""
    for number in range(count):
        name = list(SHAPES)[number % len(SHAPES)]
        shape = SHAPES[name]
        parts = list(shape.parts(Draw(f"{name} {number}")))
        plan = {"ranks": shape.ranks, "first": shape.first, "parts": parts, "hang": None}
        yield Asked(name, plan, known=number // len(SHAPES) % 2 == 1)


def hanging_runs(count: int, kinds: Sequence[str]) -> Iterator[Asked]:
    """Yield `count` plans with a hang in a steady step: kinds in turn, on one and two ranks, some of them resumed."""
    for number in range(count):
        kind, draw = kinds[number % len(kinds)], Draw(f"hang {number}")
        ranks, first = HANGING[number // len(kinds) % len(HANGING)]
        # A single rank exchanges with no other.
        ranks = 2 if kind == "exchange" else ranks
        parts = usual(draw, resumed=first > 0)
        # The hang comes after the steps that show that steps are steady, and before the last step of each epoch.
        step = first + draw.choice([*range(25, 55), *range(70, 115)])
        wrong = {"kind": kind, "rank": draw.randrange(ranks), "step": step}
        plan = {"ranks": ranks, "first": first, "parts": parts, "hang": wrong}
        name = f"{KINDS[kind]}, {ranks} rank{'s' * (ranks > 1)}{', resumed' * bool(first)}"
        yield Asked(name, plan, known=bool(draw.randrange(2)))


def watch(asked: Asked) -> Seen:
    """Watch one run to its end."""
    with tempfile.TemporaryDirectory(prefix="shape-") as place:
        folder = Path(place, "run")
        folder.mkdir()
        watched = Watch(RunFolder(folder), ProcessExecutor(), lambda _: None, None, ranks=asked.plan["ranks"])
        limits = limits_of([{}] * RUNS_FOR_KNOWN_LIMITS if asked.known else [], "cpu")
        command = (sys.executable, str(RANKS), json.dumps(asked.plan))
        job = Job(command, {"PATH": "/usr/bin:/bin"}, folder, folder / "log.txt")
        with watched:
            ended = watched.execute(job, MOST_SECONDS, limits)
        mark = folder / "hung-at"
        seconds = seconds_to_find(folder, float(mark.read_text(encoding="ascii"))) if mark.exists() else None
        failed = f"exit {ended}: {(folder / 'log.txt').read_text(encoding='utf-8')[-300:]}"
        how = watched.stopped_by or (None if ended and ended.ok else failed)
        return Seen(asked, how, watched.stop_detail, seconds)


def watch_all(runs: Sequence[Asked], side_by_side: int, say: Callable[[str], None]) -> list[Seen]:
    """Watch all runs, `side_by_side` at a time, each in a process of its own."""
    seen = []
    with multiprocessing.get_context("fork").Pool(side_by_side, maxtasksperchild=8) as pool:
        for number, one in enumerate(pool.imap_unordered(watch, runs), start=1):
            seen.append(one)
            took = "" if one.seconds is None else f", {one.seconds:.1f} s"
            say(f"{number} of {len(runs)}, {one.asked.name}: {one.stopped_by or 'no alarm'}{took} {one.detail[:90]}")
    return seen


def shapes(count: int, side_by_side: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Watch healthy runs, and return how many alarmed, by shape."""
    figures: dict[str, Any] = {name: {"runs": 0, "alarms": 0, "what": []} for name in SHAPES}
    for one in watch_all(list(healthy_runs(count)), side_by_side, say):
        of = figures[one.asked.name]
        of["runs"] += 1
        of["alarms"] += one.stopped_by is not None
        of["what"] += [f"{one.stopped_by}: {one.detail}"] if one.stopped_by else []
    return {"shapes": figures}


def hangs(count: int, side_by_side: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Watch hangs in steady steps: how many were found, how soon after the last step, and with the right rank.

    A fifth as many more runs are stopped processes, which give no stacks and are found after twice the limit.
    """
    asked = [
        *hanging_runs(count, [kind for kind in KINDS if kind != "stop"]),
        *hanging_runs(count // 5, ["stop"]),
    ]
    figures: dict[str, Any] = {}
    for one in watch_all(asked, side_by_side, say):
        empty = {"runs": 0, "found": 0, "named": 0, "seconds": [], "stopped": one.asked.plan["hang"]["kind"] == "stop"}
        of = figures.setdefault(one.asked.name, empty)
        of["runs"] += 1
        of["found"] += one.stopped_by == "watchdog"
        of["named"] += one.right_rank
        of["seconds"] += [] if one.seconds is None else [round(one.seconds, 2)]
    return {"hangs": dict(sorted(figures.items()))}
