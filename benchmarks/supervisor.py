"""Measure how often `matrix train` ends with a model, in trainings with a fault in their first attempt, on a CPU.

Each fault is of a random kind and in a random step. Every training must end with a model that loads, and with the
weights of an uninterrupted training unless a fallback changed the arithmetic. Also simulated are eight hours of a
campaign on two GPUs, in which three times one of them stops answering (wedges.py). Writes
docs/evidence/supervisor-figures.md and .json. With --restarts: trainings with faults at a known rate (restarts.py),
continuing where they stopped.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import get_args

from benchmarks import restarts
from benchmarks.pages import machine, python_and_cores, today
from benchmarks.wedges import HOURS, WEDGES, Remedy, share_settled
from harness.base.errors import UserError
from harness.base.paths import CHECKOUT
from harness.base.sysfs import REAL_ROOT
from harness.campaign.bench.display import Display
from harness.campaign.bench.plan import BEST
from harness.environments.environment import ensure_environment
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.files.work_folder import WorkFolder
from harness.evidence.records import Results
from harness.host.engine import find_engine
from harness.host.facts import GpuFacts, HostFacts
from harness.host.fingerprint import read_host
from harness.matrix.cells import Matrix
from harness.matrix.load import Given, load_matrix
from harness.matrix.workloads import SyntheticData
from harness.run.launch import base_variables
from harness.run.workload_data import synthetic_file
from harness.training.choose_cell import CellRequest
from harness.training.options import own_workload
from harness.training.prepare import PreparedTraining, TrainingRequest, prepare_training
from harness.training.state import open_state_file

FIGURES = CHECKOUT / "docs" / "evidence" / "supervisor-figures"
KINDS = {
    "crash": ("segv", "abort", "bus-error", "illegal-access", "blas-internal-error"),
    "hang": ("hang-forward", "hang-backward", "sleep"),
    "out of memory": ("oom",),
    "killed": ("kill",),
    "wedged: deaf to all but KILL": ("hold-gil",),
}
SESSIONS, EPOCHS, STEPS = 26, 2, 58
# Steps of an epoch: only after the first epoch is there a checkpoint to resume from.
EPOCH_STEPS = 29
ARITHMETIC = {"smaller-micro-batch", "no-hipblaslt", "one-device", "cpu"}
NIGHTS = 20
RESTARTS = "## Restarts expected, and counted"


@dataclass(frozen=True)
class Trained:
    """One training; `weights`: the hash of the model file's weights, loaded by a fresh process, or None if it fails."""

    injected_fault: str | None
    begins: tuple[str, ...]
    first_outcome: str
    weights: str | None
    seconds: float

    @property
    def same_arithmetic(self) -> bool:
        """Return whether no fallback changed the arithmetic."""
        return not ARITHMETIC & set(self.begins)


class Trainer:
    """Runs trainings in a folder, all with the same bars."""

    def __init__(self, place: Path, matrix: Matrix, *, contained: bool, epochs: int = EPOCHS) -> None:
        self._place = place
        self._matrix = matrix
        self._host = read_host(REAL_ROOT)
        self._executor = "docker" if contained else "process"
        self._environment = ensure_environment(matrix.stacks["cpu"])
        self._workload = own_workload({"lookback": 20, "epochs": epochs, "loader_workers": 0, "patience": 0})
        workload = self._workload.model_copy(update={"synthetic": SyntheticData(sessions=SESSIONS)})
        self._data = synthetic_file(workload, self._environment, ProcessExecutor())

    @contextmanager
    def prepared(self, number: int, fault: str | None = None) -> Iterator[PreparedTraining]:
        """Yield a training with its own results folder, ready to run."""
        place = self._place / f"{number}"
        results, output = Results(place / "results"), place / "training"
        output.mkdir(parents=True)
        request = TrainingRequest(
            self._data,
            output,
            "bars",
            self._workload,
            CellRequest(BEST, None, force=False),
            self._executor,  # type: ignore[arg-type]
            injected_fault=fault,
        )
        with open_state_file(results, self._host, output, "bars") as file:
            yield prepare_training(request, self._matrix, results, self._host, file)

    def train(self, fault: str | None, number: int) -> Trained:
        """Run one training with this fault in its first attempt."""
        began = time.monotonic()
        with self.prepared(number, fault) as prepared:
            ended = prepared.run(Display())
        seconds = time.monotonic() - began
        begins = tuple(line["begin"] for line in ended.attempts)
        weights = self._weights(self._place / f"{number}" / "training" / "bars.pt")
        return Trained(fault, begins, ended.attempts[0]["outcome"], weights, seconds)

    def _weights(self, model: Path) -> str | None:
        variables = {**base_variables(WorkFolder(self._place), self._place, 1), **self._environment.variables}
        command = self._environment.app("check-model", "--json", str(model))
        checked = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
        return str(json.loads(checked.stdout)["weights_sha256"]) if checked.returncode == 0 else None


def faults(count: int, chance: random.Random) -> list[tuple[str, str]]:
    """Return that many faults with their families in turn; the kind within the family and the step are random."""
    families = list(KINDS)
    chosen = [families[number % len(families)] for number in range(count)]
    return [(family, f"{chance.choice(KINDS[family])}@{chance.randint(2, STEPS)}") for family in chosen]


def report(
    trainings: list[tuple[str, Trained]], whole: str, shares: dict[str, list[float]], how: str, seed: int
) -> str:
    """Return the figures as Markdown."""
    lines = [
        "# `matrix train` through faults, counted",
        "",
        f"Written by `benchmarks/supervisor.py` on {today()}, seed {seed}: {machine()}, {how}, "
        "on a CPU. Each training has one fault, in a random step of its first attempt; `matrix train` finds the fault, "
        f"ends the attempt and resumes as usual. A training has two epochs of {EPOCH_STEPS} steps.",
        "",
        "| fault | trainings | a model that loads | weights of an uninterrupted one | attempts | median, s | worst |",
        "|---|---|---|---|---|---|---|",
    ]
    for family in KINDS:
        lines += [_row(family, [one for name, one in trainings if name == family], whole)]
    lines += [_row("**all**", [one for _, one in trainings], whole), ""]
    changed = sum(not one.same_arithmetic for _, one in trainings)
    taken = Counter(begin for _, one in trainings for begin in one.begins[1:])
    fallbacks = ", ".join(f"{name} {count}" for name, count in taken.most_common())
    lines += [
        f"In {changed} of these trainings a fallback changed the arithmetic. Fallbacks taken: {fallbacks or 'none'}.",
        "",
    ]
    lines += [
        f"## {HOURS} hours of a campaign in which {WEDGES} times a GPU stops answering",
        "",
        f"A simulation (`benchmarks/wedges.py`) of two GPUs with a simulated clock, {NIGHTS} times each. The plan is "
        "what the same hours settle if nothing happens. No real GPU ever stopped answering in these measurements.",
        "",
        "| what helps such a GPU | share of the plan settled, median | worst |",
        "|---|---|---|",
    ]
    words = {
        "reset": "its driver resets it",
        "reboot": "a reboot (`--reboot-when-unhealthy`)",
        "none": "nothing that is allowed: it takes no more runs",
    }
    lines += [f"| {words[name]} | {median(found):.1%} | {min(found):.1%} |" for name, found in shares.items()]
    return "\n".join([*lines, ""])


def _row(name: str, trainings: list[Trained], whole: str) -> str:
    if not trainings:
        return f"| {name} | 0 | | | | | |"
    comparable = [one for one in trainings if one.same_arithmetic]
    same = sum(one.weights == whole for one in comparable)
    loads = sum(one.weights is not None for one in trainings)
    attempts = f"{median(len(one.begins) for one in trainings):g}, at most {max(len(one.begins) for one in trainings)}"
    seconds = f"{median(one.seconds for one in trainings):.0f} | {max(one.seconds for one in trainings):.0f}"
    return f"| {name} | {len(trainings)} | {loads} | {same} of {len(comparable)} | {attempts} | {seconds} |"


def two_gpus(host: HostFacts) -> HostFacts:
    """Return the host with two synthetic GPUs."""
    gpus = [
        GpuFacts(index=n, gfx="gfx1100", name="synthetic", memory_bytes=20 << 30, render_node=None, kfd_id=n + 1)
        for n in range(2)
    ]
    return host.model_copy(update={"gpus": tuple(gpus)})


def with_section(page: str, lines: Sequence[str] | None) -> str:
    """Return the page with these lines as its last section, on restarts; None: without that section."""
    before = page.partition(f"\n{RESTARTS}\n")[0].rstrip("\n") + "\n"
    return before if lines is None else "\n".join([before, RESTARTS, "", *lines, ""])


def section_of(page: str) -> list[str] | None:
    """Return the lines of a page's section on restarts, without the heading; None if there is none."""
    _, heading, after = page.partition(f"\n{RESTARTS}\n")
    return after.strip("\n").splitlines() if heading else None


def measure_restarts(matrix: Matrix, output: Path, count: int, side_by_side: int, seed: int) -> bool:
    """Run the trainings that the figures lack, write their section, and return whether the formula holds."""
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    kept = output.with_name("supervisor-restarts.jsonl")
    with tempfile.TemporaryDirectory(prefix="restarts-") as place:
        trainer = Trainer(Path(place), matrix, contained=False, epochs=restarts.EPOCHS)
        trainings = restarts.train_all(trainer.prepared, Path(place), kept, count, side_by_side, seed, print_line)
    origin = (
        f"Written by `python -m benchmarks.supervisor --restarts {count}` on {today()}, seed {seed}: "
        f"{python_and_cores()} that had other things to do, {side_by_side} trainings at a time, load before {load}."
    )
    page = output.with_suffix(".md")
    text = with_section(page.read_text(encoding="utf-8"), restarts.section(trainings, origin))
    page.write_text(text, encoding="utf-8")
    kept.unlink()
    return all(restarts.within(trainings).values())


def print_line(text: str) -> None:
    """Print a line with the time, for a user who waits."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def main() -> None:
    """Train, count, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trainings", type=int, nargs="?", default=100)
    parser.add_argument("--containers", action="store_true", help="in containers, not as processes")
    parser.add_argument("--restarts", type=int, metavar="N", help="only N trainings with faults at a known rate")
    parser.add_argument("--side-by-side", type=int, default=4, help="of those, at a time (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=FIGURES)
    options = parser.parse_args()
    if options.containers and find_engine() is None:
        raise UserError("no Docker engine answers")
    matrix = load_matrix(CHECKOUT / "matrix.yaml", Given(os.environ.get("MATRIX_BASE")))
    if options.restarts:
        sys.exit(not measure_restarts(matrix, options.output, options.restarts, options.side_by_side, options.seed))
    trainings: list[tuple[str, Trained]] = []
    with tempfile.TemporaryDirectory(prefix="supervisor-") as place:
        trainer = Trainer(Path(place), matrix, contained=options.containers)
        whole = trainer.train(None, 0).weights
        for number, (family, fault) in enumerate(faults(options.trainings, random.Random(options.seed)), start=1):
            one = trainer.train(fault, number)
            trainings.append((family, one))
            same = "the same weights" if one.weights == whole else "OTHER WEIGHTS" if one.weights else "NO MODEL"
            print(f"{number}/{options.trainings} {fault}: {', '.join(one.begins)}: {same}", flush=True)
    host = two_gpus(read_host(REAL_ROOT))
    shares = {
        remedy: [share_settled(matrix, host, remedy, seed) for seed in range(NIGHTS)] for remedy in get_args(Remedy)
    }
    how = "in containers" if options.containers else "as processes"
    text = report(trainings, str(whole), shares, how, options.seed)
    page = options.output.with_suffix(".md")
    kept = section_of(page.read_text(encoding="utf-8")) if page.exists() else None
    page.write_text(with_section(text, kept), encoding="utf-8")
    document = {"schema": 2, "uninterrupted": whole, "trainings": [{"fault": f, **asdict(one)} for f, one in trainings]}
    options.output.with_suffix(".json").write_text(
        json.dumps({**document, "wedges": shares}, indent=2) + "\n", encoding="utf-8"
    )
    good = all(one.weights == whole if one.same_arithmetic else one.weights for _, one in trainings)
    sys.exit(not (whole and good and all(min(shares[name]) >= 0.9 for name in ("reset", "reboot"))))


if __name__ == "__main__":
    main()
