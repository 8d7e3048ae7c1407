"""One attempt of a training: its run, its GPUs, and the checkpoints that it resumes from."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from harness.base.errors import UserError
from harness.campaign.bench.bench import Bench
from harness.campaign.bench.display import Display
from harness.campaign.bench.plan import PendingRun, PlannedRun
from harness.campaign.other_hosts.follow import CONTINUES
from harness.campaign.runner import EngineLosses, Runner
from harness.evidence.files.app_files import Progress
from harness.evidence.files.program_files import TakenOver
from harness.evidence.files.run_files import Record
from harness.evidence.files.work_folder import checkpoint_folders, newest_checkpoints
from harness.evidence.gpus.health_log import resets_of_gpus, unhealthy_gpus
from harness.evidence.outcome.decide import AFTER_FAULT
from harness.matrix.cells import Cell
from harness.matrix.programs import Program
from harness.matrix.workloads import Workload
from harness.run.requested_run import Run
from harness.run.watch.watch import Observer
from harness.training.attempts import distrusted, last_checkpoints
from harness.training.fallbacks import Attempt, AttemptSettings, Begin, preset_of
from harness.training.fragmentation import FragmentationWatch
from harness.training.own_program import next_place
from harness.training.state import TrainingState


class PlannedRestart(KeyboardInterrupt):
    """The current attempt ends on purpose, because a new process is to resume."""


@dataclass(frozen=True)
class TrainingJob:
    """A training: the workload, the cell, and where the model goes.

    `resume`: continue from the checkpoints of an earlier training in the output folder.
    `injected_fault`: a fault for the first attempt.
    `allow_cpu`: whether the last fallback is `cpu_cell`, which uses no GPU.
    `others`: cells of other stacks to try before that.
    `avoided`: GPUs on which nothing trains if it needs one GPU and another is healthy.
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
    avoided: tuple[int, ...] = ()

    @property
    def program(self) -> Program | None:
        """The program of the user's own that trains in place of the app, if any."""
        return self.workload.program

    def cell_of(self, settings: AttemptSettings) -> Cell:
        """Return the cell of an attempt on GPUs: the requested cell, or the one of another stack."""
        cells = (self.cell, *self.others)
        # Fewer stacks may be usable now than when the attempt was begun.
        return cells[min(settings.stack, len(self.others))]


def make_attempt(
    job: TrainingJob,
    state: TrainingState,
    settings: AttemptSettings,
    before: Sequence[Attempt],
    records: Sequence[Record],
    bench: Bench,
    display: Display,
    losses: EngineLosses,
) -> None:
    """Make the attempt that is last in the state; `before` are the earlier attempts, `records` their records.

    `losses`: those of the attempts before, with the engine.
    """
    number = len(state.begins)
    pending = PendingRun(_planned(job, settings, number, bench), state.run_id(number), number)
    if job.program:
        place = next_place(job.program, records, bench.results)
        Runner(bench, job.workload, display, state.id, losses=losses).run(
            [pending], change=lambda run: _as_attempt_at_program(run, settings, place)
        )
        return
    checkpoints = checkpoints_for(job, before)
    runner = Runner(bench, job.workload, display, state.id, losses=losses)
    runner.run(
        [pending],
        change=lambda run: _as_attempt(run, job, settings, checkpoints, _fault(job, records)),
        observe=_restart_when_fragmented() if _restart_gains(state.begins[-1], before) else lambda _: None,
    )


def _restart_gains(begin: Begin, before: Sequence[Attempt]) -> bool:
    """Return whether an attempt may end for a planned restart: not if the last such restart kept no further step."""
    steps = [0, *(attempt.step for attempt in before)]
    return begin != "planned-restart" or steps[-1] > max(steps[:-1])


def _fault(job: TrainingJob, before: Sequence[Record]) -> str | None:
    """Return the fault of an attempt.

    One that resumes after an injected fault is marked, as it is no evidence either.
    """
    injected = job.injected_fault or next(filter(None, (record.injected_fault for record in before)), None)
    if injected is None or not before:
        return injected
    return f"{AFTER_FAULT}{injected.removeprefix(AFTER_FAULT).split('@')[0]}"


def _as_attempt(
    run: Run, job: TrainingJob, settings: AttemptSettings, checkpoints: tuple[PurePath, ...], fault: str | None
) -> Run:
    """Return the run of an attempt, which replaces the usual run of its cell."""
    preset = preset_of(run.cell.preset, settings, run.cell.stack.torch)
    changes = {"strategy": settings.strategy, "micro_batch_size": settings.micro_batch_size}
    if settings.strategy == "single":
        changes["backend"] = None
    return replace(
        run,
        cell=replace(run.cell, preset=preset),
        workload=job.workload.model_copy(update=changes),
        name=job.name,
        resume_from=checkpoints,
        injected_fault=fault,
    )


def _as_attempt_at_program(run: Run, settings: AttemptSettings, place: TakenOver | None) -> Run:
    """Return the run of an attempt at a program of the user's own; its files are kept for the next attempt."""
    preset = preset_of(run.cell.preset, settings, run.cell.stack.torch)
    return replace(run, cell=replace(run.cell, preset=preset), resume_from=(), taken_over=place)


def checkpoints_for(job: TrainingJob, before: Sequence[Attempt]) -> tuple[PurePath, ...]:
    """Return the checkpoints that an attempt resumes from; `before` are those made before it."""
    found = last_checkpoints(before)
    if found or not job.resume or distrusted(before):
        return found
    folders = checkpoint_folders(job.workload.model, job.name)
    return newest_checkpoints([job.output.resolve()], dict.fromkeys(folders))


def _planned(job: TrainingJob, settings: AttemptSettings, number: int, bench: Bench) -> PlannedRun:
    """Return the planned run of an attempt.

    Raises:
        UserError: when there is no cell for the attempt, or too few GPUs are healthy.
    """
    if settings.device == "cuda":
        return PlannedRun(job.cell_of(settings), number, _gpus(job, settings, bench))
    if job.cell.stack.device == "cpu":
        return PlannedRun(job.cell, number)
    if job.cpu_cell is None:
        raise UserError(f"the matrix file has no cpu stack to train with; add one, then {CONTINUES}")
    return PlannedRun(job.cpu_cell, number)


def _gpus(job: TrainingJob, settings: AttemptSettings, bench: Bench) -> tuple[int, ...]:
    """Return the GPUs of an attempt: those that the preset names, unless a fallback changed how GPUs are used."""
    healthy = healthy_gpus(job, bench)
    if len(healthy) < settings.devices:
        why = "; ".join(f"GPU {gpu}: {detail}" for gpu, detail in unhealthy_gpus(bench.results, bench.host).items())
        raise UserError(
            f"too few GPUs are healthy ({why}); fix the host (`matrix doctor`), or give --cell and --strategy, or "
            "--allow-cpu to train on the CPU if none is"
        )
    if settings.strategy == job.workload.strategy and healthy == job.cell.preset.devices:
        return healthy
    if settings.strategy == "single":
        # A GPU may pass each probe and be reset in each training.
        resets = resets_of_gpus(bench.results, bench.host)
        return tuple(sorted(healthy, key=lambda gpu: (gpu in job.avoided, resets[gpu])))[:1]
    return tuple(sorted(healthy))


def healthy_gpus(job: TrainingJob, bench: Bench) -> tuple[int, ...]:
    """Return the GPUs that the cell may use, without the unhealthy ones."""
    unhealthy = unhealthy_gpus(bench.results, bench.host)
    return tuple(gpu for gpu in gpus_of_cell(job, bench) if gpu not in unhealthy)


def gpus_of_cell(job: TrainingJob, bench: Bench) -> tuple[int, ...]:
    """Return the GPUs that the cell may use."""
    return job.cell.preset.devices or bench.gpus


def _restart_when_fragmented() -> Observer:
    watch = FragmentationWatch()

    def observe(line: Progress) -> None:
        # By the clock of this process: an app whose clock ran ahead would be restarted at once, without end.
        if why := watch.saw(line, time.monotonic()):
            raise PlannedRestart(why)

    return observe
