"""Trains on the user's data to the end: attempt after attempt, each an ordinary run, until there is a model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from harness.base.errors import UserError
from harness.campaign.bench import Bench
from harness.campaign.display import Display
from harness.campaign.plan import PendingRun, PlannedRun
from harness.campaign.runner import CONTINUES, Runner
from harness.campaign.unhealthy import recheck_unhealthy
from harness.evidence.app_files import Progress
from harness.evidence.health_log import unhealthy_gpus
from harness.evidence.last_line import APP_ERROR, last_line
from harness.evidence.outcome.decide import AFTER_FAULT
from harness.evidence.program_files import TakenOver
from harness.evidence.run_files import Record
from harness.evidence.work_folder import checkpoint_folders, newest_checkpoints
from harness.matrix.cells import Cell
from harness.matrix.programs import Program
from harness.matrix.workload_options import device_count
from harness.matrix.workloads import Workload
from harness.run.asked import Run
from harness.run.watch.watch import Observer
from harness.training.attempts import (
    BEGIN_WORDS,
    attempts_as_dicts,
    attempts_of,
    last_checkpoints,
    records_of,
    verified_since,
    write_attempts,
)
from harness.training.fallbacks import (
    Attempt,
    AttemptSettings,
    Begin,
    Exhausted,
    next_fallback,
    preset_of,
    settings_after,
)
from harness.training.fragmentation import FragmentationWatch
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


class PlannedRestart(KeyboardInterrupt):
    """A fresh process is to resume."""


@dataclass(frozen=True)
class TrainingJob:
    """A training: the workload, the cell, and where the model goes.

    `resume`: from the checkpoints of an earlier training there. `injected_fault`: a fault for the first attempt.
    `allow_cpu`: the last fallback is `cpu_cell`, without GPUs. `others`: cells of other stacks to be tried before that.
    """

    cell: Cell
    cpu_cell: Cell | None
    workload: Workload
    output: Path
    name: str
    resume: bool = False
    injected_fault: str | None = None
    allow_cpu: bool = False
    others: tuple[Cell, ...] = ()

    @property
    def program(self) -> Program | None:
        """The program of the user's own that trains in place of the app, if any."""
        return self.workload.program

    def cell_of(self, settings: AttemptSettings) -> Cell:
        """Return the cell of an attempt on GPUs: the one asked for, or that of another stack."""
        cells = (self.cell, *self.others)
        # There may be fewer now than when the attempt was begun.
        return cells[min(settings.stack, len(self.others))]


@dataclass(frozen=True)
class TrainingResult:
    """The end of a training: with a model, or with the fallbacks exhausted, and why. `attempts` as plain values.

    `losses`: how good each model is, in a sentence. `replaced`: where models are kept that had the same names before.
    """

    attempts: list[dict[str, Any]]
    model: Path | None = None
    exhausted: str | None = None
    losses: tuple[str, ...] = ()
    replaced: tuple[Path, ...] = ()


def train(job: TrainingJob, state: TrainingState, file: StateFile, bench: Bench, display: Display) -> TrainingResult:
    """Train until there is a model, or the fallbacks are exhausted; resumes what was done before.

    Raises:
        UserError: when the input is wrong, the engine is gone, or something cannot be written.
        KeyboardInterrupt: after the attempt was recorded; the same call resumes.
    """
    asked = _settings(job, bench)
    _recheck_unhealthy(job, state, bench, display)
    first_of_call = True
    while True:
        records, attempts, as_dicts = _so_far(job, state, bench)
        if len(records) == len(state.begins):
            settings = settings_after(asked, state.begins)
            begin = _next(attempts, settings, job, bench)
            if begin is None:
                if why := records[-1].not_verified:
                    display.problem(f"the model was not verified independently: {why}")
                elif since := verified_since(attempts):
                    display.problem(
                        f"the model was verified from step {since} on: what the attempts before made of it cannot be "
                        "made again, and was only counted"
                    )
                model, replaced = _finish(job, state, file, bench)
                result = records[-1].result
                losses = losses_in_words(result, job.output, job.name) if result else ()
                return TrainingResult(as_dicts, model, losses=losses, replaced=replaced)
            if first_of_call and (isinstance(begin, Exhausted) or _left_the_gpus(settings, job)):
                begin = "by-hand"
            if isinstance(begin, Exhausted):
                if begin.mistake:
                    raise UserError(_said(job, records[-1], bench))
                return TrainingResult(as_dicts, exhausted=begin.why)
            state = _noted(state, begin, file)
            if attempts:
                next_one = _next_in_words(job, begin, records, bench)
                display.problem(f"attempt {len(attempts)} {_in_short(job, attempts[-1])}; next: {next_one}")
        first_of_call = False
        try:
            _attempt(job, state, settings_after(asked, state.begins), attempts, records, bench, display)
        except PlannedRestart as why:
            display.problem(f"{why}; {BEGIN_WORDS['planned-restart']}")
            state = _noted(state, "planned-restart", file)
        except KeyboardInterrupt:
            _so_far(job, state, bench)
            raise


def _next(
    attempts: Sequence[Attempt], settings: AttemptSettings, job: TrainingJob, bench: Bench
) -> Begin | Exhausted | None:
    """Return how to begin or continue; `settings` are those of the last attempt, or else those that were asked for."""
    healthy = len(_healthy(job, bench))
    if attempts:
        more = {"allow_cpu": job.allow_cpu, "own_program": job.program is not None}
        return next_fallback(attempts, settings, healthy, others=len(job.others), **more)
    return "cpu" if settings.device == "cuda" and not healthy and job.allow_cpu else "first"


def _left_the_gpus(settings: AttemptSettings, job: TrainingJob) -> bool:
    """Return whether the last attempt was on the CPU, as an earlier call allowed and this one does not."""
    return not job.allow_cpu and settings.device != job.cell.stack.device


def _so_far(
    job: TrainingJob, state: TrainingState, bench: Bench
) -> tuple[list[Record], list[Attempt], list[dict[str, Any]]]:
    """The attempts up to now: their records, how they ended, and the same as plain values, as beside the model."""
    records = records_of(state, bench.results)
    if job.program:
        attempts = attempts_of_program(state, records, bench.results)
    else:
        attempts = attempts_of(state, records, bench.results, job.name)
    words = {**BEGIN_WORDS, **(PROGRAM_WORDS if job.program else {})}
    as_dicts = attempts_as_dicts(state, records, attempts, words)
    write_attempts(job.output, state, as_dicts)
    return records, attempts, as_dicts


def _finish(job: TrainingJob, state: TrainingState, file: StateFile, bench: Bench) -> tuple[Path, tuple[Path, ...]]:
    """Put the model where the user wants it, and remove what only further attempts would need.

    Return it, and where those that it replaced are kept.
    """
    last = state.run_ids[-1]
    replaced: tuple[Path, ...] = ()
    record, folder = bench.results.record(last), bench.results.folder_of(last)
    if record and job.program:
        replaced = publish_program(folder, record, job.output)
    elif record:
        replaced = publish(folder, record, job.output, job.name, keep_checkpoints=job.resume)
    # First: an older checkpoint that a half-done removal leaves must not be published instead.
    file.remove()
    for run_id in state.run_ids:
        bench.results.folder_of(run_id).remove_places(all_of_it=True)
        if job.program:
            remove_program(bench.results.folder_of(run_id))
    return job.output if job.program else job.output / f"{job.name}.pt", replaced


def _attempt(
    job: TrainingJob,
    state: TrainingState,
    settings: AttemptSettings,
    before: Sequence[Attempt],
    records: Sequence[Record],
    bench: Bench,
    display: Display,
) -> None:
    """Make the attempt that is last in the state, after those `before` it, which have these records."""
    number = len(state.begins)
    pending = PendingRun(_planned(job, settings, number, bench), state.run_id(number), number)
    if job.program:
        place = next_place(job.program, records, bench.results)
        Runner(bench, job.workload, display, state.id).run(
            [pending], change=lambda run: _as_attempt_at_program(run, settings, place)
        )
        return
    checkpoints = _checkpoints(job, before)
    runner = Runner(bench, job.workload, display, state.id)
    runner.run(
        [pending],
        change=lambda run: _as_attempt(run, job, settings, checkpoints, first=not before),
        observe=_restart_when_fragmented(),
    )


def _as_attempt(
    run: Run, job: TrainingJob, settings: AttemptSettings, checkpoints: tuple[PurePath, ...], *, first: bool
) -> Run:
    """The run of an attempt, in place of the usual one of its cell."""
    preset = preset_of(run.cell.preset, settings, run.cell.stack.torch)
    changes = {"strategy": settings.strategy, "micro_batch_size": settings.micro_batch_size}
    if settings.strategy == "single":
        changes["backend"] = None
    fault = job.injected_fault
    if fault and not first:
        # What is resumed from an attempt with an injected fault is no evidence either.
        fault = f"{AFTER_FAULT}{fault.split('@')[0]}"
    return replace(
        run,
        cell=replace(run.cell, preset=preset),
        workload=job.workload.model_copy(update=changes),
        name=job.name,
        resume_from=checkpoints,
        injected_fault=fault,
    )


def _as_attempt_at_program(run: Run, settings: AttemptSettings, place: TakenOver | None) -> Run:
    """The run of an attempt at a program; what it writes is kept for the next one."""
    preset = preset_of(run.cell.preset, settings, run.cell.stack.torch)
    return replace(run, cell=replace(run.cell, preset=preset), resume_from=(), taken_over=place)


def _checkpoints(job: TrainingJob, before: Sequence[Attempt]) -> tuple[PurePath, ...]:
    """The best checkpoints to resume from."""
    found = last_checkpoints(before)
    if found or any(attempt.wrong for attempt in before) or not job.resume:
        return found
    folders = checkpoint_folders(job.workload.model, job.name)
    return newest_checkpoints([job.output.resolve()], dict.fromkeys(folders))


def _planned(job: TrainingJob, settings: AttemptSettings, number: int, bench: Bench) -> PlannedRun:
    """The planned run of an attempt.

    Raises:
        UserError: when there is no cell for it, or too few GPUs are healthy.
    """
    if settings.device == "cuda":
        return PlannedRun(job.cell_of(settings), number, _gpus(job, settings, bench))
    if job.cell.stack.device == "cpu":
        return PlannedRun(job.cell, number)
    if job.cpu_cell is None:
        raise UserError(f"the matrix file has no cpu stack to train with; add one, then {CONTINUES}")
    return PlannedRun(job.cpu_cell, number)


def _gpus(job: TrainingJob, settings: AttemptSettings, bench: Bench) -> tuple[int, ...]:
    """Those that an attempt is given: what the preset names, unless a fallback changed how they are used."""
    healthy = _healthy(job, bench)
    if len(healthy) < settings.devices:
        why = "; ".join(f"GPU {gpu}: {detail}" for gpu, detail in unhealthy_gpus(bench.results, bench.host).items())
        raise UserError(
            f"too few GPUs are healthy ({why}); fix the host (`matrix doctor`), or give --cell and --strategy, or "
            "--allow-cpu to train on the CPU where none is"
        )
    if settings.strategy == job.workload.strategy and healthy == job.cell.preset.devices:
        return healthy
    return healthy[:1] if settings.strategy == "single" else tuple(sorted(healthy))


def _healthy(job: TrainingJob, bench: Bench) -> tuple[int, ...]:
    """The GPUs that the cell may use and that are not unhealthy."""
    unhealthy = unhealthy_gpus(bench.results, bench.host)
    return tuple(gpu for gpu in _gpus_of_cell(job, bench) if gpu not in unhealthy)


def _recheck_unhealthy(job: TrainingJob, state: TrainingState, bench: Bench, display: Display) -> None:
    """Each by itself: one that hangs must not keep the others from being trained on."""
    run_id = state.run_id(len(state.begins) + 1)
    gpus = _gpus_of_cell(job, bench) if job.cell.stack.device == "cuda" else ()
    runs = [PendingRun(PlannedRun(job.cell, 1, (gpu,)), run_id) for gpu in gpus]
    recheck_unhealthy(runs, job.workload, bench, display)


def _gpus_of_cell(job: TrainingJob, bench: Bench) -> tuple[int, ...]:
    return job.cell.preset.devices or bench.gpus


def _settings(job: TrainingJob, bench: Bench) -> AttemptSettings:
    """The settings that the user asked for."""
    workload, device = job.workload, job.cell.stack.device
    gpus = _gpus_of_cell(job, bench)
    return AttemptSettings(
        device=device,
        strategy=workload.strategy,
        devices=device_count(workload, device, gpus),
        batch_size=workload.batch_size,
        micro_batch_size=workload.micro_batch_size,
    )


def _restart_when_fragmented() -> Observer:
    watch = FragmentationWatch()

    def observe(line: Progress) -> None:
        if why := watch.saw(line):
            raise PlannedRestart(why)

    return observe


def _noted(state: TrainingState, begin: Begin, file: StateFile) -> TrainingState:
    noted = state.model_copy(update={"begins": (*state.begins, begin)})
    file.write(noted)
    return noted


def _in_short(job: TrainingJob, attempt: Attempt) -> str:
    why = f" ({attempt.class_})" if attempt.class_ else ""
    if job.program:
        return f"{attempt.outcome}{why}{f', it told step {attempt.step}' if attempt.step else ''}"
    return f"{attempt.outcome}{why}, {attempt.step} steps are kept"


def _next_in_words(job: TrainingJob, begin: Begin, records: Sequence[Record], bench: Bench) -> str:
    if job.program is None:
        return BEGIN_WORDS[begin]
    place = next_place(job.program, records, bench.results)
    return f"{PROGRAM_WORDS.get(begin, BEGIN_WORDS[begin])}, {place_in_words(job.program, place)}"


def _said(job: TrainingJob, record: Record, bench: Bench) -> str:
    """Return what the app, or what was seen of a program of the user's own, says about its input."""
    folder = bench.results.folder_of(record.intent.run_id)
    return why_mistaken(record, folder) if job.program else last_line(folder.log, APP_ERROR).removeprefix(APP_ERROR)


def _output(run_id: str, bench: Bench) -> PurePath:
    return bench.results.folder_of(run_id).work.output
