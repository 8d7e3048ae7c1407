"""Train under supervision with faults at a known rate, and compare the times with those `matrix train` expects.

The trainings, their supervisor, checkpoints, watchdog and verification are real. Only each step of the app also sleeps,
so that a training lasts tens of seconds on a few cores, and the watchdog's limit of a step is shorter. From the first
step of an attempt on, faults come at random and at a constant rate: SIGKILL, SIGSEGV, or SIGSTOP, which is a hang.
"""

import json
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field, replace
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from unittest.mock import patch

from scipy.stats import t as student

from harness.campaign.bench.display import Display
from harness.environments.executors.job import Executor, Handle, Job
from harness.evidence.app_reports.progress import ProgressReader
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.verdicts.expectation import HOUR, expected_hours
from harness.evidence.verdicts.exposure_rates import failure_rate_bound
from harness.run.watch.limits import LIMITS, Limits
from harness.training.prepare import PreparedTraining

EPOCHS = 5
# Chosen so that an epoch of 29 steps, and so the time between two checkpoints, takes about four seconds.
SLEEP_SECONDS = 0.13
MEAN_SECONDS_BETWEEN_FAULTS = 20.0
STEP_LIMIT = 6.0
SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP)
STEPPING = frozenset({"first-step", "step", "validate", "checkpoint"})
POLL_SECONDS = 0.02
WITHOUT_FAULTS = 4
BLOCK = 10
CONFIDENCE = 0.95
SLEEPY = """\
import time
from vpoc.progress import Progress
make = Progress.step
def step(self, *told, **more):
    if self._phase in ("first-step", "step"):
        time.sleep({seconds})
    make(self, *told, **more)
Progress.step = step
"""


@dataclass
class Times:
    """When attempts of a training made their first step, when faults came, and when it ended, by a monotonic clock."""

    begun: list[float] = field(default_factory=list)
    faults: list[tuple[float, str]] = field(default_factory=list)
    through: float | None = None


@dataclass(frozen=True)
class Made:
    """One training, with times in seconds.

    `took`: from its first step to its end.
    `worked`: the part of that spent training.
    `restarts`: for each fault, the time from the fault to the next first step.
    """

    number: int
    took: float
    worked: float
    restarts: tuple[float, ...]
    kinds: tuple[str, ...]


class FaultyExecutor:
    """An executor that starts the app with steps that sleep, and sends it signals at random after its first step."""

    def __init__(self, executor: Executor, sleepy: Path, rate: float, chance: random.Random) -> None:
        self._executor, self._sleepy, self._rate, self._chance = executor, sleepy, rate, chance
        self.times = Times()

    def start(self, job: Job) -> Handle:
        """Start a job; a training gets steps that sleep, and signals."""
        if "train" not in job.arguments:
            return self._executor.start(job)
        handle = self._executor.start(replace(job, variables=self._with_sleep(job.variables)))
        threading.Thread(target=self._follow, args=(job.folder, handle), daemon=True).start()
        return handle

    def find(self, job: Job) -> Handle | None:
        """Find a job, as the wrapped executor does."""
        return self._executor.find(job)

    def _with_sleep(self, variables: Mapping[str, str]) -> dict[str, str]:
        path = os.pathsep.join(filter(None, [str(self._sleepy), variables.get("PYTHONPATH")]))
        return {**variables, "PYTHONPATH": path}

    def _follow(self, folder: Path, handle: Handle) -> None:
        reader, due, pid = ProgressReader(RunFolder(folder).new_work), None, 0
        while handle.poll() is None:
            for line in reader.new():
                pid = line.pid
                if due is None and line.phase in STEPPING:
                    self.times.begun.append(line.monotonic)
                    due = line.monotonic + (self._chance.expovariate(self._rate) if self._rate else float("inf"))
                if line.phase == "teardown":
                    self.times.through = line.monotonic
                    return
            if due is not None and time.monotonic() >= due:
                sent = self._chance.choice(SIGNALS)
                with suppress(ProcessLookupError):
                    self.times.faults.append((time.monotonic(), sent.name))
                    os.kill(pid, sent)
                return
            time.sleep(POLL_SECONDS)


Prepare = Callable[[int], AbstractContextManager[PreparedTraining]]
"""A function that prepares the training with a given number."""


def train(prepare: Prepare, place: Path, number: int, rate: float, seed: int) -> Made:
    """Train to the end, with faults at `rate` per second of training."""
    sleepy = place / f"sleepy-{number}"
    sleepy.mkdir(exist_ok=True)
    (sleepy / "sitecustomize.py").write_text(SLEEPY.format(seconds=SLEEP_SECONDS), encoding="utf-8")
    limits = Limits.fixed({**LIMITS, "step": STEP_LIMIT})
    with prepare(number) as prepared, patch("harness.run.carry_out.limits_of", return_value=limits):
        executor = FaultyExecutor(prepared.bench.executor, sleepy, rate, random.Random(f"{seed} {number}"))
        ended = replace(prepared, bench=replace(prepared.bench, executor=executor)).run(Display())
    times = executor.times
    if ended.model is None or times.through is None:
        raise RuntimeError(f"training {number} made no model: {ended.exhausted}, {times}")
    # A fault between the last step and the end of its process caused no restart.
    faults = [fault for fault in times.faults if fault[0] < times.begun[-1]]
    restarts = tuple(begun - at for (at, _), begun in zip(faults, times.begun[1:], strict=True))
    took = times.through - times.begun[0]
    return Made(number, took, took - sum(restarts), restarts, tuple(name for _, name in faults))


def train_all(
    prepare: Prepare, place: Path, kept: Path, count: int, side_by_side: int, seed: int, say: Callable[[str], None]
) -> list[Made]:
    """Run that many trainings with faults and some without (numbers below 0), except for those stored in `kept`."""
    made = read(kept)
    known = {one.number for one in made}
    wanted = [number for number in range(-WITHOUT_FAULTS, count) if number not in known]
    rates = {number: 0.0 if number < 0 else 1 / MEAN_SECONDS_BETWEEN_FAULTS for number in wanted}
    context, waiting = multiprocessing.get_context("fork"), list(wanted)
    running: list[multiprocessing.process.BaseProcess] = []
    results = context.SimpleQueue()
    unfinished = False

    def one(number: int) -> None:
        results.put(train(prepare, place, number, rates[number], seed))

    while waiting or running:
        while waiting and len(running) < side_by_side:
            process = context.Process(target=one, args=(waiting.pop(0),))
            process.start()
            running.append(process)
        time.sleep(0.2)
        failed = [process for process in running if process.exitcode]
        running = [process for process in running if process.is_alive()]
        while not results.empty():
            done = results.get()
            made.append(done)
            with kept.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(asdict(done)) + "\n")
            say(f"{len(made)} of {count + WITHOUT_FAULTS}: {done.took:.1f} s, {', '.join(done.kinds) or 'no fault'}")
        if failed:
            waiting.clear()
            unfinished = True
    if unfinished:
        raise SystemExit("a training failed; the same command continues with what is missing")
    return made


def read(kept: Path) -> list[Made]:
    """Return the trainings of earlier runs of this program."""
    lines = kept.read_text(encoding="utf-8").splitlines() if kept.exists() else []
    told = [json.loads(line) for line in lines]
    return [Made(**{**one, "restarts": tuple(one["restarts"]), "kinds": tuple(one["kinds"])}) for one in told]


def section(made: Sequence[Made], origin: str) -> list[str]:
    """Return the figures as Markdown, without their heading."""
    healthy = [one.took for one in made if one.number < 0]
    faulty = sorted((one for one in made if one.number >= 0), key=lambda one: one.number)
    work, restarts = mean(healthy), [seconds for one in faulty for seconds in one.restarts]
    restart, piece, rate = mean(restarts), mean(healthy) / EPOCHS, 1 / MEAN_SECONDS_BETWEEN_FAULTS
    takes, times = expected(work, piece, restart, rate)
    took, count = interval([one.took for one in faulty]), interval([float(len(one.restarts)) for one in faulty])
    blocks = [faulty[at : at + BLOCK] for at in range(0, len(faulty) - BLOCK + 1, BLOCK)]
    bounds = [bound(block, work, piece, restart) for block in blocks]
    above = sum(one[0] >= takes and one[1] >= times for one in bounds)
    kinds = [name for one in faulty for name in one.kinds]
    told = ", ".join(f"{kinds.count(name.name)} {name.name}" for name in SIGNALS)
    hours = f"{min(one[0] for one in bounds):.0f} to {max(one[0] for one in bounds):.0f}" if bounds else "-"
    bounded = f"{min(one[1] for one in bounds):.1f} to {max(one[1] for one in bounds):.1f}" if bounds else "-"
    return [
        origin,
        "",
        f"{len(faulty)} trainings with the real supervisor, as processes on a CPU, of {EPOCHS} epochs with a "
        f"checkpoint each. Each step also sleeps {SLEEP_SECONDS} s, and a step may stall {STEP_LIMIT:.0f} s: seconds "
        f"stand for hours. During training, a fault comes every {MEAN_SECONDS_BETWEEN_FAULTS:.0f} s on average, at "
        f"random: {told}. A training without faults takes {work:.1f} s (T, mean of {len(healthy)}), with {piece:.1f} s "
        f"between checkpoints (c); a restart takes {restart:.1f} s (s, mean of {len(restarts)}, detection included). "
        "All ended with a model.",
        "",
        f"| | measured mean (95 %) | T/c (1/r + s)(e^(rc) - 1) | shown as bounds after {BLOCK} of them |",
        "|---|---|---|---|",
        f"| seconds from the first step to the last | {took[0]:.1f} ({took[1]:.1f} to {took[2]:.1f}) | {takes:.1f} | "
        f"less than {hours} |",
        f"| restarts | {count[0]:.2f} ({count[1]:.2f} to {count[2]:.2f}) | {times:.2f} | fewer than {bounded} |",
        "",
        f"The bounds, computed from the failures and the time of {BLOCK} trainings at a time, were above the value of "
        f"the formula at the true rate in {above} of {len(bounds)} such blocks.",
    ]


def expected(work: float, piece: float, restart: float, rate: float) -> tuple[float, float]:
    """Return the mean seconds of a training and its mean restarts, by the formula of `matrix train`."""
    hours = expected_hours(work / HOUR, rate * HOUR, piece, restart)
    without = expected_hours(work / HOUR, rate * HOUR, piece, 0.0)
    return hours * HOUR, (hours - without) * HOUR / restart


def bound(block: Sequence[Made], work: float, piece: float, restart: float) -> tuple[float, float]:
    """Return the same at the upper bound of the failure rate that these trainings show."""
    failures, hours = sum(len(one.restarts) for one in block), sum(one.worked for one in block) / HOUR
    return expected(work, piece, restart, failure_rate_bound(failures, hours, CONFIDENCE) / HOUR)


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean and the ends of its confidence interval, by Student's t."""
    middle, half = mean(values), student.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * stdev(values) / sqrt(len(values))
    return middle, middle - half, middle + half


def within(made: Sequence[Made]) -> Mapping[str, bool]:
    """Return, for each measured mean, whether the formula's value is within its confidence interval."""
    work = mean(one.took for one in made if one.number < 0)
    faulty = [one for one in made if one.number >= 0]
    restart = mean(seconds for one in faulty for seconds in one.restarts)
    takes, times = expected(work, work / EPOCHS, restart, 1 / MEAN_SECONDS_BETWEEN_FAULTS)
    took, count = interval([one.took for one in faulty]), interval([float(len(one.restarts)) for one in faulty])
    return {"seconds": took[1] <= takes <= took[2], "restarts": count[1] <= times <= count[2]}
