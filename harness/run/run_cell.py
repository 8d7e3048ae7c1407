"""One run: intent -> start -> watch -> verify -> outcome -> post-run checks and explanation -> record."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from harness.base.interrupts import open_to_interruption, shielded
from harness.base.storage import write_durably
from harness.diagnosis import explain_run
from harness.environments.executors.job import Executor, Exit
from harness.evidence.app_files import Phase, Result
from harness.evidence.last_line import last_line
from harness.evidence.memory import MemoryUse
from harness.evidence.outcome import APP_EXITS, Evidence, Outcome, decide
from harness.evidence.records import Results
from harness.evidence.run_files import Explanation, Record
from harness.evidence.work_folder import hand_over, read_reference
from harness.host.gpu_memory import GpuWatch
from harness.run.gpu_health import (
    Checkup,
    MemoryBefore,
    after_completion,
    after_failure,
    after_interruption,
    after_unkillable,
    before_run,
)
from harness.run.spec import Run, RunSpec, resolve_run
from harness.run.watch.limits import Limits, known_stalls, limits_of
from harness.run.watch.watch import Observer, OnStall, Watch

# Loading a model and sixteen steps on the CPU; the VPOC phase before them is what takes time.
VERIFY_LIMIT_SECONDS = 1800

APP_WORDS = {"app-error", *APP_EXITS.values()}
"""Diagnoses of what the app said itself, where there is no result."""


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
) -> Record:
    """Run a cell once and leave a record of it. `root` holds the driver's files, and can be a fake tree.

    Once there is an intent, an interruption counts only between the steps that must not be torn.

    Raises:
        UserError: when the results folder cannot be written; what was running is ended.
        KeyboardInterrupt: after the run was recorded, as interrupted where it had not ended by itself.
    """
    with shielded():
        spec = resolve_run(run, results.folder_of(run.run_id))
        results.begin(spec.intent)
        gpus = GpuWatch(spec.kfd_ids, root) if spec.intent.device == "cuda" else None
        watch = Watch(spec.folder, executor, observe, gpus, on_stall, root)
        checkup = Checkup(spec, results, executor, root)
        notes = Notes()
        memory: MemoryBefore = {}
        evidence = Evidence(exits={})
        interrupt: KeyboardInterrupt | None = None
        began = time.monotonic()
        try:
            spec.folder.make_places()
            hand_over(spec.resume_from or (), spec.folder.work.output)
            with watch, open_to_interruption():
                with notes.tolerated("checking the GPUs before the run"):
                    memory, problems = before_run(checkup)
                    if problems:
                        evidence = Evidence(exits={}, stopped_by="host", stop_detail="; ".join(problems))
                if evidence.stopped_by is None:
                    evidence = _carry_out(spec, watch, results, notes)
                if evidence.stopped_by is None and evidence.result is not None:
                    evidence = _verify(spec, watch, evidence, evidence.result, results.references)
        except KeyboardInterrupt as caught:
            interrupt = caught
            evidence = replace(evidence, stopped_by="user", stop_detail=f"stopped by {caught or 'Ctrl-C'}")
        if watch.stopped_by == "host":
            evidence = replace(evidence, stopped_by="host", stop_detail=watch.stop_detail)
        conclusion = _conclude(spec, checkup, evidence, memory, notes, began if interrupt is None else None)
        interrupt = interrupt or conclusion.interrupt
        record = _record(spec, conclusion, watch, notes)
        results.finish(record)
        spec.folder.remove_places(all_of_it=record.outcome == "completed" and spec.resume_from is None)
        if evidence.stopped_by == "user":
            # After the record: whoever interrupts may not wait for long.
            with notes.tolerated("waiting for the GPUs' memory"):
                after_interruption(checkup, memory)
        if interrupt:
            raise interrupt
    return record


def _carry_out(spec: RunSpec, watch: Watch, results: Results, notes: Notes) -> Evidence:
    """Run the phases one after the other, as far as they succeed."""
    history: Sequence[Mapping[Phase, float]] = ()
    with notes.tolerated("reading the stalls of earlier runs"):
        history = () if spec.limits else known_stalls(results, spec.intent)
    limits = Limits.fixed(spec.limits) if spec.limits else limits_of(history, spec.intent.device)
    exits: dict[str, Exit] = {}
    deadline = time.monotonic() + spec.intent.time_limit
    for phase, job in spec.phases.items():
        exit_ = watch.execute(job, deadline - time.monotonic(), limits)
        if exit_ is not None:
            exits[phase] = exit_
        if exit_ is None or not exit_.ok or watch.stopped_by:
            break
    result, problem = spec.folder.work.read_result()
    return Evidence(
        exits=exits,
        stopped_by=watch.stopped_by,
        stop_detail=watch.stop_detail,
        result=result,
        result_problem=problem,
        gpus_seen=watch.gpus_seen,
        memory=MemoryUse.of(watch.memory.samples),
    )


def _verify(spec: RunSpec, watch: Watch, evidence: Evidence, result: Result, references: Path) -> Evidence:
    """Load the model in a fresh process and compute the reference. What fails here is missing from the evidence.

    The reference of a workload in an environment, without any preset, is computed once, then cached.
    """
    model = str(spec.seen.model(result.model.file))
    check = replace(spec.model_check, arguments=(*spec.model_check.arguments, model))
    exit_ = watch.execute(check, VERIFY_LIMIT_SECONDS)
    model_check = spec.folder.read_model_check() if exit_ and exit_.ok else None
    work, cached = spec.folder.work, references / f"{spec.reference_hash}.json"
    reference = None
    if not watch.stopped_by:
        reference, source, copy = read_reference(cached), cached, work.reference
        if reference is None:
            exit_ = watch.execute(spec.reference, VERIFY_LIMIT_SECONDS)
            reference = read_reference(work.reference) if exit_ and exit_.ok else None
            source, copy = copy, source
        if reference:
            write_durably(copy, source.read_bytes())
    evidence = replace(
        evidence,
        model_sha256=work.model_hash(result),
        earlier_sha256=tuple(map(work.model_hash, result.earlier)),
        model_check=model_check,
        reference=reference,
    )
    if watch.stopped_by in ("engine", "start"):
        # Not the training's fault: nothing could be started to verify it.
        return replace(evidence, stopped_by="engine", stop_detail=watch.stop_detail)
    return evidence


def _conclude(
    spec: RunSpec, checkup: Checkup, evidence: Evidence, memory: MemoryBefore, notes: Notes, began: float | None
) -> RunConclusion:
    """Decide the outcome; check the GPUs of a run that did not complete, and explain it.

    `began`: on the monotonic clock; None where somebody interrupted the run, who should not have to wait for that.
    """
    if evidence.stopped_by == "host":
        with notes.tolerated("noting that the GPUs can be used no more"):
            after_unkillable(checkup)
    outcome, explanation = decide(spec.request, evidence), None
    if outcome.name == "completed":
        with notes.tolerated("noting that the GPUs are healthy"):
            after_completion(checkup)
    elif began is not None:
        try:
            with open_to_interruption():
                with notes.tolerated("checking the GPUs after the run"):
                    # Not the intent's time: the clock may have been set since.
                    since = time.time() - (time.monotonic() - began)
                    health = after_failure(checkup, memory, since, unkillable=evidence.stopped_by == "host")
                    evidence = replace(evidence, host_problems=health.problems)
                outcome = decide(spec.request, evidence)
                with notes.tolerated("explaining it"):
                    intent = spec.intent
                    explanation = explain_run(
                        spec.folder, outcome, evidence.exits, intent.host, intent.rocm, intent.torch
                    )
        except KeyboardInterrupt as caught:
            # The run itself had ended before, and stays what it was.
            notes.append(f"the post-run checks were stopped by {caught or 'Ctrl-C'}")
            return RunConclusion(outcome, evidence, explanation, caught)
    return RunConclusion(outcome, evidence, explanation)


def _record(spec: RunSpec, conclusion: RunConclusion, watch: Watch, notes: Notes) -> Record:
    outcome, evidence = conclusion.outcome, conclusion.evidence
    unkillable = (evidence.stop_detail,) if evidence.stopped_by == "host" else ()
    result = evidence.result
    said = f": {last_line(spec.folder.log)}" if outcome.diagnosis in APP_WORDS and result is None else ""
    names = sorted({device.gfx or device.name for device in result.devices}) if result else []
    return Record(
        intent=spec.intent,
        outcome=outcome.name,
        diagnosis=outcome.diagnosis,
        # What was decided, what the app said of it, and what of ours failed.
        detail="; ".join([f"{outcome.detail}{said}", *notes]),
        exit={phase: str(exit_) for phase, exit_ in evidence.exits.items()},
        ran_on=f"{result.device} ({', '.join(names)}) x{len(result.devices)}" if result else "unknown",
        finished=time.time(),
        seconds=watch.seconds,
        last_phase=watch.last.phase if watch.last else None,
        result=result,
        longest_stall=watch.longest_stall,
        explanation=conclusion.explanation,
        host_problems=(*unkillable, *evidence.host_problems),
    )
