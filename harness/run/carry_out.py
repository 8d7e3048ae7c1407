"""Runs the processes of a run, one after the other, and reads what they left."""

import os
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit

from harness.base.files.tree_removal import clear_immutable_flags
from harness.environments.executors.job import Exit
from harness.evidence.app_reports.accounting import Accounting
from harness.evidence.app_reports.memory import MemoryUse
from harness.evidence.files.app_files import Result, Wait
from harness.evidence.files.kept_copies import keep_result
from harness.evidence.files.leftovers import Leftover, in_short, leftovers
from harness.evidence.outcome.evidence import Evidence
from harness.evidence.records import Results
from harness.run.notes import Notes, Unreadable
from harness.run.spec import RunSpec
from harness.run.watch.limits import Limits, known_stalls, limits_of
from harness.run.watch.watch import Watch

# Most open files, because the system's limit may be a thousand million.
MOST_HELD = 1 << 14


def carry_out(
    spec: RunSpec, watch: Watch, accounting: Accounting, results: Results, notes: Notes, exits: dict[str, Exit]
) -> Evidence:
    """Run the phases, as far as they succeed; return what was seen of them, with the steps that progress accounts for.

    How each process ended is entered in `exits`, where it is known.

    Raises:
        UserError: when the run folder cannot be written to.
        KeyboardInterrupt: when the run is interrupted; its processes are ended by then.
    """
    limits = _limits(spec, results, notes)
    _run_phases(spec, watch, limits, exits)
    unreadable = Unreadable()
    if clear_immutable_flags(spec.folder.path):
        unreadable.append("its folder, or the one above, was made unchangeable (chattr), which was undone")
    result, problem = _keep_result(spec, unreadable)
    found = tuple(Leftover(name, why) for name, why in sorted(watch.progress.odd_files.items()))
    with unreadable.reading():
        found = (*found, *leftovers(spec.work))
    if others := tuple(one for one in found if not one.is_read):
        notes.append(in_short(others))
    unaccountable = Unreadable()
    with unaccountable.reading():
        accounting.close(result)
    evidence = Evidence(
        exits=exits,
        stopped_by=watch.stopped_by,
        stop_detail=watch.stop_detail,
        result=result,
        result_problem=problem,
        gpus_seen=watch.gpus_seen,
        memory=MemoryUse.of(watch.progress.memory.samples),
        leftovers=in_short(tuple(one for one in found if one.is_read)),
        breaches=accounting.breaches,
        steps_accounted=accounting.steps if not unaccountable else (),
    )
    return evidence.also_left(*unreadable, *unaccountable)


@contextmanager
def held_open(places: tuple[str, ...]) -> Iterator[None]:
    """Hold files, and the files in folders, open during the block; of many in a folder, those that are least deep.

    Otherwise a process that can only read a file could take a write lease on it, and the next one that opens the file
    would wait for 45 seconds.
    """
    most = min(getrlimit(RLIMIT_NOFILE)[0] // 2, MOST_HELD) // max(1, len(places))
    with ExitStack() as held:
        for file in chain.from_iterable(islice(_regular_files(place), most) for place in places):
            # O_NONBLOCK, because another run may have taken a lease.
            with suppress(OSError):
                held.callback(os.close, os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        yield


def _regular_files(place: str) -> Iterator[str]:
    """Yield a file, or those in a folder, beginning with those that are least deep."""
    if Path(place).is_file():
        yield place
    folders = deque([place])
    while folders:
        with suppress(OSError), os.scandir(folders.popleft()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    yield entry.path


def _limits(spec: RunSpec, results: Results, notes: Notes) -> Limits:
    """Return the watchdog's limits: the run's own, or those learned from earlier runs."""
    if spec.limits:
        return Limits.fixed(spec.limits)
    history = list[Mapping[Wait, float]]()
    with notes.tolerated("reading the stalls of earlier runs"):
        history = known_stalls(results, spec.intent, spec.workload_hashes)
    return limits_of(history, spec.intent.device)


def _run_phases(spec: RunSpec, watch: Watch, limits: Limits, exits: dict[str, Exit]) -> None:
    deadline = time.monotonic() + spec.intent.time_limit
    for phase, job in spec.phases.items():
        try:
            exit_ = watch.execute(job, deadline - time.monotonic(), limits)
        except KeyboardInterrupt:
            # It had ended before it was interrupted, while what it left was looked at.
            if watch.ended_with:
                exits[phase] = watch.ended_with
            raise
        if exit_ is not None:
            exits[phase] = exit_
        if watch.stopped_by == "time-limit":
            # The limit is of all processes together.
            watch.stop_detail = f"still running after {spec.intent.time_limit:.0f} s"
        if exit_ is None or not exit_.ok or watch.stopped_by:
            break


def _keep_result(spec: RunSpec, unreadable: Unreadable) -> tuple[Result | None, str]:
    """Keep the app's result file; return the result, or why there is none. Programs of the user's own write none.

    Raises:
        UserError: when the run folder cannot be written to.
    """
    with unreadable.reading():
        if spec.request.program is None:
            return keep_result(spec.folder)
    return None, ""
