"""A training of the user's own, as it is asked for: puts this host, the matrix and the results together."""

import time
from dataclasses import dataclass, replace
from pathlib import Path

from harness.base.storage import json_hash
from harness.campaign import commands
from harness.campaign.bench import Bench, Display
from harness.campaign.plain_cells import plain_cpu_cell
from harness.campaign.plan import Plan, make_plan
from harness.environments.capabilities import capabilities_of, choose_engine
from harness.environments.environment import image_environment
from harness.environments.executors.docker import DockerExecutor
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.records import Results
from harness.host.displays import headless_first
from harness.host.facts import HostFacts
from harness.host.fingerprint import REAL_ROOT, training_gpus
from harness.matrix.cells import Cell, ExecutorName, Matrix, Workload
from harness.matrix.workload_options import options_of
from harness.registry.push_pull import pull_known_good
from harness.registry.tags.known_good import KnownGood, lock_of, why_not_usable
from harness.run.workload_data import read_data
from harness.training.choose_cell import Choice, Wish, choose
from harness.training.train import Ended, Job, train
from harness.training.trainings import Notebook, Training, new_training


@dataclass(frozen=True)
class Asked:
    """What the user asks for. `name` is that of the model's file; `resume` and `drill` are as in a `Job`."""

    data: Path
    output: Path
    name: str
    workload: Workload
    wish: Wish
    executor: ExecutorName | None = None
    resume: bool = False
    injected_fault: str | None = None


@dataclass(frozen=True)
class Ready:
    """A training that can be carried out. `told` says in which cell, and why in that."""

    job: Job
    training: Training
    notebook: Notebook
    plan: Plan
    bench: Bench
    told: str

    def carry_out(self, display: Display) -> Ended:
        """Train to the end.

        Raises:
            UserError: when the image cannot be pulled, and as `train` does.
            KeyboardInterrupt: after the current attempt was recorded; the same command goes on.
        """
        bench = self.bench
        commands.settle(bench, display)
        if bench.engine and self.training.evidence:
            image = pull_known_good(bench.engine, self.training.evidence, display.step)
            cell = self.job.cell
            bench.give(cell, image_environment(image.id, image.identity, cell.stack))
        return train(self.job, self.training, self.notebook, bench, display)


def prepare(
    asked: Asked, matrix: Matrix, results: Results, host: HostFacts, notebook: Notebook, root: Path = REAL_ROOT
) -> Ready:
    """Go on with the training that was begun with the same question, or begin one.

    Raises:
        UserError: when the data cannot be read, there is no cell that can train here, or its tag may not be used here
            (any more).
    """
    wish = asked.wish
    key = json_hash([options_of(asked.workload), read_data(asked.data).sha256, wish.cell, wish.registry])
    noted = notebook.read(key)
    if noted and noted.cell in matrix.cells:
        training, told = _gone_on(noted, asked, matrix, results, host)
    else:
        choice = _choice(asked, matrix, results, host)
        training, told = new_training(key, choice.cell.id, choice.evidence), choice.told
    cell = matrix.cells[training.cell]
    engine = choose_engine([cell], asked.executor)
    if training.evidence and engine is None:
        told += "; as a process, where its tag is about its image"
    gpus = _gpus(training.evidence, host)
    able = replace(capabilities_of(host, engine, [cell], None), gpus=gpus)
    plan = make_plan([cell], asked.workload, 1, able, {}, named=True)
    if training.evidence and engine:
        # An image by its digest is not built.
        plan = replace(plan, download_gb=0.0, disk_gb=0.0)
    runs = DockerExecutor(engine, results.runs) if engine else ProcessExecutor(results.runs)
    bench = Bench(results, runs, host, gpus, None, asked.data, engine, root)
    job = Job(
        cell, plain_cpu_cell(matrix), asked.workload, asked.output, asked.name, asked.resume, asked.injected_fault
    )
    return Ready(job, training, notebook, plan, bench, told)


def _gone_on(noted: Training, asked: Asked, matrix: Matrix, results: Results, host: HostFacts) -> tuple[Training, str]:
    """The training that was noted, and what is told of it.

    Where its evidence does not hold any more the cell is chosen as at a first start, and what was trained is kept.
    """
    told = f"going on with the training begun {_when(noted.began)}"
    evidence = noted.evidence
    # Perhaps it was a new kernel or driver that ended it.
    if evidence is None or why_not_usable(evidence, host, time.time(), lock_of(evidence)) is None:
        return noted, f"{noted.cell}: {told}"
    choice = _choice(asked, matrix, results, host)
    return noted.model_copy(update={"cell": choice.cell.id, "evidence": choice.evidence}), f"{choice.told}; {told}"


def _choice(asked: Asked, matrix: Matrix, results: Results, host: HostFacts) -> Choice:
    cells: list[Cell] = matrix.select("default")
    able = capabilities_of(host, choose_engine(cells, asked.executor), cells, None)
    return choose(asked.wish, matrix, results, host, able, time.time())


def _gpus(evidence: KnownGood | None, host: HostFacts) -> tuple[int, ...]:
    """The GPUs to train on, as `headless_first`: where there is evidence, those of the targets that it is about."""
    gpus = training_gpus(host)
    targets = evidence.gfx if evidence else ()
    # None of them is here where the tag was forced, or is one of a CPU.
    return headless_first([gpu for gpu in gpus if gpu.gfx in targets] or gpus)


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
