"""One run: intent -> start -> watch -> verify -> outcome -> post-run checks and explanation -> record."""

import shutil
from dataclasses import replace
from pathlib import Path

from harness.base.errors import NoSpaceError, RemovedMeanwhileError, UserError
from harness.base.interrupts import SIGNALS, open_to_interruption, shielded
from harness.environments.executors.job import SHELL_SIGNALS, Executor, Exit
from harness.evidence.app_reports.accounting import Accounting, asked_of
from harness.evidence.files.leftovers import remove_excess
from harness.evidence.files.run_files import Interruption, Record
from harness.evidence.files.work_folder import hand_over
from harness.evidence.interruptions import host_is_shutting_down, interruption_by
from harness.evidence.outcome.decide import Outcome
from harness.evidence.outcome.diagnoses import StoppedBy
from harness.evidence.outcome.evidence import Evidence
from harness.evidence.records import Results
from harness.host.disk_use import took_the_room
from harness.host.gpus.gpu_memory import GpuWatch
from harness.host.jobs import ENDINGS
from harness.host.slurm import why_ended
from harness.run.carry_out import carry_out, held_open
from harness.run.conclude import conclude_run
from harness.run.gpu_health import Checkup, after_interruption
from harness.run.gpu_readiness import Readiness, before_run
from harness.run.notes import Notes, cannot_be_read
from harness.run.own_program import OwnProgram
from harness.run.requested_run import Run
from harness.run.spec import RunSpec, resolve_run
from harness.run.verify import verify_run
from harness.run.watch.engine_watch import Say
from harness.run.watch.gpu_sensors import SensorWatch
from harness.run.watch.limits import LIMITS
from harness.run.watch.watch import Observer, OnStall, Watch
from harness.run.write_record import write_record

RECORD_BYTES = 64 << 20
"""Room for a record, the index and the logs of a run."""


def run_cell(
    run: Run,
    results: Results,
    executor: Executor,
    observe: Observer = lambda _: None,
    root: Path = Path("/"),
    on_stall: OnStall = lambda _: None,
    say: Say = lambda _: None,
) -> Record:
    """Run a cell once and leave a record of the run.

    `say`: called with a line of text on what the run waits for.
    `root`: the root of the driver's files; may be a fake tree.

    Once the intent is written, an interruption takes effect only between the steps that must not be torn.

    Raises:
        UserError: when the results folder cannot be written, or its disk is full. What was running is ended, and
            recorded as interrupted if a record can be written.
        KeyboardInterrupt: after the run was recorded; as interrupted unless it had ended by itself.
    """
    with shielded():
        spec = resolve_run(run, results.folder_of(run.run_id))
        results.begin(spec.intent)
        accounting = Accounting(asked_of(spec.intent), LIMITS)
        own = OwnProgram(spec)
        watch = Watch(
            spec.folder,
            executor,
            observe,
            GpuWatch(spec.kfd_ids, root) if spec.intent.device == "cuda" else None,
            on_stall,
            root,
            accounting,
            ranks=spec.request.ranks,
            sensors=SensorWatch(spec.folder, spec.gpus, root),
            program=own.progress,
            say=say,
        )
        checkup = Checkup(spec, results, executor, root)
        notes, ready, began = Notes(), Readiness({}), spec.now_awake
        # Filled while the processes run, so that it is complete even if a later step fails.
        exits: dict[str, Exit] = {}
        evidence = Evidence(exits=exits)
        interrupted_by: Interruption | None = None
        interrupt: KeyboardInterrupt | UserError | None = None
        try:
            spec.folder.make_places()
            hand_over(spec.resume_from or (), spec.work.output)
            own.prepare()
            with watch, open_to_interruption(), held_open(spec.container.data if spec.container else ()):
                try:
                    with notes.tolerated("checking the GPUs before the run"):
                        ready = before_run(checkup)
                        if ready.why_unfit:
                            evidence = Evidence(exits=exits, stopped_by="unhealthy", stop_detail=ready.why_unfit)
                finally:
                    # Resets before the run are in the kernel log, too, and are not the run's.
                    began = spec.now_awake
                if evidence.stopped_by is None:
                    evidence = carry_out(spec, watch, accounting, results, notes, exits)
                watch.sweep()
                evidence = own.judged(evidence, watch, executor, root)
                if evidence.result and watch.stopped_by is None:
                    evidence = verify_run(spec, executor, evidence, evidence.result, root)
        except KeyboardInterrupt as caught:
            interrupt = caught
            evidence, interrupted_by = _interrupted(run, evidence, watch, accounting, str(caught))
        except UserError as error:
            evidence, interrupt = _cannot_go_on(spec, replace(evidence, steps_accounted=accounting.steps), watch, error)
        except Exception as error:
            # Whatever the app wrote, the run gets its record, and the next one can start.
            evidence = replace(
                evidence, stopped_by="work-folder", stop_detail=cannot_be_read(error), steps_accounted=()
            )
        if watch.stopped_by == "host":
            evidence = replace(evidence, stopped_by="host", stop_detail=watch.stop_detail)
        conclusion = conclude_run(
            spec,
            checkup,
            replace(evidence, no_kernels=ready.no_kernels),
            ready.memory,
            notes,
            began if interrupt is None else None,
        )
        _remove_unneeded(spec, conclusion.outcome, notes)
        record = write_record(spec, conclusion, watch, notes, interrupted_by, results)
        if interrupt and evidence.stopped_by != "host":
            # After the record, because a user who interrupts may not wait for long.
            with notes.tolerated("waiting for the GPUs' memory"):
                after_interruption(checkup, ready.memory, began)
        if interrupt := interrupt or conclusion.interrupt:
            raise interrupt
    return record


def _interrupted(
    run: Run, evidence: Evidence, watch: Watch, accounting: Accounting, caught: str
) -> tuple[Evidence, Interruption]:
    """Return the evidence of an interrupted run, and what interrupted it; `caught` as in `_interruption`.

    What had failed before, while what it left was looked at, stays a failure.
    """
    by, stopped_by, stop_detail = _interruption(run, caught)
    evidence = replace(evidence, steps_accounted=accounting.steps)
    if watch.stopped_by:
        stopped_by, stop_detail = watch.stopped_by, watch.stop_detail
    elif not all(one.ok or _by_signal_to_all(one) for one in evidence.exits.values()):
        return evidence, by
    return replace(evidence, stopped_by=stopped_by, stop_detail=stop_detail), by


def _by_signal_to_all(exit_: Exit) -> bool:
    """Return whether a signal ended a process that may have come to the harness, too: a shutdown ends all at once."""
    return any(exit_.code in (-number, SHELL_SIGNALS + number) for number in SIGNALS)


def _interruption(run: Run, caught: str) -> tuple[Interruption, StoppedBy, str]:
    """Return what interrupted a run, what that counts as, and the reason in words. `caught`: the name of the signal."""
    by = interruption_by(caught, shutting_down=host_is_shutting_down())
    # Schedulers end their jobs by TERM, too.
    if by == "term" and run.scheduled:
        ending = why_ended(run.scheduled.job)
        return "scheduler", "time-limit" if ending == "time-limit" else "user", ENDINGS[ending]
    return by, "user", f"stopped by {caught or 'Ctrl-C'}"


def _cannot_go_on(
    spec: RunSpec, evidence: Evidence, watch: Watch, error: UserError
) -> tuple[Evidence, UserError | None]:
    """Return the evidence of a run whose files cannot be written or that cannot be started, and the error to report.

    There is no error to report where the run had failed before, or itself removed its folder, filled the disk or took
    the room in which its files were to be copied.
    """
    if isinstance(error, RemovedMeanwhileError):
        return replace(evidence, stopped_by="work-folder", stop_detail=f"the work folder is gone: {error}"), None
    if watch.seconds:
        watch.look_at_disk()
    if watch.stopped_by:
        return replace(evidence, stopped_by=watch.stopped_by, stop_detail=watch.stop_detail), None
    failed = not all(one.ok for one in evidence.exits.values())
    if failed or (watch.seconds and isinstance(error, NoSpaceError) and took_the_room(Path(spec.work.path))):
        return evidence.also_left(str(error)), None
    return replace(evidence, stopped_by="harness", stop_detail=f"the harness could not continue: {error}"), error


def _remove_unneeded(spec: RunSpec, outcome: Outcome, notes: Notes) -> None:
    """Remove the files that are not needed after the run."""
    with notes.tolerated("removing files that are no longer needed"):
        notes += spec.folder.remove_places(all_of_it=outcome.name == "completed" and spec.resume_from is None)
        if outcome.diagnosis == "disk-limit":
            attempt_at_program = spec.request.program and spec.resume_from is not None
            needed = spec.work.PROGRAM if attempt_at_program else spec.work.OUTPUT
            notes.append(remove_excess(spec.work, needed))
            full = shutil.disk_usage(spec.folder.path).free < RECORD_BYTES
            # Where another program filled the disk, they are what a training continues from, and free next to nothing.
            if full and took_the_room(Path(spec.work.path)):
                # The record and the next run are more important.
                why = spec.work.tree.remove(needed)
                notes.append(why or "its models and checkpoints are removed, too: the disk is full")
