"""One run: intent -> start -> watch -> verify -> outcome -> post-run checks and explanation -> record."""

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from harness.base.errors import UserError
from harness.base.interrupts import GRACE_SECONDS, open_to_interruption, shielded
from harness.diagnosis import explain_run
from harness.environments.executors.job import Executor, Exit
from harness.evidence.accounting import Accounting
from harness.evidence.app_files import Result, Wait
from harness.evidence.interruptions import host_is_shutting_down, interruption_by
from harness.evidence.last_line import APP_ERROR, last_line
from harness.evidence.leftovers import Leftover, in_short, leftovers, remove_excess
from harness.evidence.memory import MemoryUse
from harness.evidence.outcome.decide import APP_EXITS, Outcome, decide, undecided
from harness.evidence.outcome.diagnoses import StoppedBy
from harness.evidence.outcome.evidence import Evidence
from harness.evidence.records import Results
from harness.evidence.run_files import Explanation, Interruption, Record
from harness.evidence.work_folder import hand_over
from harness.host.gpu_memory import GpuWatch
from harness.host.jobs import ENDINGS
from harness.host.run_processes import end_processes_of_run, name_survivors
from harness.host.slurm import why_ended
from harness.run.asked import Run
from harness.run.gpu_health import (
    Checkup,
    MemoryBefore,
    Readiness,
    after_completion,
    after_failure,
    after_interruption,
    after_unkillable,
    before_run,
)
from harness.run.own_program import OwnProgram, ran_on
from harness.run.spec import RunSpec, resolve_run
from harness.run.unreadable import Unreadable, cannot_be_read
from harness.run.verify import keep, verify
from harness.run.watch.engine_watch import Say
from harness.run.watch.gpu_sensors import SensorWatch
from harness.run.watch.limits import LIMITS, Limits, known_stalls, limits_of
from harness.run.watch.watch import Observer, OnStall, Watch

APP_WORDS = {"app-error", "refused", *APP_EXITS.values()}
"""Diagnoses of what the app said itself, where there is no result."""


RECORD_BYTES = 64 << 20
"""Room for a record, the index and the logs of a run."""


class Notes(list[str]):
    """Lines for a record about what failed in the harness itself: no reason to lose the record."""

    @contextmanager
    def tolerated(self, what: str) -> Iterator[None]:
        """Note an error of what is done in here, and continue after it."""
        try:
            yield
        except Exception as error:
            self.append(f"{what} failed: {type(error).__name__}: {error}")


@dataclass(frozen=True)
class RunConclusion:
    """The outcome of a run and what it rests on. `interrupt`: what stopped the post-run checks."""

    outcome: Outcome
    evidence: Evidence
    explanation: Explanation | None
    interrupt: KeyboardInterrupt | None = None


def run_cell(
    run: Run,
    results: Results,
    executor: Executor,
    observe: Observer = lambda _: None,
    root: Path = Path("/"),
    on_stall: OnStall = lambda _: None,
    say: Say = lambda _: None,
) -> Record:
    """Run a cell once and leave a record of it. `root` holds the driver's files, and can be a fake tree.

    `say` takes a line on what the run waits for.

    Once there is an intent, an interruption counts only between the steps that must not be torn.

    Raises:
        UserError: when the results folder cannot be written; what was running is ended, and recorded as interrupted
            where a record can be written.
        KeyboardInterrupt: after the run was recorded, as interrupted where it had not ended by itself.
    """
    with shielded():
        spec = resolve_run(run, results.folder_of(run.run_id))
        results.begin(spec.intent)
        gpus = GpuWatch(spec.kfd_ids, root) if spec.intent.device == "cuda" else None
        accounting = Accounting(spec.request.expected, LIMITS)
        own = OwnProgram(spec)
        watch = Watch(
            spec.folder,
            executor,
            observe,
            gpus,
            on_stall,
            root,
            accounting,
            ranks=spec.request.ranks,
            sensors=SensorWatch(spec.folder, spec.gpus, root),
            program=own.progress,
            say=say,
        )
        checkup = Checkup(spec, results, executor, root)
        notes = Notes()
        ready = Readiness({})
        evidence = Evidence(exits={})
        interrupted_by: Interruption | None = None
        interrupt: KeyboardInterrupt | UserError | None = None
        began = time.monotonic()
        try:
            _make_places(spec, own)
            with watch, open_to_interruption():
                with notes.tolerated("checking the GPUs before the run"):
                    ready = before_run(checkup)
                    if ready.unfit:
                        evidence = Evidence(exits={}, stopped_by="unhealthy", stop_detail=ready.unfit)
                # What the kernel log says of a reset by recovery before it is none of the run's.
                began = time.monotonic()
                if evidence.stopped_by is None:
                    evidence = _carry_out(spec, watch, results, notes)
                    evidence = _accounted(evidence, accounting)
                watch.sweep()
                evidence = own.judged(evidence, watch, executor, root)
                if watch.stopped_by is None and (result := evidence.result) is not None:
                    evidence = _verified(spec, executor, evidence, result, root)
        except KeyboardInterrupt as caught:
            interrupt = caught
            interrupted_by, stopped_by, stop_detail = _interruption(run, str(caught))
            evidence = replace(
                evidence, steps_accounted=accounting.steps, stopped_by=stopped_by, stop_detail=stop_detail
            )
        except UserError as error:
            evidence, interrupt = _cannot_go_on(replace(evidence, steps_accounted=accounting.steps), watch, error)
        except Exception as error:
            # Whatever the app wrote: the run has its record, and the next one begins.
            evidence = replace(
                evidence, stopped_by="work-folder", stop_detail=cannot_be_read(error), steps_accounted=()
            )
        if watch.stopped_by == "host":
            evidence = replace(evidence, stopped_by="host", stop_detail=watch.stop_detail)
        conclusion = _conclude(
            spec,
            checkup,
            replace(evidence, no_kernels=ready.no_kernels),
            ready.memory,
            notes,
            began if interrupt is None else None,
        )
        interrupt = interrupt or conclusion.interrupt
        _remove_unneeded(spec, conclusion.outcome, notes)
        record = _recorded(spec, conclusion, watch, notes, interrupted_by, results)
        if evidence.stopped_by in ("user", "harness"):
            # After the record: whoever interrupts may not wait for long.
            with notes.tolerated("waiting for the GPUs' memory"):
                after_interruption(checkup, ready.memory, _since(began))
        if interrupt:
            raise interrupt
    return record


def _interruption(run: Run, caught: str) -> tuple[Interruption, StoppedBy, str]:
    """Return what interrupted a run, what that counts as, and both in words; `caught` names the signal."""
    by = interruption_by(caught, shutting_down=host_is_shutting_down())
    # Schedulers end their jobs by TERM, too.
    if by == "term" and run.scheduled:
        ending = why_ended(run.scheduled.job)
        return "scheduler", "time-limit" if ending == "time-limit" else "user", ENDINGS[ending]
    return by, "user", f"stopped by {caught or 'Ctrl-C'}"


def _make_places(spec: RunSpec, own: OwnProgram) -> None:
    """Make the folders that the processes find, with what the run resumes from in its place."""
    spec.folder.make_places()
    hand_over(spec.resume_from or (), spec.work.output)
    own.prepare()


def _cannot_go_on(evidence: Evidence, watch: Watch, error: UserError) -> tuple[Evidence, UserError | None]:
    """Return the evidence of a run whose files cannot be written, or that cannot be started, and what to tell of it.

    Where it had itself filled the disk, it has failed by that, and there is no error.
    """
    if watch.seconds:
        watch.look_at_disk()
    if watch.stopped_by == "disk-limit":
        return replace(evidence, stopped_by="disk-limit", stop_detail=watch.stop_detail), None
    return replace(evidence, stopped_by="harness", stop_detail=f"the harness could not go on: {error}"), error


def _remove_unneeded(spec: RunSpec, outcome: Outcome, notes: Notes) -> None:
    """Remove the files that nobody needs after the run."""
    with notes.tolerated("removing the files that nobody needs"):
        notes += spec.folder.remove_places(all_of_it=outcome.name == "completed" and spec.resume_from is None)
        if outcome.diagnosis == "disk-limit":
            notes.append(remove_excess(spec.work))
            if shutil.disk_usage(spec.folder.path).free < RECORD_BYTES:
                # The record comes first, and the next run.
                why = spec.work.tree.remove(spec.work.OUTPUT)
                notes.append(why or "its models and checkpoints are removed, too: the disk is full")


def _carry_out(spec: RunSpec, watch: Watch, results: Results, notes: Notes) -> Evidence:
    """Run the phases one after the other, as far as they succeed."""
    history: Sequence[Mapping[Wait, float]] = ()
    with notes.tolerated("reading the stalls of earlier runs"):
        history = () if spec.limits else known_stalls(results, spec.intent, spec.workload_hashes)
    limits = Limits.fixed(spec.limits) if spec.limits else limits_of(history, spec.intent.device)
    exits: dict[str, Exit] = {}
    deadline = time.monotonic() + spec.intent.time_limit
    for phase, job in spec.phases.items():
        exit_ = watch.execute(job, deadline - time.monotonic(), limits)
        if exit_ is not None:
            exits[phase] = exit_
        if exit_ is None or not exit_.ok or watch.stopped_by:
            break
    unreadable = Unreadable()
    result: Result | None = None
    problem = ""
    found = tuple(Leftover(name, why) for name, why in sorted(watch.progress.odd_files.items()))
    with unreadable.reading():
        if spec.request.program is None:
            result, problem = spec.folder.keep_result()
        found = (*found, *leftovers(spec.work))
    unexpected = tuple(one for one in found if not one.expected)
    if unexpected:
        notes.append(in_short(unexpected))
    return Evidence(
        exits=exits,
        stopped_by=watch.stopped_by,
        stop_detail=watch.stop_detail,
        result=result,
        result_problem=problem,
        gpus_seen=watch.gpus_seen,
        memory=MemoryUse.of(watch.progress.memory.samples),
        leftovers="; ".join(filter(None, [in_short(tuple(one for one in found if one.expected)), *unreadable])),
    )


def _accounted(evidence: Evidence, accounting: Accounting) -> Evidence:
    """Return the evidence with what its progress does not account for."""
    unreadable, breaches = Unreadable(), accounting.breaches
    with unreadable.reading():
        breaches = accounting.close(evidence.result)
    return replace(
        evidence,
        breaches=breaches,
        steps_accounted=accounting.steps if not unreadable else (),
        leftovers="; ".join(filter(None, [evidence.leftovers, *unreadable])),
    )


def _verified(spec: RunSpec, executor: Executor, evidence: Evidence, result: Result, root: Path) -> Evidence:
    """Return the evidence with what was kept and found of a run that ended by itself with a result."""
    unreadable = Unreadable()
    with unreadable.reading():
        evidence = verify(spec, executor, keep(spec, evidence, result), result, root)
    return replace(evidence, leftovers="; ".join(filter(None, [evidence.leftovers, *unreadable])))


def _conclude(
    spec: RunSpec, checkup: Checkup, evidence: Evidence, memory: MemoryBefore, notes: Notes, began: float | None
) -> RunConclusion:
    """Decide the outcome; check the GPUs of a run that did not complete, and explain it.

    `began`: on the monotonic clock; None where somebody interrupted the run, who should not have to wait for that.
    """
    if evidence.stopped_by == "host":
        with notes.tolerated("noting that the GPUs can be used no more"):
            after_unkillable(checkup)
    explanation = None
    outcome, evidence = _decided(spec, evidence)
    if evidence.stopped_by == "unhealthy":
        return RunConclusion(outcome, evidence, None)
    if outcome.name == "completed":
        try:
            with open_to_interruption(), notes.tolerated("checking the GPUs after the run"):
                health = after_completion(checkup, _since(began))
                evidence = replace(evidence, host_problems=health.problems)
        except KeyboardInterrupt as caught:
            notes.append(f"the post-run checks were stopped by {caught or 'Ctrl-C'}")
            return RunConclusion(outcome, evidence, None, caught)
    elif began is not None:
        try:
            with open_to_interruption():
                with notes.tolerated("checking the GPUs after the run"):
                    health = after_failure(checkup, memory, _since(began), unkillable=evidence.stopped_by == "host")
                    evidence = replace(evidence, host_problems=health.problems)
                outcome, evidence = _decided(spec, evidence)
                with notes.tolerated("explaining it"):
                    intent = spec.intent
                    explanation = explain_run(
                        spec.folder,
                        outcome,
                        evidence.exits,
                        intent.host,
                        intent.rocm,
                        intent.torch,
                        own_program=intent.program is not None,
                    )
        except KeyboardInterrupt as caught:
            # A probe that had just been started, and that nobody has noted yet.
            with notes.tolerated("ending what it left"):
                end_processes_of_run(spec.folder.path, GRACE_SECONDS)
            # The run itself had ended before, and stays what it was.
            notes.append(f"the post-run checks were stopped by {caught or 'Ctrl-C'}")
            return RunConclusion(outcome, evidence, explanation, caught)
    return RunConclusion(outcome, evidence, explanation)


def _decided(spec: RunSpec, evidence: Evidence) -> tuple[Outcome, Evidence]:
    """Return the outcome, and the evidence: as of a run that was stopped, where nothing can be decided from it."""
    try:
        return decide(spec.request, evidence), evidence
    except Exception as error:
        outcome = undecided(evidence.stopped_by, cannot_be_read(error))
        stopped_by = evidence.stopped_by or "work-folder"
        return outcome, replace(evidence, stopped_by=stopped_by, stop_detail=outcome.detail)


def _since(began: float | None) -> float:
    """Return a time on the monotonic clock in seconds since 1970: the clock may have been set since."""
    return time.time() - (time.monotonic() - began) if began is not None else time.time()


def _recorded(
    spec: RunSpec,
    conclusion: RunConclusion,
    watch: Watch,
    notes: Notes,
    interrupted_by: Interruption | None,
    results: Results,
) -> Record:
    """Write the record, and return it; one without all that the app wrote, where that cannot be written."""
    if conclusion.evidence.stopped_by == "engine":
        interrupted_by = "engine"
    try:
        record = _record(spec, conclusion, watch, notes, interrupted_by)
        results.finish(record)
    except UserError:
        raise
    except Exception as error:
        outcome = undecided(conclusion.evidence.stopped_by, cannot_be_read(error))
        record = Record(
            intent=spec.intent,
            outcome=outcome.name,
            diagnosis=outcome.diagnosis,
            detail=outcome.detail,
            exit={},
            ran_on="unknown",
            finished=time.time(),
            seconds=watch.seconds,
            last_phase=None,
            result=None,
            # Nothing more may be resumed from than of a run whose record can be written.
            steps_accounted=conclusion.evidence.steps_accounted or (),
            interrupted_by=interrupted_by if outcome.name == "interrupted" else None,
        )
        results.finish(record)
    return record


def _record(
    spec: RunSpec, conclusion: RunConclusion, watch: Watch, notes: Notes, interrupted_by: Interruption | None
) -> Record:
    outcome, evidence = conclusion.outcome, conclusion.evidence
    unkillable = (evidence.stop_detail,) if evidence.stopped_by == "host" else ()
    result = evidence.result
    said = f": {last_line(spec.folder.log, APP_ERROR)}" if outcome.diagnosis in APP_WORDS and result is None else ""
    left = [evidence.leftovers] if evidence.leftovers and outcome.diagnosis != "work-folder" else []
    exposure = watch.progress.exposure.exposure
    return Record(
        intent=spec.intent,
        outcome=outcome.name,
        diagnosis=outcome.diagnosis,
        # What was decided, what the app said of it, what it left that still ran or cannot be read, what of ours failed.
        detail="; ".join(filter(None, [f"{outcome.detail}{said}", name_survivors(watch.survivors), *left, *notes])),
        exit={phase: str(exit_) for phase, exit_ in evidence.exits.items()},
        ran_on=ran_on(spec, evidence),
        finished=time.time(),
        seconds=watch.seconds,
        last_phase=watch.progress.last.phase if watch.progress.last else None,
        result=result,
        not_verified=evidence.not_verified,
        steps_accounted=evidence.steps_accounted,
        longest_stall=watch.longest_stall,
        first_step=exposure.first_step,
        exposure_seconds=exposure.seconds,
        interrupted_by=interrupted_by if outcome.name == "interrupted" else None,
        idle_seconds=watch.idle.idle if watch.idle else None,
        idle_limit=watch.idle.limit if watch.idle else None,
        explanation=conclusion.explanation,
        host_problems=(*unkillable, *evidence.host_problems),
    )
