"""Writes the record of a run: everything that is known of it, or that it was not started."""

import time
from collections.abc import Iterator

from harness.base.errors import UserError
from harness.base.interrupts import shielded
from harness.base.text import safe_text
from harness.environments.docker.own_images import is_own
from harness.evidence.app_reports.exposure import Exposure, said_all_at_once
from harness.evidence.app_reports.last_line import APP_ERROR, last_line
from harness.evidence.files.run_files import Interruption, Record
from harness.evidence.outcome.decide import APP_EXITS, undecided
from harness.evidence.outcome.evidence import Evidence
from harness.evidence.records import Results
from harness.host.processes.run_processes import survivors_in_words
from harness.matrix.variants import VARIANT
from harness.run.conclude import RunConclusion
from harness.run.notes import Notes, cannot_be_read
from harness.run.requested_run import Run
from harness.run.spec import RunSpec, resolve_run
from harness.run.watch.watch import Watch

APP_WORDS = {"app-error", "refused", *APP_EXITS.values()}
"""Diagnoses for which the record quotes the app's own last line, where there is no result."""


def write_record(
    spec: RunSpec,
    conclusion: RunConclusion,
    watch: Watch,
    notes: Notes,
    interrupted_by: Interruption | None,
    results: Results,
) -> Record:
    """Write the record, and return it. If it cannot be written with what the app wrote, write one without that.

    Raises:
        UserError: when the results folder cannot be written.
    """
    if conclusion.evidence.stopped_by == "engine":
        interrupted_by = "engine"
    try:
        record = _record(spec, conclusion, watch, notes, interrupted_by)
        results.finish(record)
    except UserError:
        raise
    except Exception as error:
        outcome = undecided(conclusion.evidence.stopped_by, cannot_be_read(error))
        record = Record.bare(
            spec.intent,
            outcome.name,
            outcome.diagnosis,
            outcome.detail,
            finished=spec.now,
            seconds=watch.seconds,
            # The same as in a full record, so that its failure never lets a training resume from more steps.
            steps_accounted=conclusion.evidence.steps_accounted or (),
            interrupted_by=interrupted_by,
        )
        results.finish(record)
    return record


def record_not_begun(run: Run, results: Results, why: str) -> Record:
    """Write the intent and the record of a run of which nothing was started. `why`: the reason, a problem of the host.

    Raises:
        UserError: when the results folder cannot be written.
    """
    with shielded():
        intent = resolve_run(run, results.folder_of(run.run_id)).intent
        results.begin(intent)
        outcome = undecided("image", why)
        record = Record.bare(
            intent, outcome.name, outcome.diagnosis, outcome.detail, finished=time.time(), first_step=False
        )
        results.finish(record)
    return record


def _record(
    spec: RunSpec, conclusion: RunConclusion, watch: Watch, notes: Notes, interrupted_by: Interruption | None
) -> Record:
    outcome, evidence = conclusion.outcome, conclusion.evidence
    unkillable = (evidence.stop_detail,) if evidence.stopped_by == "host" else ()
    result = evidence.result
    failed_by_itself = evidence.stopped_by is None and not all(exit_.ok for exit_ in evidence.exits.values())
    its_own_end = outcome.diagnosis in APP_WORDS and failed_by_itself
    said = f": {_said(spec)}" if its_own_end and result is None else ""
    left = [evidence.leftovers] if evidence.leftovers and outcome.diagnosis != "work-folder" else []
    exposure = watch.progress.exposure.exposure
    if outcome.name == "failed" and said_all_at_once(spec.request.program, exposure):
        exposure = Exposure(False, 0.0)
    return Record(
        intent=spec.intent,
        outcome=outcome.name,
        diagnosis=outcome.diagnosis,
        # In this order: the reason of the outcome, the app's own words, processes that were left running, files that
        # cannot be read, errors of the harness, the origin of the image.
        detail="; ".join(
            filter(
                None, [f"{outcome.detail}{said}", survivors_in_words(watch.survivors), *left, *notes, *_origin(spec)]
            )
        ),
        exit={phase: str(exit_) for phase, exit_ in evidence.exits.items()},
        ran_on=_ran_on(spec, evidence),
        finished=spec.now,
        seconds=watch.seconds,
        last_phase=watch.progress.last.phase if watch.progress.last else None,
        result=result,
        not_verified=evidence.not_verified,
        steps_accounted=evidence.steps_accounted,
        longest_stall=watch.longest_stall,
        first_step=exposure.first_step,
        exposure_seconds=exposure.seconds,
        interrupted_by=interrupted_by if outcome.name == "interrupted" else None,
        idle_seconds=watch.stall_at_interrupt.idle if watch.stall_at_interrupt else None,
        idle_limit=watch.stall_at_interrupt.limit if watch.stall_at_interrupt else None,
        explanation=conclusion.explanation,
        host_problems=(*unkillable, *evidence.host_problems),
    )


def _origin(spec: RunSpec) -> Iterator[str]:
    if spec.container and not is_own(spec.container.image):
        # What a variant is made from: the matrix file has no other, and an image of it is built on the same stack.
        cell = spec.intent.cell.partition(VARIANT)[0]
        yield f"its image was not built here; `matrix verify {cell}` compares"


def _said(spec: RunSpec) -> str:
    line = last_line(spec.folder.log, APP_ERROR)
    return spec.container.as_outside(line) if spec.container else line


def _ran_on(spec: RunSpec, evidence: Evidence) -> str:
    """Return in words what a run used: by its result, or what a program of the user's own was seen to use."""
    if result := evidence.result:
        here = {spec.intent.host.cpu, *(gpu.gfx for gpu in spec.gpus)}
        told = sorted({device.gfx or device.name for device in result.devices})
        names = ", ".join(name if name in here else safe_text(name) for name in told)
        return f"{result.device} ({names}) x{len(result.devices)}"
    if spec.request.program is None or not evidence.exits:
        return "unknown"
    if spec.intent.device == "cpu":
        return "cpu x1"
    return f"cuda ({', '.join(sorted({gpu.gfx for gpu in spec.gpus}))}) x{evidence.gpus_seen or 0}"
