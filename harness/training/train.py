"""Trains on the user's data to the end: attempt after attempt, each an ordinary run, until there is a model."""

import glob
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.base.errors import UserError
from harness.campaign.bench import Bench, Display
from harness.campaign.campaign import Turn, recheck_sick
from harness.campaign.plan import PlannedRun
from harness.evidence.app_files import Progress
from harness.evidence.health_log import sick_gpus
from harness.evidence.leftovers import OUTPUT, last_line
from harness.evidence.run_files import Record
from harness.matrix.cells import Cell, Workload
from harness.matrix.workload_options import device_count
from harness.run.checkpoints import newest_checkpoints
from harness.run.process_environment import remove_scratch
from harness.run.run_cell import LOG
from harness.run.spec import Run
from harness.run.watch.watch import Observer
from harness.training.attempts import WORDS, attempts_of, records_of, told_of, write_attempts
from harness.training.fragmentation import FragmentationWatch
from harness.training.publish import publish
from harness.training.supervise import Attempt, Begin, GiveUp, Settings, after, climbed, preset_of
from harness.training.trainings import Notebook, Training


class PlannedRestart(KeyboardInterrupt):
    """A fresh process is to go on."""


@dataclass(frozen=True)
class Job:
    """What is to be trained, in which cell, and where the model goes. `cpu_cell` is what remains without GPUs.

    `resume`: from the checkpoints of an earlier training there. `drill`: a fault for the first attempt.
    """

    cell: Cell
    cpu_cell: Cell | None
    workload: Workload
    output: Path
    name: str
    resume: bool = False
    drill: str | None = None


@dataclass(frozen=True)
class Ended:
    """How a training ended: with a model, or given up, and why. `attempts` as plain values."""

    attempts: list[dict[str, Any]]
    model: Path | None = None
    given_up: str | None = None


def train(job: Job, training: Training, notebook: Notebook, bench: Bench, display: Display) -> Ended:
    """Train until there is a model, or nothing is left to be tried; goes on with what was done of `training` before.

    Raises:
        UserError: when the input is wrong, the engine is gone, or something cannot be written.
        KeyboardInterrupt: after the attempt was recorded; the same call goes on.
    """
    asked = _settings(job, bench)
    _probe_sick_again(job, training, bench, display)
    called_anew = True
    while True:
        records, attempts, told = _so_far(job, training, bench)
        if len(records) == len(training.begins):
            settings = climbed(asked, training.begins)
            begin = after(attempts, settings, len(_healthy(job, bench))) if attempts else "first"
            if begin is None:
                return Ended(told, _finish(job, training, notebook, bench))
            if isinstance(begin, GiveUp) and called_anew:
                begin = "by-hand"
            if isinstance(begin, GiveUp):
                if begin.mistake:
                    raise UserError(_said(training, bench))
                return Ended(told, given_up=begin.why)
            training = _noted(training, begin, notebook)
            if attempts:
                display.problem(f"attempt {len(attempts)} {_in_short(attempts[-1])}; next: {WORDS[begin]}")
        called_anew = False
        try:
            record = _attempt(job, training, climbed(asked, training.begins), attempts, bench, display)
        except PlannedRestart as why:
            display.problem(f"{why}; {WORDS['planned-restart']}")
            training = _noted(training, "planned-restart", notebook)
        except KeyboardInterrupt:
            _so_far(job, training, bench)
            raise
        else:
            if record.outcome == "interrupted":
                raise UserError(f"{record.detail}; the same command goes on where it stopped")


def _so_far(job: Job, training: Training, bench: Bench) -> tuple[list[Record], list[Attempt], list[dict[str, Any]]]:
    """The attempts up to now: their records, what became of them, and what the file beside the model tells of them."""
    records = records_of(training, bench.results)
    attempts = attempts_of(training, records, bench.results)
    told = told_of(training, records, attempts)
    write_attempts(job.output, training, told)
    return records, attempts, told


def _finish(job: Job, training: Training, notebook: Notebook, bench: Bench) -> Path:
    """Put the model where the user wants it, and remove what only further attempts would need."""
    publish(_output(training.run_ids[-1], bench), job.output, keep_checkpoints=job.resume)
    # First: an older checkpoint that a half-done removal leaves must not be published instead.
    notebook.close()
    for run_id in training.run_ids:
        remove_scratch(bench.results.run_folder(run_id), all_of_it=True)
    return job.output / f"{job.name}.pt"


def _attempt(
    job: Job, training: Training, settings: Settings, before: Sequence[Attempt], bench: Bench, display: Display
) -> Record:
    number = len(training.begins)
    planned = _planned(job, settings, number, bench)
    display.preparing(planned.cell.stack)
    environment = bench.environment(planned.cell, display.step)
    bench.data_of(job.workload, environment)
    run_id = training.run_id(number)
    with bench.gpus_for([(planned, run_id)], display.step):
        run = _run(job, training, settings, planned, before, bench)
        display.started(planned, number, 0)
        return bench.make(run, display, _restart_when_fragmented())


def _run(
    job: Job, training: Training, settings: Settings, planned: PlannedRun, before: Sequence[Attempt], bench: Bench
) -> Run:
    """The run of the attempt that was noted last."""
    usual = bench.run(planned, training.run_id(len(training.begins)), job.workload, training.id)
    preset = preset_of(planned.cell.preset, settings, planned.cell.stack.torch)
    changes = {"strategy": settings.strategy, "micro_batch_size": settings.micro_batch_size}
    if settings.strategy == "single":
        changes["backend"] = None
    return replace(
        usual,
        cell=replace(usual.cell, preset=preset),
        workload=job.workload.model_copy(update=changes),
        name=job.name,
        resume_from=_checkpoints(job, training, before, bench),
        # What goes on from a drill is no evidence either.
        drill=job.drill if not before or job.drill is None else job.drill.split("@")[0],
    )


def _checkpoints(job: Job, training: Training, before: Sequence[Attempt], bench: Bench) -> tuple[Path, ...]:
    """The best there is to go on from."""
    trusted = next((n for n in range(len(before), 0, -1) if before[n - 1].wrong), 0)
    outputs = [_output(run_id, bench) for run_id in training.run_ids[trusted : len(before)]]
    found = newest_checkpoints(outputs)
    if found or trusted or not job.resume:
        return found
    names = [job.name, *(f"{job.name}_{kind}" for kind in job.workload.model)]
    return tuple(
        file for name in names for file in newest_checkpoints([job.output], f"{glob.escape(name)}_checkpoints")
    )


def _planned(job: Job, settings: Settings, number: int, bench: Bench) -> PlannedRun:
    """Where an attempt is made.

    Raises:
        UserError: when there is no cell for it, or too few GPUs are well.
    """
    if settings.device == "cuda":
        return PlannedRun(job.cell, number, _gpus(job, settings, bench))
    if job.cell.stack.device == "cpu":
        return PlannedRun(job.cell, number)
    if job.cpu_cell is None:
        raise UserError("the matrix file has no cpu stack to go on with; add one, then the same command goes on")
    return PlannedRun(job.cpu_cell, number)


def _gpus(job: Job, settings: Settings, bench: Bench) -> tuple[int, ...]:
    """Those that an attempt is given: what the preset names, unless a rung changed how they are used."""
    healthy = _healthy(job, bench)
    if len(healthy) < settings.devices:
        told = "; ".join(f"GPU {gpu}: {why}" for gpu, why in sick_gpus(bench.results, bench.host).items())
        raise UserError(
            f"too few GPUs are well ({told}); mend the host (`matrix doctor`), or give --cell and --strategy"
        )
    if settings.strategy == job.workload.strategy and healthy == job.cell.preset.devices:
        return healthy
    return healthy[:1] if settings.strategy == "single" else tuple(sorted(healthy))


def _healthy(job: Job, bench: Bench) -> tuple[int, ...]:
    """The GPUs that the cell may use and that are not sick."""
    sick = sick_gpus(bench.results, bench.host)
    return tuple(gpu for gpu in _gpus_of_cell(job, bench) if gpu not in sick)


def _probe_sick_again(job: Job, training: Training, bench: Bench, display: Display) -> None:
    """Each by itself: one that hangs must not keep the others from being trained on."""
    run_id = training.run_id(len(training.begins) + 1)
    gpus = _gpus_of_cell(job, bench) if job.cell.stack.device == "cuda" else ()
    recheck_sick([Turn(1, PlannedRun(job.cell, 1, (gpu,)), run_id) for gpu in gpus], job.workload, bench, display)


def _gpus_of_cell(job: Job, bench: Bench) -> tuple[int, ...]:
    return job.cell.preset.devices or bench.gpus


def _settings(job: Job, bench: Bench) -> Settings:
    """What the user asked for."""
    workload, device = job.workload, job.cell.stack.device
    gpus = _gpus_of_cell(job, bench)
    return Settings(
        device=device,
        strategy=workload.strategy,
        devices=device_count(workload, device, gpus),
        batch_size=workload.batch_size,
        micro_batch_size=workload.micro_batch_size,
    )


def _restart_when_fragmented() -> Observer:
    watch = FragmentationWatch()

    def heed(line: Progress) -> None:
        if why := watch.saw(line):
            raise PlannedRestart(why)

    return heed


def _noted(training: Training, begin: Begin, notebook: Notebook) -> Training:
    noted = training.model_copy(update={"begins": (*training.begins, begin)})
    notebook.write(noted)
    return noted


def _in_short(attempt: Attempt) -> str:
    why = f" ({attempt.class_})" if attempt.class_ else ""
    return f"{attempt.outcome}{why}, {attempt.step} steps are kept"


def _said(training: Training, bench: Bench) -> str:
    """What the app said of its input."""
    line = last_line(bench.results.run_folder(training.run_ids[-1]) / LOG)
    return line.removeprefix("vpoc: ")


def _output(run_id: str, bench: Bench) -> Path:
    return bench.results.run_folder(run_id) / OUTPUT
