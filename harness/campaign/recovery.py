"""Ends runs whose harness is gone, and writes their records."""

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from harness.base.errors import UserError
from harness.base.files.failpoints import reached
from harness.base.files.locks import SHORT_LOCK_SECONDS, locked
from harness.base.files.storage import remove_unfinished
from harness.base.files.untrusted_file import NotAFileError
from harness.base.paths import APPS, DATA
from harness.campaign.bench.bench import Bench
from harness.campaign.bench.display import Display
from harness.environments.executors.docker import DockerExecutor
from harness.environments.executors.job import Executor, Job
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.app_reports.orphans import account_for
from harness.evidence.app_reports.progress import last_lines
from harness.evidence.files.run_files import Intent, OutcomeName, Record
from harness.evidence.gpus.health_log import append_steps, read_steps
from harness.evidence.index import Index
from harness.evidence.records import Results, is_of_training, owner_alive
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import count_runs
from harness.host.engine import Engine, find_engine
from harness.host.facts import HostFacts
from harness.host.jobs import ENDINGS, JobEnding
from harness.host.processes.run_processes import cannot_be_killed, end_processes_of_run, look_at_processes, run_mark
from harness.host.processes.unmarked import note_containers
from harness.host.slurm import job_here
from harness.run.gpu_recovery import look_for_resets
from harness.run.notes import Unreadable
from harness.run.watch.limits import LIMITS

# Seconds. An orphan is no evidence, so it gets time to end its own children, but not to save its work.
ORPHAN_GRACE_SECONDS = 1.0
RECOVERY_LOCK = ".recovery.lock"
# The boot id recorded for a host that does not come back.
GONE = ""


def close_leftovers(bench: Bench, display: Display, endings: Mapping[str, JobEnding | None] | None = None) -> None:
    """Close what an earlier command left, and report it; every command that runs cells does this first.

    `endings` is as in `recover`.
    """
    if bench.dispatcher:
        # Other hosts close their own leftovers.
        return
    damaged: list[str] = []
    executor_of = partial(executor_of_intent, bench.results, engine=bench.engine)
    for record in recover(bench.results, bench.host, executor_of, damaged, bench.root, endings, display.problem):
        Index(bench.results).add(record)
        run_id = record.intent.run_id
        display.problem(f"{run_id}: {record.detail}; recorded as {record.outcome}")
        counts = count_runs([Row.of(record)])[run_id].counts
        if counts and record.diagnosis == "host-down":
            # Only the user knows whether the run, or something else, brought the host down.
            display.problem(f"it counts as failed, and `matrix strike {run_id} --reason TEXT` takes it out")
    for text in damaged:
        display.problem(text)
    if isinstance(bench.executor, DockerExecutor):
        bench.executor.remove_leftovers(bench.results.record)


def executor_of_intent(results: Results, intent: Intent, engine: Engine | None = None) -> Executor | None:
    """Return the executor that started a run, whichever executor is used now; None if no engine answers.

    `engine` is the engine to use; if None, any engine that answers.
    """
    if intent.executor == "process":
        return ProcessExecutor()
    try:
        engine = engine or find_engine()
    except UserError:
        return None
    return DockerExecutor(engine, results.runs) if engine else None


def recover(
    results: Results,
    host: HostFacts,
    executor_of: Callable[[Intent], Executor | None],
    damaged: list[str],
    root: Path = Path("/"),
    endings: Mapping[str, JobEnding | None] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[Record]:
    """Close the runs of this host that lost their harness. It is safe to repeat this, or to do it twice at once.

    - `executor_of`: returns the executor that started a run; None if it cannot be reached.
    - `damaged`: gets a line for each intent that cannot be read; such runs are left as they are.
    - `root`: the folder with the host's /sys and /dev.
    - `endings`: if given, only these runs are closed; each value says why the scheduler ended the job.
    """
    if not results.runs.is_dir():
        return []
    # Another user who shares the folder may hold the lock. Jobs on many nodes wait without a limit of their own,
    # because the scheduler limits them.
    seconds = None if job_here() else SHORT_LOCK_SECONDS
    with locked(results.folder / RECOVERY_LOCK, say, seconds):
        reached("recovery-begins")
        records = list(_close(results, host, executor_of, damaged, root, endings))
        if endings is None:
            _tidy(results)
        reached("recovery-done")
    return records


def _close(
    results: Results,
    host: HostFacts,
    executor_of: Callable[[Intent], Executor | None],
    damaged: list[str],
    root: Path,
    endings: Mapping[str, JobEnding | None] | None,
) -> Iterator[Record]:
    for intent in results.unfinished(damaged, endings):
        if intent.host.machine != host.machine or owner_alive(intent):
            continue
        # Check again: its harness may have written the record and ended in between. Now nobody else can write it.
        if not results.has_record(intent.run_id):
            _know_containers(intent, results)
            idle = _idle(intent, results)
            ended = end_run(intent, results, executor_of(intent))
            left = "" if ended else cannot_be_killed(results.run_folder(intent.run_id))
            steps, why = _accounted(intent, host, results)
            ending = (endings or {}).get(intent.run_id)
            finished = _last_seen(intent, results)
            record = _record(intent, host.boot_id, idle, finished, (steps, why), ending, left)
            if intent.host.boot_id == host.boot_id:
                _note_resets(intent, results, root)
            reached("orphan-ended")
            results.folder_of(intent.run_id).remove_places(all_of_it=False)
            results.finish(record)
            reached("orphan-recorded")
            yield record


def end_run(intent: Intent, results: Results, executor: Executor | None) -> bool:
    """End whatever still runs of a run; return False if a process cannot be killed."""
    folder = results.folder_of(intent.run_id)
    _know_containers(intent, results)
    lost = Job((), {}, folder.path, folder.recovered_log, note=folder.process)
    if executor and (handle := executor.find(lost)):
        # Ignore an engine that does not answer: the processes that are left decide.
        handle.stop(ORPHAN_GRACE_SECONDS)
    return end_processes_of_run(folder.path, ORPHAN_GRACE_SECONDS)


def _know_containers(intent: Intent, results: Results) -> None:
    folder = results.folder_of(intent.run_id)
    note_containers(run_mark(folder.path), folder.read_containers())


def _idle(intent: Intent, results: Results) -> tuple[float, float] | None:
    """Return for how long no rank of an orphan has advanced, and the limit, in seconds; None if no process is left.

    If no process of the orphan is left, the time of its last progress says nothing, as it may have ended with its
    harness.
    """
    folder = results.folder_of(intent.run_id)
    lines = last_lines(folder.work).values()
    if not lines or not look_at_processes(folder.path):
        return None
    # Its processes run, so the host has not booted since. The wall clock may have been set.
    last = max(lines, key=lambda line: line.monotonic)
    return time.monotonic() - last.monotonic, LIMITS[last.phase]


def _note_resets(intent: Intent, results: Results, root: Path) -> None:
    """Note what the kernel log says of the GPUs of an orphan since it began, unless its harness did so already.

    A reset during the check before the run does not count as the run's.
    """
    gpus = [gpu for gpu in intent.host.gpus if gpu.index in intent.gpus]
    steps = [step for step in read_steps(results, intent.host.machine) if step.run_id == intent.run_id]
    if not gpus or any(step.check == "kernel-log" for step in steps):
        return
    since = max([intent.started, *(step.at for step in steps if step.when == "before-run")])
    now = time.time()
    if intent.since_boot is not None:
        # The wall clock may have been set since.
        now = intent.started + time.clock_gettime(time.CLOCK_BOOTTIME) - intent.since_boot
    seen = look_for_resets(gpus, since, root, now)
    append_steps(results, [seen.line("after-failure", intent, intent.environment_hash)])


def _last_seen(intent: Intent, results: Results) -> float:
    """Return when a rank of an orphan last reported progress, or else when the orphan began, in seconds since 1970.

    The time from then until the orphan was found does not belong to the run. The app writes the time of its progress,
    so it is limited to the time when its file was last changed.
    """
    work = results.folder_of(intent.run_id).work
    told = [intent.started]
    for rank, line in last_lines(work).items():
        with contextlib.suppress(FileNotFoundError, NotAFileError):
            written = work.tree.look(work.PROGRESS.format(rank=rank)).changed
            told.append(min(line.wall, written, time.time()))
    return max(told)


def _accounted(intent: Intent, host: HostFacts, results: Results) -> tuple[tuple[int, ...] | None, str]:
    """Return the steps that the progress of an orphan accounts for, by model, and why none count, in words.

    As after a normal end, only these steps are handed to later attempts.
    """
    work, unreadable = results.folder_of(intent.run_id).work, Unreadable()
    with unreadable.reading():
        accounting = account_for(intent, work, _seconds_at_most(intent, host))
        return accounting.steps, "; ".join(accounting.breaches)
    return (), "; ".join(unreadable)


def _seconds_at_most(intent: Intent, host: HostFacts) -> float:
    """Return the longest time in seconds that an orphan can have run: since its harness began, by a monotonic clock.

    After a reboot no clock tells, because that one has started over and the wall clock may have been set in between.
    """
    if intent.host.boot_id != host.boot_id:
        return math.inf
    return time.clock_gettime(time.CLOCK_BOOTTIME) - intent.owner_started / os.sysconf("SC_CLK_TCK")


def _record(
    intent: Intent,
    boot_id: str,
    idle: tuple[float, float] | None,
    finished: float,
    accounted: tuple[tuple[int, ...] | None, str],
    ending: JobEnding | None,
    left: str,
) -> Record:
    """Return the record of a run that lost its harness, alone or because its host went down.

    - `idle`: for how long no rank has advanced, and the limit, in seconds; None if unknown.
    - `finished`: when the run ended.
    - `accounted`: the steps that its progress accounts for, and why there are none.
    - `ending`: why a scheduler ended the job. A host that went down, or a process that cannot be killed, takes
      precedence.
    - `left`: a description of the processes that cannot be killed; empty if there are none.
    """
    steps, why_none = accounted
    outcome: OutcomeName = "host-fault"
    diagnosis: str | None
    why = "its harness was gone before there was a record"
    if intent.host.boot_id != boot_id:
        diagnosis = "host-down"
        why += ": the host went down, or was booted again, before it had ended"
    elif left:
        diagnosis = "unkillable"
        why += f", and {left}"
    else:
        outcome, diagnosis = ("failed", "time-limit") if ending == "time-limit" else ("interrupted", None)
        why += f": {ENDINGS[ending]}" if ending else ""
    if why_none:
        why += f"; its progress cannot be used: {why_none}"
    return Record.bare(
        intent,
        outcome,
        diagnosis,
        why,
        finished=finished,
        steps_accounted=steps,
        interrupted_by="scheduler" if ending else "harness-killed",
        idle_seconds=idle[0] if idle else None,
        idle_limit=idle[1] if idle else None,
    )


def record_of_lost(intent: Intent, results: Results, unkillable: str = "") -> Record:
    """Return the record of a run on another host that does not come back, and therefore counts as down.

    `unkillable`: the host is there but takes no more jobs, because a process cannot be killed; the text describes that.
    """
    finished = _last_seen(intent, results)
    boot = intent.host.boot_id if unkillable else GONE
    return _record(intent, boot, None, finished, ((), ""), None, unkillable)


def _tidy(results: Results) -> None:
    """Remove what nobody can use any more: half-written files, and temporary folders of runs that are over."""
    # Follow links that this user made for these folders, but none inside a shared results folder, where anybody may
    # have made them.
    own = (results.folder.resolve(), DATA.resolve(), APPS.resolve())
    for folder in (*own, *results.folder.glob("*/")):
        remove_unfinished(folder)
    for run_id in results.finished():
        run = results.folder_of(run_id)
        if run.temporary.exists():
            # A damaged record must not keep other runs from being tidied.
            with contextlib.suppress(UserError):
                record = results.record(run_id)
                over = record is not None and record.outcome == "completed" and not _is_attempt(record)
                run.remove_places(all_of_it=over)


def _is_attempt(record: Record) -> bool:
    """Return whether a run is an attempt of a training, which may still need its checkpoints."""
    return is_of_training(record.intent.campaign)
