"""One run: intent -> start -> watch -> outcome -> health and explanation -> record."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.base.interrupts import open_to_interruption, shielded
from harness.base.storage import json_hash, write_durably
from harness.environments.executors.job import Executor, Exit
from harness.evidence.app_files import Reference, Result
from harness.evidence.leftovers import (
    OUTPUT,
    last_line,
    model_file,
    model_hash,
    read_model_check,
    read_reference,
    read_result,
)
from harness.evidence.outcome import APP_EXITS, Evidence, Outcome, decide
from harness.evidence.records import Results
from harness.evidence.run_files import Explanation, Intent, Record
from harness.run.checkpoints import hand_over
from harness.run.gpu_health import Checkup
from harness.run.post_run import PostRun
from harness.run.process_environment import make_scratch, remove_scratch
from harness.run.spec import Run
from harness.run.watch.limits import Limits
from harness.run.watch.watch import Observer, OnStall, Watch

LOG = "log.txt"
CHECK_LOG = "check-model.txt"
# Loading a model and sixteen steps on the CPU; the VPOC phase before them is what takes time.
VERIFY_LIMIT_SECONDS = 1800

APP_WORDS = {"app-error", *APP_EXITS.values()}
"""Diagnoses of what the app said itself, where there is no result."""


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
        folder = results.run_folder(run.run_id)
        intent = run.intent(folder)
        results.begin(intent)
        watch = Watch(folder, executor, observe, run.gpu_watch(root), on_stall, root)
        post_run = PostRun(Checkup(run, folder, results, executor, root), intent)
        evidence = Evidence(exits={})
        began, seconds = time.monotonic(), None
        interrupt = None
        try:
            _make_ready(run, folder)
            with open_to_interruption():
                problems, limits = post_run.prepare(), post_run.limits()
                began = time.monotonic()
                evidence = _carry_out(run, intent, folder, watch, limits, problems)
                seconds = time.monotonic() - began
                if evidence.stopped_by is None and evidence.result is not None:
                    evidence = _verify(run, folder, watch, evidence, evidence.result, results.folder / "references")
        except KeyboardInterrupt as caught:
            interrupt = caught
            evidence = replace(evidence, stopped_by="user", stop_detail=f"stopped by {caught or 'Ctrl-C'}")
        finally:
            ended = time.monotonic()
            watch.sweep()
        if watch.stopped_by == "host":
            evidence = replace(evidence, stopped_by="host", stop_detail=watch.stop_detail)
        if evidence.stopped_by == "host":
            post_run.after_unkillable()
        outcome, explanation = decide(run.request, evidence), None
        if outcome.name == "completed":
            post_run.after_completion()
        elif interrupt is None:
            try:
                with open_to_interruption():
                    evidence = replace(evidence, host_problems=post_run.host_problems(evidence.stopped_by))
                    outcome = decide(run.request, evidence)
                    explanation = post_run.explanation(outcome, evidence.exits)
            except KeyboardInterrupt as caught:
                # The run itself had ended before, and stays what it was.
                interrupt = caught
                post_run.notes.append(f"looking after it was stopped by {caught or 'Ctrl-C'}")
        outcome = replace(outcome, detail=_detail(outcome, evidence, folder, post_run.notes))
        record = _record(intent, outcome, evidence, watch, seconds or ended - began, explanation)
        results.finish(record)
        remove_scratch(folder, all_of_it=record.outcome == "completed" and run.resume_from is None)
        if evidence.stopped_by == "user":
            # After the record: who stops us may not wait for long.
            post_run.after_interruption()
        if interrupt:
            raise interrupt
    return record


def _make_ready(run: Run, folder: Path) -> None:
    make_scratch(folder)
    hand_over(run.resume_from or (), folder / OUTPUT)


def _detail(outcome: Outcome, evidence: Evidence, folder: Path, notes: Sequence[str]) -> str:
    """The line for the record: what was decided, what the app said of it, and what could not be looked after."""
    said = f": {last_line(folder / LOG)}" if outcome.diagnosis in APP_WORDS and evidence.result is None else ""
    return "; ".join([f"{outcome.detail}{said}", *notes])


def _carry_out(
    run: Run, intent: Intent, folder: Path, watch: Watch, limits: Limits, problems: Sequence[str]
) -> Evidence:
    """Run the phases one after the other, as far as they succeed; none where `problems` forbid it."""
    if problems:
        return Evidence(exits={}, stopped_by="host", stop_detail="; ".join(problems))
    exits: dict[str, Exit] = {}
    deadline = time.monotonic() + run.workload.time_limit
    for phase, command in intent.commands.items():
        left = deadline - time.monotonic()
        exit_ = watch.execute(command, intent.variables[phase], LOG, left, limits, run.container(folder))
        if exit_ is not None:
            exits[phase] = exit_
        if exit_ is None or not exit_.ok or watch.stopped_by:
            break
    result, problem = read_result(folder)
    return Evidence(
        exits=exits,
        stopped_by=watch.stopped_by,
        stop_detail=watch.stop_detail,
        result=result,
        result_problem=problem,
        gpus_seen=watch.gpus_seen,
        memory=watch.memory.samples,
    )


def _verify(run: Run, folder: Path, watch: Watch, evidence: Evidence, result: Result, references: Path) -> Evidence:
    """Load the model in a fresh process and compute the reference. What fails here is missing from the evidence."""
    variables = run.plain_variables(folder)
    command = run.check_command(model_file(run.view(folder).folder, result))
    container = run.plain_container(folder)
    exit_ = watch.execute(command, variables, CHECK_LOG, VERIFY_LIMIT_SECONDS, container=container)
    check = read_model_check(folder / CHECK_LOG) if exit_ and exit_.ok else None
    reference = None if watch.stopped_by else _reference(run, folder, watch, variables, references)
    earlier = tuple(model_hash(folder, training) for training in result.earlier)
    evidence = replace(
        evidence,
        model_sha256=model_hash(folder, result),
        earlier_sha256=earlier,
        model_check=check,
        reference=reference,
    )
    if watch.stopped_by in ("engine", "start"):
        # Not the training's fault: nothing could be started to verify it.
        return replace(evidence, stopped_by="engine", stop_detail=watch.stop_detail)
    return evidence


def _reference(run: Run, folder: Path, watch: Watch, variables: dict[str, str], references: Path) -> Reference | None:
    """The reference of this workload in this environment without any preset: computed once, then kept."""
    kept = references / f"{json_hash([run.workload_hash, run.environment.identity])}.json"
    here = folder / "reference.json"
    if read_reference(kept) is None:
        view = run.view(folder)
        command = run.reference_command(view, view.folder / here.name)
        container = run.plain_container(folder)
        exit_ = watch.execute(command, variables, "reference.txt", VERIFY_LIMIT_SECONDS, container=container)
        if exit_ is None or not exit_.ok or read_reference(here) is None:
            return None
        write_durably(kept, here.read_bytes())
    else:
        write_durably(here, kept.read_bytes())
    return read_reference(here)


def _record(
    intent: Intent,
    outcome: Outcome,
    evidence: Evidence,
    watch: Watch,
    seconds: float,
    explanation: Explanation | None,
) -> Record:
    unkillable = (evidence.stop_detail,) if evidence.stopped_by == "host" else ()
    result = evidence.result
    names = sorted({device.gfx or device.name for device in result.devices}) if result else []
    return Record(
        intent=intent,
        outcome=outcome.name,
        diagnosis=outcome.diagnosis,
        detail=outcome.detail,
        exit={phase: str(exit_) for phase, exit_ in evidence.exits.items()},
        ran_on=f"{result.device} ({', '.join(names)}) x{len(result.devices)}" if result else "unknown",
        finished=time.time(),
        seconds=seconds,
        last_phase=watch.last.phase if watch.last else None,
        result=result,
        longest_stall=watch.longest_stall,
        explanation=explanation,
        host_problems=(*unkillable, *evidence.host_problems),
    )
