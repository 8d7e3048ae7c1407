"""Ends the runs of a harness that is gone, and records them as interrupted."""

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial

from harness.base.errors import UserError
from harness.base.failpoints import reached
from harness.base.paths import APPS, DATA
from harness.base.storage import locked, remove_unfinished
from harness.campaign.bench import Bench
from harness.campaign.display import Display
from harness.environments.executors.docker import DockerExecutor
from harness.environments.executors.job import Executor, Job
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.index import Index
from harness.evidence.records import TRAINING, Results, owner_alive
from harness.evidence.run_files import Intent, Record
from harness.host.engine import find_engine
from harness.host.facts import HostFacts
from harness.host.run_processes import end_processes_of_run

# An orphan is no evidence, so it gets time to end its own children, not to save its work.
ORPHAN_GRACE_SECONDS = 1.0
RECOVERY_LOCK = ".recovery.lock"


def close_leftovers(bench: Bench, display: Display) -> None:
    """Close what an earlier command left, as every command that runs cells does first, and report it."""
    damaged: list[str] = []
    for record in recover(bench.results, bench.host, partial(_executor_of, bench), damaged):
        Index(bench.results).add(record)
        display.problem(f"{record.intent.run_id}: {record.detail}; recorded as {record.outcome}")
    for text in damaged:
        display.problem(text)
    if isinstance(bench.executor, DockerExecutor):
        bench.executor.remove_leftovers(bench.results.record)


def _executor_of(bench: Bench, intent: Intent) -> Executor | None:
    """Return what started a run, whatever runs are started with now; None where no engine answers."""
    if intent.executor == "process":
        return ProcessExecutor()
    try:
        engine = bench.engine or find_engine()
    except UserError:
        return None
    return DockerExecutor(engine, bench.results.runs) if engine else None


def recover(
    results: Results, host: HostFacts, executor_of: Callable[[Intent], Executor | None], damaged: list[str]
) -> list[Record]:
    """Close the runs of this host that lost their harness. Doing it twice, or two at once, changes nothing.

    `executor_of` gives what started a run; None where it cannot be asked. Intents that cannot be read are named in
    `damaged` and left as they are.
    """
    if not results.runs.is_dir():
        return []
    with locked(results.folder / RECOVERY_LOCK):
        reached("recovery-begins")
        records = list(_close(results, host, executor_of, damaged))
        _tidy(results)
        reached("recovery-done")
    return records


def _close(
    results: Results, host: HostFacts, executor_of: Callable[[Intent], Executor | None], damaged: list[str]
) -> Iterator[Record]:
    for intent in results.unfinished(damaged):
        if intent.host.machine != host.machine or owner_alive(intent):
            continue
        # Looked at again: its harness may have written it and ended in between. Now nobody else can.
        if not results.has_record(intent.run_id):
            record = _record(intent, ended=_end(intent, results, executor_of(intent)))
            reached("orphan-ended")
            results.folder_of(intent.run_id).remove_places(all_of_it=False)
            results.finish(record)
            reached("orphan-recorded")
            yield record


def _end(intent: Intent, results: Results, executor: Executor | None) -> bool:
    """End whatever still runs of a run; False when something cannot be killed."""
    folder = results.folder_of(intent.run_id)
    lost = Job((), {}, folder.path, folder.recovered_log, note=folder.process)
    if executor and (handle := executor.find(lost)):
        # An engine that does not answer is no process that cannot be killed: what counts is what is left.
        handle.stop(ORPHAN_GRACE_SECONDS)
    return end_processes_of_run(folder.path, ORPHAN_GRACE_SECONDS)


def _record(intent: Intent, *, ended: bool) -> Record:
    gone = "its harness was gone before there was a record"
    return Record(
        intent=intent,
        outcome="interrupted" if ended else "host-fault",
        diagnosis=None if ended else "unkillable",
        detail=gone if ended else f"{gone}, and a process of it cannot be killed",
        exit={},
        ran_on="unknown",
        finished=time.time(),
        seconds=0.0,
        last_phase=None,
        result=None,
    )


def _tidy(results: Results) -> None:
    """Remove what nobody can use: half-written files, and temporary folders of runs that are over."""
    for folder in (results.folder, *results.folder.glob("*/"), DATA, APPS):
        remove_unfinished(folder)
    for run_id in results.finished():
        run = results.folder_of(run_id)
        if run.temporary.exists():
            # A record that is damaged keeps nothing else from being tidied.
            with contextlib.suppress(UserError):
                record = results.record(run_id)
                over = record is not None and record.outcome == "completed" and not _is_attempt(record)
                run.remove_places(all_of_it=over)


def _is_attempt(record: Record) -> bool:
    """Return whether it is an attempt of a training, which may still need its checkpoints."""
    return (record.intent.campaign or "").endswith(f"-{TRAINING}")
