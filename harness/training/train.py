"""Trains on the user's data to the end: makes attempts, each an ordinary run, until there is a model."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from harness.base.errors import UserError
from harness.base.wording import many
from harness.campaign.bench.bench import Bench
from harness.campaign.bench.display import Display
from harness.campaign.bench.plan import PendingRun, PlannedRun
from harness.campaign.gpus.unhealthy import recheck_unhealthy
from harness.campaign.runner import MOST_LOST_IN_A_ROW, EngineLosses
from harness.environments.executors.container import container_from_record
from harness.evidence.app_reports.last_line import APP_ERROR, last_line
from harness.evidence.files.run_files import Record
from harness.evidence.files.work_folder import WorkFolder
from harness.matrix.workload_options import device_count
from harness.training.attempt import (
    PlannedRestart,
    TrainingJob,
    checkpoints_for,
    gpus_of_cell,
    healthy_gpus,
    make_attempt,
)
from harness.training.attempts import (
    ATTEMPTS_FILE,
    BEGIN_WORDS,
    attempts_as_dicts,
    attempts_of,
    begin_in_words,
    records_of,
    write_attempts,
)
from harness.training.fallbacks import Attempt, AttemptSettings, Begin, Exhausted, next_fallback, settings_after
from harness.training.losses import losses_in_words
from harness.training.own_program import (
    PROGRAM_WORDS,
    attempts_of_program,
    next_place,
    place_in_words,
    publish_program,
    remove_program,
    why_mistaken,
)
from harness.training.publish import publish
from harness.training.state import StateFile, TrainingState


@dataclass(frozen=True)
class TrainingResult:
    """The end of a training: with a model, or with the fallbacks exhausted.

    `attempts`: the attempts as plain values.
    `exhausted`: why no attempt is left to try; None if there is a model.
    `losses`: one sentence for each model on how good it is.
    `replaced`: where the models are kept that had the same names before.
    """

    attempts: list[dict[str, Any]]
    model: Path | None = None
    exhausted: str | None = None
    losses: tuple[str, ...] = ()
    replaced: tuple[Path, ...] = ()


def train(job: TrainingJob, state: TrainingState, file: StateFile, bench: Bench, display: Display) -> TrainingResult:
    """Train until there is a model or the fallbacks are exhausted; resume earlier attempts.

    Raises:
        UserError: when the input is wrong, the engine is gone, or something cannot be written.
        KeyboardInterrupt: after the attempt was recorded; the same call resumes.
    """
    asked, found = _settings(job, bench), job.output.exists()
    _recheck_unhealthy(job, state, bench, display)
    first_of_call, losses = True, EngineLosses(MOST_LOST_IN_A_ROW)
    while True:
        records, attempts, as_dicts = _so_far(job, state, bench, display)
        if len(records) == len(state.begins):
            settings = settings_after(asked, state.begins)
            begin = _next(attempts, settings, job, bench)
            if begin is None:
                _report_unverified(job, records, display)
                return _finish(job, state, file, records[-1], as_dicts, bench, display)
            if first_of_call and (isinstance(begin, Exhausted) or _left_the_gpus(settings, job)):
                begin = _once_more(asked, settings, job, bench)
            if isinstance(begin, Exhausted):
                if begin.mistake:
                    said = _said(job, records[-1], bench)
                    if _left_something(job, records, bench):
                        give_up = shlex.join(["rm", str(file.place(state))])
                        raise UserError(f"{said}; `{give_up}` gives up what was trained so far")
                    # The same request would be refused again, so there is nothing that its command could continue.
                    file.remove(state)
                    raise UserError(said)
                return TrainingResult(as_dicts, exhausted=begin.why)
            state = _noted(state, begin, file)
            if attempts:
                next_one = _next_in_words(job, begin, attempts, records, bench)
                display.problem(f"attempt {len(attempts)} {_in_short(job, attempts[-1])}; next: {next_one}")
        first_of_call = False
        try:
            with _removed_if_refused(job, state, file, bench, keep_output=found):
                settings = settings_after(asked, state.begins)
                make_attempt(job, state, settings, attempts, records, bench, display, losses)
        except PlannedRestart as why:
            display.notice(f"{why}; {BEGIN_WORDS['planned-restart']}")
            state = _noted(state, "planned-restart", file)
        except KeyboardInterrupt:
            _so_far(job, state, bench, display)
            raise


@contextmanager
def _removed_if_refused(
    job: TrainingJob, state: TrainingState, file: StateFile, bench: Bench, *, keep_output: bool
) -> Iterator[None]:
    """Remove the files of a training that was refused before its first run: there is nothing to continue."""
    try:
        yield
    except UserError:
        if not any(bench.results.intent(run_id) for run_id in state.run_ids):
            file.remove(state)
            with suppress(OSError):
                if not (listed := job.output / ATTEMPTS_FILE).stat().st_size:
                    listed.unlink()
                    if not keep_output:
                        job.output.rmdir()
        raise


def _next(
    attempts: Sequence[Attempt], settings: AttemptSettings, job: TrainingJob, bench: Bench
) -> Begin | Exhausted | None:
    """Return how to begin or continue; `settings` are those of the last attempt, or the requested ones."""
    healthy = len(healthy_gpus(job, bench))
    if attempts:
        more = {"allow_cpu": job.allow_cpu, "own_program": job.program is not None}
        return next_fallback(attempts, settings, healthy, others=len(job.others), **more)
    return "cpu" if settings.device == "cuda" and not healthy and job.allow_cpu else "first"


def _once_more(asked: AttemptSettings, last: AttemptSettings, job: TrainingJob, bench: Bench) -> Begin:
    """Return how to begin where the user gives the command again though all fallbacks were used.

    They start over, except where GPUs that were asked for are unhealthy and the last settings use others.
    """
    lacks_gpus = asked.device == "cuda" and len(healthy_gpus(job, bench)) < asked.devices
    return "resumed" if lacks_gpus and last.device == "cuda" else "by-hand"


def _left_something(job: TrainingJob, records: Sequence[Record], bench: Bench) -> bool:
    """Return whether a program left something to resume from, or the app may have made a step."""
    if job.program:
        place = next_place(job.program, records, bench.results)
        return place is not None and place.checkpoint is not None
    return any(record.steps_accounted is None or any(record.steps_accounted) for record in records)


def _left_the_gpus(settings: AttemptSettings, job: TrainingJob) -> bool:
    """Return whether the last attempt was on the CPU, which an earlier call allowed and this call does not."""
    return not job.allow_cpu and settings.device != job.cell.stack.device


def _so_far(
    job: TrainingJob, state: TrainingState, bench: Bench, display: Display
) -> tuple[list[Record], list[Attempt], list[dict[str, Any]]]:
    """Return the attempts so far as records, as outcomes, and as plain values, which are written beside the model."""
    records = records_of(state, bench.results)
    if job.program:
        attempts = attempts_of_program(state, records, bench.results)
    else:
        attempts = attempts_of(state, records, bench.results, job.name)
    as_dicts = attempts_as_dicts(state, records, attempts, PROGRAM_WORDS if job.program else {})
    write_attempts(job.output, state, as_dicts, display.problem)
    return records, attempts, as_dicts


def _report_unverified(job: TrainingJob, records: Sequence[Record], display: Display) -> None:
    """Report which part of the model was not verified, if any. `records`: of all attempts; the last one trained it."""
    last = records[-1]
    if why := last.not_verified or (None if job.program else last.intent.not_verified):
        display.problem(f"the model was not verified independently: {why}")
    elif since := sum(last.result.done_before(last.intent.resumed) if last.result else last.intent.resumed):
        display.notice(
            f"the model was verified from step {since} on: other attempts made the steps before, which cannot be "
            f"repeated for comparison; that they were made is known from progress alone{_taken_over(job, records)}"
        )
    elif any(last.intent.resumed):
        display.notice("the checkpoints could not be read, so the model was trained from its first step on")


def _taken_over(job: TrainingJob, records: Sequence[Record]) -> str:
    """Return how many steps no attempt made, because the user's folder had a checkpoint; empty where there are none."""
    steps = sum(records[0].intent.resumed)
    return f"; those up to step {steps} are from a checkpoint in {job.output}, whoever made it" if steps else ""


def _finish(
    job: TrainingJob,
    state: TrainingState,
    file: StateFile,
    last: Record,
    as_dicts: list[dict[str, Any]],
    bench: Bench,
    display: Display,
) -> TrainingResult:
    """Put the model where the user wants it, and remove the files that only further attempts would need.

    `last`: the record of the attempt that trained it.
    """
    folder = bench.results.folder_of(last.intent.run_id)
    if job.program:
        replaced = publish_program(folder, last, job.output, display.short_step)
    else:
        replaced = publish(folder, last, job.output, job.name, keep_checkpoints=job.resume)
    # Remove the state first: after an interrupted removal an older checkpoint must not be published instead.
    file.remove(state)
    for run_id in state.run_ids:
        bench.results.folder_of(run_id).remove_places(all_of_it=True)
        if job.program:
            remove_program(bench.results.folder_of(run_id))
    losses = losses_in_words(last.result, folder, job.output, job.name) if last.result else ()
    model = job.output if job.program else job.output / f"{job.name}.pt"
    return TrainingResult(as_dicts, model, losses=losses, replaced=replaced)


def _recheck_unhealthy(job: TrainingJob, state: TrainingState, bench: Bench, display: Display) -> None:
    """Recheck each unhealthy GPU by itself: one that hangs must not keep the others from being used."""
    run_id = state.run_id(len(state.begins) + 1)
    gpus = gpus_of_cell(job, bench) if job.cell.stack.device == "cuda" else ()
    runs = [PendingRun(PlannedRun(job.cell, 1, (gpu,)), run_id) for gpu in gpus]
    recheck_unhealthy(runs, job.workload, bench, display)


def _settings(job: TrainingJob, bench: Bench) -> AttemptSettings:
    """Return the settings that the user requested."""
    workload, device = job.workload, job.cell.stack.device
    gpus = gpus_of_cell(job, bench)
    return AttemptSettings(
        device=device,
        strategy=workload.strategy,
        devices=device_count(workload, device, gpus),
        batch_size=workload.batch_size,
        micro_batch_size=workload.micro_batch_size,
    )


def _noted(state: TrainingState, begin: Begin, file: StateFile) -> TrainingState:
    noted = state.model_copy(update={"begins": (*state.begins, begin)})
    file.write(noted)
    return noted


def _in_short(job: TrainingJob, attempt: Attempt) -> str:
    why = f" ({attempt.class_})" if attempt.class_ else ""
    if job.program:
        return f"{attempt.outcome}{why}{f', it reported step {attempt.step}' if attempt.step else ''}"
    kept = many(attempt.step, "step is", "steps are") if attempt.step else "no step is"
    return f"{attempt.outcome}{why}, {kept} kept"


def _next_in_words(
    job: TrainingJob, begin: Begin, attempts: Sequence[Attempt], records: Sequence[Record], bench: Bench
) -> str:
    if job.program is None:
        return begin_in_words(begin, resumes=bool(checkpoints_for(job, attempts)))
    place = next_place(job.program, records, bench.results)
    return f"{PROGRAM_WORDS.get(begin, BEGIN_WORDS[begin])}, {place_in_words(job.program, place)}"


def _said(job: TrainingJob, record: Record, bench: Bench) -> str:
    """Return what the app says about its input; for a program of the user's own, what was seen."""
    folder = bench.results.folder_of(record.intent.run_id)
    if job.program:
        return why_mistaken(record, folder)
    said, work = last_line(folder.log, APP_ERROR), folder.work
    if record.intent.container:
        container = container_from_record(record.intent.container)
        said, work = container.as_outside(said), WorkFolder(PurePath(container.work))
    if not job.resume:
        # The training was to continue by itself, without that option.
        said = said.replace("; train without --resume", "").replace(", or train without --resume", "")
    # The app names files in its own folder; the user has them in `job.output`.
    return f"the app says: {said.replace(f'{work.output}/', f'{job.output}/')}"
