"""Prepare a training of the user's own: resume the one that the same request began, or begin a new one."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.base.durations import when
from harness.base.errors import UserError
from harness.base.files.hashes import json_hash
from harness.base.schema1 import former_names
from harness.campaign.bench.bench import Bench, StackUnavailableError
from harness.campaign.bench.display import Display
from harness.campaign.bench.open_bench import BenchOptions, open_bench
from harness.campaign.bench.plan import BEST, Plan, make_plan, plain_cpu_cell
from harness.campaign.planning.stage_evidence import StageEvidence
from harness.campaign.recovery import close_leftovers
from harness.doctor.cards import read_cards
from harness.doctor.machine import AMD
from harness.environments.capabilities import capabilities_of, choose_engine, room_needed, why_not
from harness.environments.verifier import verifying_stack
from harness.evidence.records import Results
from harness.host.facts import GpuFacts, HostFacts
from harness.host.fingerprint import training_gpus
from harness.matrix.cells import Cell, Matrix
from harness.matrix.stacks import ExecutorName
from harness.matrix.workload_options import options_of
from harness.matrix.workloads import Workload
from harness.registry.push_pull import pull_known_good
from harness.registry.tags.known_good import KnownGood, lock_of, why_not_usable
from harness.registry.tags.suspension import suspension_by
from harness.run.workload_data import read_data, require_sessions
from harness.search.stages.gpus import bad_gpus
from harness.training.attempt import TrainingJob
from harness.training.choose_cell import CellChoice, CellRequest, choose_training_cell
from harness.training.expect import expectation_in_words
from harness.training.length import length_in_words
from harness.training.resumable import check_resumable, require_checkpoint
from harness.training.state import StateFile, TrainingState, new_state
from harness.training.train import TrainingResult, train


@dataclass(frozen=True)
class TrainingRequest:
    """The training that a user requests.

    `data`: None for a program of the user's own, which reads its data itself.
    `name`: the name of the model's file.
    `resume`, `injected_fault`: as in a `TrainingJob`.
    `root`: the folder that holds the host's /sys and /dev.
    `command`: the shell command that makes the same request again.
    """

    data: Path | None
    output: Path
    name: str
    workload: Workload
    cell: CellRequest
    executor: ExecutorName | None = None
    resume: bool = False
    injected_fault: str | None = None
    root: Path = Path("/")
    command: str | None = None


@dataclass(frozen=True)
class PreparedTraining:
    """A training that can be run.

    `summary`: the chosen cell, and why.
    `kept`: a note on another unfinished training with the same output; "" if there is none.
    `length`: how long this training takes, in words; "" for a program of the user's own, where it is not known.
    `expectation`: says in a line what a training of so many hours can expect.
    """

    job: TrainingJob
    state: TrainingState
    file: StateFile
    plan: Plan
    bench: Bench
    summary: str
    expectation: Callable[[float], str]
    kept: str
    length: str

    def run(self, display: Display) -> TrainingResult:
        """Train to the end.

        Raises:
            UserError: when the image cannot be pulled, and as `train` does.
            KeyboardInterrupt: after the current attempt was recorded; the same command resumes.
        """
        bench, evidence = self.bench, self.state.evidence
        close_leftovers(bench, display)
        if bench.engine and evidence:
            image = pull_known_good(bench.engine, evidence, display.step)
            bench.use_environment(self.job.cell, image.environment(self.job.cell.stack))
        try:
            return train(self.job, self.state, self.file, bench, display)
        except StackUnavailableError as error:
            if not self.job.allow_cpu or self.job.cpu_cell is None or error.stack == self.job.cpu_cell.stack:
                raise
            raise UserError(f"{error}; --cell {self.job.cpu_cell.id} trains on the CPU") from error


def prepare_training(
    request: TrainingRequest, matrix: Matrix, results: Results, host: HostFacts, file: StateFile
) -> PreparedTraining:
    """Resume the training that the same request began, or begin a new one.

    Raises:
        UserError: when the data cannot be read or have too few sessions, no cell can train here, the tag may not (or no
            longer) be used here, an image of a registry would run as a process, nobody allowed the CPU, or the training
            was begun in a cell that the matrix file no longer has.
    """
    workload = request.workload
    options, data = _identity(request)
    key, former_key = (
        json_hash([o, data, request.cell.cell, request.cell.registry]) for o in (options, former_names(options))
    )
    kept = ""
    begun = file.read(key) or file.read(former_key)
    if begun and begun.begins and begun.cell not in matrix.cells:
        raise UserError(
            f"the training begun {when(begun.began)} in {request.output} is not finished, and the matrix file no "
            f"longer has its cell {begun.cell}; put that back, or `rm {file.place(begun)}` to begin again"
        )
    if begun and begun.cell in matrix.cells:
        state, summary = _resumed(begun, request, matrix, results, host)
    else:
        if request.resume:
            check_resumable(request.output, request.name, options, results)
            require_checkpoint(request.output, request.name, workload.model)
        choice = _choose(request, matrix, results, host)
        state, summary = new_state(key, choice.cell.id, choice.evidence, choice.executor), choice.summary
        if other := file.unfinished_other(key):
            continues = f"its own command continues it{f': `{other.command}`' if other.command else ''}"
            if other.command == request.command:
                continues = "this command continues it once the data are again what they were"
            kept = (
                f"this is another training: an unfinished one with other options or data, begun {when(other.began)}, "
                f"is kept, and {continues}"
            )
    state, summary = _placed(state, summary, request, matrix, host)
    found_by = {"machine": host.machine, "output": str(request.output.resolve()), "command": request.command}
    state = state.model_copy(update=found_by)
    cell, evidence = matrix.cells[state.cell], state.evidence
    executor = request.executor or state.executor
    place = BenchOptions(results, request.data, None, executor, request.root, verifying_stack(matrix))
    bench = open_bench(place, [cell], lambda host: _gpus(evidence, host), host)
    if bench.data and not workload.program:
        require_sessions(bench.data, workload)
    if bench.engine is None:
        summary += _as_process(state, request, cell)
    able = replace(capabilities_of(host, bench.engine, [cell], None, bench.verifying), gpus=bench.gpus)
    plan = make_plan([cell], workload, 1, able, {}, named=True)
    if evidence and bench.engine:
        # An image named by its digest is not built; only the environment that verifies runs may have to be.
        download, disk = room_needed(filter(None, [able.verifying]), able)
        plan = replace(plan, download_gb=download, disk_gb=disk)
    # A GPU may fail runs and still pass the short probe that tells healthy ones.
    on_gpu = cell.stack.accelerator != "cpu" and len(bench.gpus) > 1
    avoided = bad_gpus(StageEvidence(bench, matrix).read()) if on_gpu else ()
    if avoided and workload.strategy == "single" and not cell.preset.devices:
        summary += f"; not on GPU {', '.join(map(str, avoided))}, which failed what another GPU passed"
    job = TrainingJob(
        cell,
        plain_cpu_cell(matrix),
        workload,
        request.output,
        request.name,
        request.resume,
        request.injected_fault,
        request.cell.allow_cpu and workload.program is None,
        () if workload.program else _others(cell, request, matrix, bench),
        avoided,
    )

    def expectation(hours: float) -> str:
        return expectation_in_words(evidence, cell.id, workload.strategy, matrix, results, bench.host, hours)

    length = (
        ""
        if workload.program
        else length_in_words(cell, workload, data, results, host, resumes=request.resume or bool(state.begins))
    )
    return PreparedTraining(job, state, file, plan, bench, summary, expectation, kept, length)


def _as_process(state: TrainingState, request: TrainingRequest, cell: Cell) -> str:
    """Return the end of the summary of a training in processes; empty where the user, or the stack, wants no other.

    Raises:
        UserError: when an image of a registry would run as a process.
    """
    if state.evidence and request.cell.registry:
        raise UserError(
            f"{state.evidence.tag}: images of a registry run in containers only, which have the walls that processes "
            "lack; start the Docker engine, or give --cell to train in an environment made here"
        )
    if state.evidence:
        return "; as a process, although its tag is about its image"
    if request.executor is None and "docker" in cell.stack.executors:
        # Runs as processes showed that the cell trains, so do the same, even if a Docker engine answers.
        shown = "like the runs that show it; --executor docker uses a container"
        return f"; as a process, {shown if state.executor else 'since no Docker engine answers'}"
    return ""


def _identity(request: TrainingRequest) -> tuple[dict[str, Any], str]:
    """Return what distinguishes trainings: the options, and the hash of the data.

    A program of the user's own may be fixed between two attempts and still counts as the same training.
    """
    options = options_of(request.workload)
    if program := request.workload.program:
        own = {name: value for name, value in options["program"].items() if name != "version"}
        return {**options, "program": own}, json_hash([program.source, *program.data])
    if request.data is None:
        raise ValueError("the app needs data to train on")
    return options, read_data(request.data).sha256


def _resumed(
    begun: TrainingState, request: TrainingRequest, matrix: Matrix, results: Results, host: HostFacts
) -> tuple[TrainingState, str]:
    """Return the state of the training that was begun, and a summary of it.

    If its evidence no longer holds, the cell is chosen as at a first start, and the checkpoints are kept.
    """
    summary = f"resuming the training begun {when(begun.began)}"
    evidence = begun.evidence
    # Perhaps a new kernel or driver invalidated the evidence, or the cell did, by resetting the GPU.
    stranded = training_gpus(host) and request.cell.cell != begun.cell and not request.cell.allow_cpu
    if stranded and evidence is None and matrix.cells[begun.cell].stack.device == "cpu":
        # The training was begun when this host had no GPU.
        choice = _choose(request, matrix, results, host)
        changed = {"cell": choice.cell.id, "executor": choice.executor}
        return begun.model_copy(update=changed), f"{choice.summary}; {summary}"
    holds = evidence is None or why_not_usable(evidence, host, time.time(), lock_of(evidence)) is None
    if holds and (evidence is None or suspension_by(results, matrix)(evidence) is None):
        return begun, f"{begun.cell}: {summary}"
    choice = _choose(request, matrix, results, host)
    update = {"cell": choice.cell.id, "evidence": choice.evidence, "executor": choice.executor}
    return begun.model_copy(update=update), f"{choice.summary}; {summary}"


def _choose(request: TrainingRequest, matrix: Matrix, results: Results, host: HostFacts) -> CellChoice:
    cells: list[Cell] = matrix.select("default")
    able = capabilities_of(host, choose_engine(cells, request.executor), cells, None)
    choice = choose_training_cell(request.cell, matrix, results, host, able, time.time())
    if choice.evidence is None or request.cell.registry is None:
        return choice
    return replace(choice, summary=f"{choice.summary}; {_signer(choice.evidence, request.cell, matrix)}")


def _signer(evidence: KnownGood, wanted: CellRequest, matrix: Matrix) -> str:
    """Return who signed the evidence of a tag in a registry, in words.

    Raises:
        UserError: when no trusted signer did, unless the user forces it.
    """
    # Imported here because the verifying library takes time to import, and only a registry needs it.
    from harness.registry.attestations.signers import check_signer  # noqa: PLC0415

    try:
        return check_signer(evidence, matrix.signatures, wanted.ask)
    except UserError as refusal:
        if not wanted.force:
            raise
        return f"forced: {refusal}"


def _placed(
    state: TrainingState, summary: str, request: TrainingRequest, matrix: Matrix, host: HostFacts
) -> tuple[TrainingState, str]:
    """Return the state and its summary, with the CPU's cell if this host shows no GPU and the CPU may be used.

    A host without an AMD card needs no permission for that; a host whose card the driver does not show does.

    Raises:
        UserError: when it would train on the CPU and nobody allowed that.
    """
    if training_gpus(host):
        return state, summary
    wanted, cell = request.cell, matrix.cells[state.cell]
    if cell.stack.device == "cpu":
        hidden = [] if wanted.cell == cell.id or wanted.force or wanted.allow_cpu else _hidden_cards(request.root, host)
        if hidden:
            raise UserError(
                f"this host has an AMD card ({', '.join(hidden)}) that its driver does not show to ROCm; "
                "`matrix doctor` says what to fix; --allow-cpu trains on the CPU"
            )
        return state, f"{summary}; on the CPU: this host has no GPU that torch has kernels for"
    instead = plain_cpu_cell(matrix)
    if not wanted.allow_cpu or instead is None:
        raise UserError(
            f"{cell.id} needs a GPU, and this host shows none that torch has kernels for; `matrix doctor` says what to "
            "fix; --allow-cpu trains on the CPU"
        )
    changed = state.model_copy(update={"cell": instead.id, "evidence": None})
    why = "this host shows no GPU that torch has kernels for (`matrix doctor` says what to fix)"
    return changed, f"{instead.id}, on the CPU: {why}; in place of {summary}"


def _others(cell: Cell, request: TrainingRequest, matrix: Matrix, bench: Bench) -> tuple[Cell, ...]:
    """Return the plain cells of other stacks that are made here, because a fallback must not download anything.

    None if the user named a cell or a registry.
    """
    if request.cell.registry or request.cell.cell not in (None, BEST) or cell.stack.device == "cpu":
        return ()
    plain = [one for one in matrix.select("default") if one.preset.name == "plain" and one.stack.accelerator == "rocm"]
    able = replace(capabilities_of(bench.host, bench.engine, plain, None), gpus=bench.gpus)
    made = (one for one in plain if one.stack.name in able.made and one.stack != cell.stack)
    return tuple(one for one in made if why_not(one, able) is None)


def _hidden_cards(root: Path, host: HostFacts) -> list[str]:
    """Return the addresses of AMD cards if KFD lists no GPU at all, as without a driver."""
    return [] if host.gpus else [card.address for card in read_cards(root) if card.vendor == AMD]


def _gpus(evidence: KnownGood | None, host: HostFacts) -> Iterable[GpuFacts]:
    """Return the GPUs to train on; if there is evidence, those of the targets that it is about."""
    gpus = training_gpus(host)
    targets = evidence.gfx if evidence else ()
    # None of these targets is here if the tag was forced, or is about the CPU.
    return [gpu for gpu in gpus if gpu.gfx in targets] or gpus
