"""Makes drills: the fault in a real run, then a healthy run in the same place."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from harness.base.errors import UserError
from harness.evidence.run_files import Record
from harness.faults.faults import Site
from harness.faults.injection import Meanwhile, Prepared
from harness.faults.judge import Drilled
from harness.faults.kinds import WORKLOAD, Drill
from harness.faults.own_engine import OwnEngine
from harness.faults.place import Place
from harness.faults.timing import last_progress, seconds_to_find
from harness.host.engine import ENGINE_ERRORS, Notify, explain
from harness.matrix.cells import ExecutorName


def carry_out(drills: Sequence[Drill], place: Place, repeats: int, notify: Notify) -> Iterator[Drilled]:
    """Make each drill `repeats` times, each time with a healthy run after it.

    Raises:
        KeyboardInterrupt: after the current run was recorded as interrupted.
    """
    for position, drill in enumerate(drills, start=1):
        if why := why_skipped(drill, place.executor_name):
            yield Drilled(drill, place.executor_name, skipped=why)
            continue
        for repeat in range(1, repeats + 1):
            again = f", repeat {repeat}" if repeats > 1 else ""
            notify(f"[{position}/{len(drills)}] {drill.name}{again}: {drill.what}")
            yield make_drill(drill, place)


def why_skipped(drill: Drill, executor: ExecutorName) -> str | None:
    """Why a drill is not made here; None when it is."""
    if executor not in drill.executors:
        return "only in containers" if executor == "process" else "only as a process"
    return drill.outside.why_not()


def make_drill(drill: Drill, place: Place, *, next_run: bool = True) -> Drilled:
    """Make a drill, and say what became of it; without `next_run` no healthy run is made after it."""
    try:
        with _somewhere(drill, place) as (here, own):
            return _make(drill, here, own, next_run=next_run)
    except UserError as error:
        return Drilled(drill, place.executor_name, trouble=(str(error),))
    except ENGINE_ERRORS as error:
        return Drilled(drill, place.executor_name, trouble=(f"the Docker engine: {explain(error)}",))


def make_healthy(place: Place) -> Record:
    """Make the run that follows a drill."""
    return place.make(place.run(WORKLOAD, "healthy"))


def _make(drill: Drill, place: Place, own: OwnEngine | None, *, next_run: bool) -> Drilled:
    usual = place.run(drill.workload, f"drill-{drill.name}")
    run = replace(drill.outside.change(usual), drill=drill.app or drill.name)
    folder = place.results.run_folder(run.run_id)
    began = time.monotonic()
    try:
        with Meanwhile(drill.outside, Site(folder, place.engine, own)) as meanwhile:
            record = place.make(run, Prepared(place.executor, drill.outside))
        seconds = seconds_to_find(folder, meanwhile.made or last_progress(folder) or began)
    finally:
        drill.outside.after(folder)
    if own:
        own.start()
        place.settle()
    trouble = [f"left: {what}" for what in place.left_of(run)]
    if meanwhile.problem:
        trouble.append(f"the fault was not made: {meanwhile.problem}")
    if next_run and (after := make_healthy(place)).outcome != "completed":
        trouble.append(f"the next run, {after.intent.run_id}, {after.outcome}: {after.detail}")
    found = seconds if drill.expected.is_alarm else None
    return Drilled(drill, place.executor_name, record, found, tuple(trouble))


@contextmanager
def _somewhere(drill: Drill, place: Place) -> Iterator[tuple[Place, OwnEngine | None]]:
    if drill.outside.needs_own_engine:
        with place.with_own_engine() as (here, own):
            yield here, own
    else:
        yield place, None
