"""Soak the watchdog: every kind of fault many times, healthy runs that must not alarm, and the cost of watching.

Only the parts that are asked for are measured again; the others keep their last figures. Writes
docs/evidence/watching-figures.md and .json. All parts take hours; `--parts healthy --healthy 20` takes minutes.
"""

import argparse
import json
import multiprocessing
import os
import platform
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.watching_figures import TITLES, Part, page
from benchmarks.watching_shapes import hangs, shapes
from harness.base.files.storage import write_durably, write_json
from harness.base.paths import CHECKOUT
from harness.evidence.records import Results
from harness.faults.inject import inject_all, inject_fault
from harness.faults.injection import Injection
from harness.faults.kinds import KINDS, WORKLOAD, FaultKind
from harness.faults.target import InjectionTarget, make_target
from harness.matrix.load import Given, load_matrix
from harness.matrix.stacks import ExecutorName  # noqa: TC001

PAGE = CHECKOUT / "docs" / "evidence" / "watching-figures.md"
FIGURES = PAGE.with_suffix(".json")
LOAD = 10
# Of GROUP healthy runs, one is stopped for ten seconds, one has a checkpoint of a minute, and four are under load.
GROUP, LOADED_OF_GROUP = 20, 4
PAUSED, SLOW_CHECKPOINT = "paused", "slow-checkpoint"


def say(text: str) -> None:
    """Print a line with the time, for a user who waits."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def injections(target: InjectionTarget, kinds: Sequence[FaultKind], repeats: int) -> dict[str, Any]:
    """Inject each kind of fault `repeats` times, with a healthy run after each, and return the counts."""
    found: dict[str, Any] = {}
    skipped: dict[str, str] = {}
    for one in inject_all(kinds, target, repeats, say):
        if one.skipped:
            skipped[one.kind.name] = one.skipped
            continue
        empty = {
            "made": 0,
            "right": 0,
            "named": 0,
            "hang": one.kind.stuck is not None,
            "seconds": [],
            "objections": [],
        }
        kind = found.setdefault(one.kind.name, empty)
        kind["made"] += 1
        kind["right"] += one.as_expected
        kind["named"] += names_stuck_rank(one)
        kind["seconds"] += [] if one.seconds is None else [round(one.seconds, 2)]
        kind["objections"] += one.objections
        say(f"  {one.found}, {one.explained}: {'; '.join(one.objections) or 'right'}")
    return {"kinds": found, "skipped": skipped}


def names_stuck_rank(one: Injection) -> bool:
    """Return whether the record of a hang names the hanging rank first."""
    return one.record is not None and one.record.detail.startswith(f"rank {one.kind.stuck} ")


def healthy(target: InjectionTarget, count: int) -> dict[str, Any]:
    """Run healthy runs, some of them odd or under load, and return how many alarmed."""
    odd = max(1, count // GROUP)
    loaded = LOADED_OF_GROUP * odd
    conditions: dict[str, tuple[int, Callable[[], bool]]] = {
        "stopped for 10 s": (odd, lambda: odd_alarms(target, PAUSED)),
        "with a checkpoint of 60 s": (odd, lambda: odd_alarms(target, SLOW_CHECKPOINT)),
        f"under load {LOAD}": (loaded, lambda: alarms_under_load(target)),
        "left alone": (max(0, count - loaded - 2 * odd), lambda: alarms(target)),
    }
    figures = {}
    for name, (runs, run) in conditions.items():
        raised = 0
        for number in range(1, runs + 1):
            raised += run()
            say(f"healthy run {name}: {number} of {runs}, {raised} alarms")
        figures[name] = {"runs": runs, "alarms": raised}
    return {"conditions": figures}


def alarms(target: InjectionTarget) -> bool:
    """Return whether a healthy run did not complete."""
    record = target.run(WORKLOAD, "healthy")
    if record.outcome != "completed":
        say(f"  {record.intent.run_id}: {record.outcome}: {record.detail}")
    return record.outcome != "completed"


def odd_alarms(target: InjectionTarget, kind: str) -> bool:
    """Return whether an odd but healthy run alarmed."""
    chosen = next(one for one in KINDS if one.name == kind)
    injection = inject_fault(chosen, target, next_run=False)
    if not injection.as_expected:
        say(f"  {kind}: {'; '.join(injection.objections)}")
    return not injection.as_expected


def alarms_under_load(target: InjectionTarget) -> bool:
    """Return whether a healthy run alarmed on a machine under load."""
    with load():
        return alarms(target)


@contextmanager
def load() -> Iterator[None]:
    """Run LOAD processes that compute all the time."""
    busy = [multiprocessing.Process(target=spin, daemon=True) for _ in range(LOAD)]
    for process in busy:
        process.start()
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.join()


def spin() -> None:
    """Compute for ever."""
    while True:
        pass


def cost(target: InjectionTarget, runs: int, epochs: int) -> dict[str, Any]:
    """Measure the processor time that the harness uses while it watches a longer run."""
    workload = WORKLOAD.model_copy(update={"epochs": epochs, "time_limit": 3600})
    # The first run makes the verifier's environment, so that no measured run does.
    target.run(workload, "first")
    shares, seconds = [], 0.0
    for number in range(1, runs + 1):
        before = time.process_time()
        record = target.run(workload, "cost")
        if record.outcome != "completed":
            raise SystemExit(f"{record.intent.run_id}: {record.outcome}: {record.detail}")
        shares.append(100 * (time.process_time() - before) / record.seconds)
        seconds = record.seconds
        say(f"cost, run {number} of {runs}: {shares[-1]:.2f} %")
    return {"harness_percent": shares, "seconds": seconds}


def machine() -> str:
    """Return the processor of this machine, its cores and its load."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    average = " ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{names[0] if names else platform.machine()}, {len(os.sched_getaffinity(0))} cores, load before {average}"


def origin_of() -> dict[str, str]:
    """Return when, where and how a part is measured."""
    return {
        "when": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "machine": machine(),
        "command": shlex.join(["python", "-m", "benchmarks.watching", *sys.argv[1:]]),
    }


def write(parts: Mapping[str, Part], file: Path) -> None:
    """Write the page and its figures, or neither if the page cannot be made, because later parts start from these."""
    text = page(parts)
    write_json(file.with_suffix(".json"), {"schema": 2, "parts": parts})
    write_durably(file, text.encode())


def options() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=list(TITLES), default=list(TITLES), help="default: all")
    names = [kind.name for kind in KINDS]
    parser.add_argument("--kinds", nargs="+", choices=names, default=names, metavar="KIND", help="default: all")
    parser.add_argument("--repeats", type=int, default=5, help="of each kind (default: %(default)s)")
    parser.add_argument("--healthy", type=int, default=200, help="healthy runs (default: %(default)s)")
    parser.add_argument("--shapes", type=int, default=100, help="healthy runs of many shapes (default: %(default)s)")
    parser.add_argument("--hangs", type=int, default=200, help="hangs in steady steps (default: %(default)s)")
    parser.add_argument("--side-by-side", type=int, default=30, help="of those two, at a time (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=6, help="runs that the cost is measured on (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=300, help="of these runs (default: %(default)s)")
    parser.add_argument("--results", type=Path, help="folder for the records (default: a temporary one)")
    return parser.parse_args()


def main() -> None:
    """Measure, and write the page after each part."""
    chosen = options()
    folder = (chosen.results or Path(tempfile.mkdtemp(prefix="watching-"))).resolve()
    say(f"records in {folder}")
    matrix = load_matrix(CHECKOUT / "matrix.yaml", Given(os.environ.get("MATRIX_BASE")))
    parts = json.loads(FIGURES.read_text(encoding="utf-8"))["parts"] if FIGURES.exists() else {}
    kinds = [kind for kind in KINDS if kind.name in chosen.kinds]
    for name in chosen.parts:
        if name in ("shapes", "hangs"):
            count, make = (chosen.shapes, shapes) if name == "shapes" else (chosen.hangs, hangs)
            parts[name] = {**origin_of(), **make(count, chosen.side_by_side, say)}
            write(parts, PAGE)
            continue
        executor: ExecutorName = "docker" if name == "faults-docker" else "process"
        origin = origin_of()
        target = make_target(Results(folder / executor), matrix, executor, say)
        if name == "healthy":
            figures = healthy(target, chosen.healthy)
        elif name == "cost":
            figures = cost(target, chosen.runs, chosen.epochs)
        else:
            figures = injections(target, kinds, chosen.repeats)
        parts[name] = {**origin, **figures}
        write(parts, PAGE)


if __name__ == "__main__":
    main()
