"""Request + evidence -> outcome. Pure, and the only place where an outcome is decided. Logs have no say here."""

import math
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from harness.environments.executors.job import Exit
from harness.evidence.app_files import EarlierReference, ModelCheck, Reference, Result, StepNumbers, Training
from harness.evidence.memory import MemoryUse
from harness.evidence.run_files import OutcomeName
from harness.evidence.work_folder import WorkFolder
from harness.matrix.cells import RANK_PER_DEVICE, ModelKind

# Relative difference allowed between the first step's numbers and the float32 reference on the CPU.
TOLERANCE = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 5e-2}
# By how much it grows with each step. Adam's first updates follow little but the signs of gradients, so that rounding
# turns into whole steps: the attention models amplify that, the mlp does not (measured, in docs/evidence/numbers.md).
GROWTH: Mapping[ModelKind, float] = {"mlp": 1.0, "attention": 3.0, "attention-small": 3.0}
COMPARED_STEPS = 16
# A loss scaler skips a few updates while it finds its scale; more than that is a training that did not happen.
MAX_SKIPPED_SHARE = 0.1
OfEnding = Literal[
    "app-error",
    "crash",
    "no-progress",
    "not-finite",
    "not-started",
    "out-of-memory",
    "unhealthy-gpu",
    "time-limit",
    "unkillable",
    "wrong-result",
]
"""Diagnoses that say how a run ended or what was seen of it: exits, logs and stacks say why."""
OfResult = Literal[
    "injected-fault",
    "incomplete-result",
    "memory-grows",
    "memory-limit",
    "model-damaged",
    "model-does-not-load",
    "no-reference",
    "no-result",
    "wrong-data",
    "wrong-device",
    "wrong-stack",
    "wrong-workload",
]
"""Diagnoses that were decided from the result or from measurements: the outcome's detail is the cause."""
Diagnosis = OfEnding | OfResult

# What the app itself saw: numbers that are not finite; ranks that trained different weights.
APP_EXITS: Mapping[int, Diagnosis] = {4: "not-finite", 5: "wrong-result"}
# A shell or an init process reports signal n as exit code 128 + n.
SHELL_SIGNALS = 128

StoppedBy = Literal["user", "time-limit", "watchdog", "host", "start", "engine"]
STOPPED: Mapping[StoppedBy, tuple[OutcomeName, Diagnosis | None]] = {
    "user": ("interrupted", None),
    "engine": ("interrupted", None),
    "time-limit": ("failed", "time-limit"),
    "watchdog": ("hung", "no-progress"),
    "host": ("host-fault", "unkillable"),
    "start": ("failed", "not-started"),
}


@dataclass(frozen=True)
class Request:
    """The work that a run was asked to do.

    `gpus`: how many must be seen in use from outside. `devices`: how many the strategy is to use, of whatever kind.
    `injected_fault`: the fault that is injected into it.
    """

    workload_hash: str
    data_sha256: str
    device: str
    gpus: int
    torch: str | None
    rocm: str | None
    options: Mapping[str, Any]
    phases: tuple[str, ...] = ("train",)
    devices: int = 1
    max_device_memory: int | None = None
    injected_fault: str | None = None

    @property
    def models(self) -> list[str]:
        """The kinds of models asked for, in order."""
        return list(self.options.get("model", ("mlp",)))

    @property
    def ranks(self) -> int:
        """The number of processes that were to compute."""
        return self.devices if self.options["strategy"] in RANK_PER_DEVICE else 1

    @property
    def epochs(self) -> int:
        """Epochs asked for."""
        return int(self.options["epochs"])

    @property
    def dtype(self) -> str:
        """The type the forward pass was asked to compute in."""
        if not self.options["use_mixed_precision"]:
            return "float32"
        return str(self.options.get("mixed_precision_dtype", "float16" if self.device == "cuda" else "bfloat16"))


@dataclass(frozen=True)
class Evidence:
    """Everything seen of a run. None means it is not there.

    `host_problems`: what was found to be wrong with the host or a GPU after a run that did not complete.
    """

    exits: Mapping[str, Exit]
    stopped_by: StoppedBy | None = None
    stop_detail: str = ""
    result: Result | None = None
    result_problem: str = f"there is no {WorkFolder.RESULT}"
    model_sha256: str | None = None
    earlier_sha256: tuple[str | None, ...] = ()
    model_check: ModelCheck | None = None
    reference: Reference | None = None
    gpus_seen: int | None = None
    memory: MemoryUse = field(default_factory=MemoryUse)
    host_problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """The outcome, its diagnosis (None for `completed`) and one line of detail."""

    name: OutcomeName
    diagnosis: Diagnosis | None
    detail: str


def decide(request: Request, evidence: Evidence) -> Outcome:
    """Return the outcome: `completed` only when nothing speaks against it, and never with an injected fault."""
    outcome = _decide(request, evidence)
    if evidence.host_problems and outcome.name != "completed":
        found = "; ".join(evidence.host_problems)
        diagnosis = outcome.diagnosis if outcome.name == "host-fault" else "unhealthy-gpu"
        outcome = Outcome("host-fault", diagnosis, f"{found}; the run itself: {_in_short(outcome)}")
    fault = request.injected_fault or (evidence.result.injected_fault if evidence.result else None)
    if fault is None:
        return outcome
    if outcome.name == "completed":
        return Outcome("failed", "injected-fault", f"the injected fault {fault} was not noticed: {outcome.detail}")
    return replace(outcome, detail=f"{outcome.detail}; fault injected on purpose: {fault}")


def _decide(request: Request, evidence: Evidence) -> Outcome:
    if evidence.stopped_by is not None:
        return Outcome(*STOPPED[evidence.stopped_by], evidence.stop_detail)
    for phase, exit_ in evidence.exits.items():
        if not exit_.ok and exit_.out_of_memory:
            killed = "the process" if exit_.code == -signal.SIGKILL else "a process it had started"
            detail = f"{killed} was killed at the container's memory limit; the {phase} process ended with {exit_}"
            return Outcome("failed", "out-of-memory", detail)
        if not exit_.ok:
            crash = exit_.code < 0 or exit_.code > SHELL_SIGNALS
            diagnosis: Diagnosis = "crash" if crash else APP_EXITS.get(exit_.code, "app-error")
            return Outcome("failed", diagnosis, f"the {phase} process ended with {exit_}")
    if tuple(evidence.exits) != request.phases:
        return Outcome("failed", "no-result", f"of {', '.join(request.phases)} only {len(evidence.exits)} were run")
    if evidence.result is None:
        return Outcome("failed", "no-result", f"exit 0, but {evidence.result_problem}")
    for diagnosis, detail in _objections(request, evidence, evidence.result):
        return Outcome("failed", diagnosis, detail)
    done = [f"{told.epochs_done} epochs, {told.steps_done} steps" for told in evidence.result.trainings]
    return Outcome("completed", None, f"{', then '.join(done)}, model verified")


def _in_short(outcome: Outcome) -> str:
    return f"{outcome.name} ({outcome.diagnosis}), {outcome.detail}" if outcome.diagnosis else outcome.detail


def _objections(request: Request, evidence: Evidence, result: Result) -> Iterator[tuple[Diagnosis, str]]:
    """Everything that speaks against a run that ended by itself with a result, the gravest first."""
    yield from _device_objections(request, evidence, result)
    if result.data.sha256 != request.data_sha256:
        yield "wrong-data", f"trained on data {result.data.sha256[:12]}, asked for {request.data_sha256[:12]}"
    if result.workload_hash != request.workload_hash:
        yield "wrong-workload", "the workload hash in the result is not the one asked for"
    for name, asked in request.options.items():
        got = result.options.get(name)
        if (list(got) if isinstance(got, tuple) else got) != asked:
            yield "wrong-workload", f"{name} was {got!r}, asked for {asked!r}"
    yield from _completeness_objections(request, result)
    if not all(map(math.isfinite, _numbers(result))):
        yield "not-finite", "a loss, gradient norm or speed is not a finite number"
    yield from _model_objections(evidence, result)
    yield from _number_objections(evidence, result)
    yield from _memory_objections(request, evidence, result)


def _numbers(result: Result) -> Iterator[float]:
    """Every number of a training that has to be finite."""
    for told in result.trainings:
        if sum(step.gradient_norm is None for step in told.first_steps) > told.steps_skipped:
            yield math.nan
        yield from (n for step in told.first_steps for n in (step.loss, step.gradient_norm) if n is not None)
        yield from (n for epoch in told.epoch_losses for n in (epoch.train, epoch.validation) if n is not None)
        yield from (told.throughput.samples_per_second, told.throughput.train_seconds)


def _device_objections(request: Request, evidence: Evidence, result: Result) -> Iterator[tuple[Diagnosis, str]]:
    used = {result.device, *(device.device.split(":")[0] for device in result.devices)}
    if used != {request.device}:
        yield "wrong-device", f"asked for {request.device}, the result says {' and '.join(sorted(used))}"
    if request.device != "cpu" and (evidence.gpus_seen or 0) < request.gpus:
        seen = "nothing was seen" if evidence.gpus_seen is None else f"{evidence.gpus_seen} were seen"
        yield "wrong-device", f"asked for {request.gpus} GPU; from outside {seen} in use"
    if request.torch and result.torch.version.split("+")[0] != request.torch:
        yield "wrong-stack", f"the stack declares torch {request.torch}, torch {result.torch.version} ran"
    # torch.version.hip is like 6.3.42131-fa1d09cbd: its first two numbers are ROCm's.
    if request.rocm and (result.torch.hip or "").split(".")[:2] != request.rocm.split(".")[:2]:
        yield "wrong-stack", f"the stack declares ROCm {request.rocm}, HIP {result.torch.hip} ran"


def _completeness_objections(request: Request, result: Result) -> Iterator[tuple[Diagnosis, str]]:
    kinds = [told.model_kind for told in result.trainings]
    if kinds != request.models:
        yield "incomplete-result", f"trained {', '.join(kinds)}, asked for {', '.join(request.models)}"
    for told in result.trainings:
        for diagnosis, detail in _training_objections(request, told):
            yield diagnosis, f"{told.model_kind}: {detail}" if result.earlier else detail
    if (result.world_size, len(result.devices)) != (request.ranks, request.devices):
        asked = f"{request.ranks} on {request.devices}"
        yield "incomplete-result", f"{result.world_size} ranks on {len(result.devices)} devices, asked for {asked}"
    if {device.rank for device in result.devices} != set(range(request.ranks)):
        yield "incomplete-result", "devices and ranks do not add up"
    if result.sessions.train + result.sessions.validation > result.sessions.used or not result.sessions.train:
        yield "incomplete-result", "the sessions do not add up"
    really = {"threads": result.threads, "strategy": result.strategy, "dtype": result.dtype}
    asked_for = {"threads": request.options["threads"], "strategy": request.options["strategy"], "dtype": request.dtype}
    for name, value in really.items():
        if value != asked_for[name]:
            yield "wrong-workload", f"{name} really was {value}, asked for {asked_for[name]}"


def _training_objections(request: Request, told: Training) -> Iterator[tuple[Diagnosis, str]]:
    """Yield what one model's training lacks."""
    epochs = [epoch.epoch for epoch in told.epoch_losses]
    if not (epochs == list(range(1, request.epochs + 1)) and told.epochs_requested == told.epochs_done == len(epochs)):
        yield "incomplete-result", f"{told.epochs_done} of {request.epochs} epochs, with the losses of {epochs}"
    if not told.samples.validation or any(epoch.validation is None for epoch in told.epoch_losses):
        yield "incomplete-result", "an epoch was not validated"
    batch_size = int(request.options["batch_size"])
    if told.batch_size not in (None, batch_size):
        yield "wrong-workload", f"batch_size really was {told.batch_size}, asked for {batch_size}"
    per_epoch = math.ceil(told.samples.train / batch_size)
    if not per_epoch or told.steps_per_epoch != per_epoch or told.steps_done != per_epoch * request.epochs:
        yield "incomplete-result", f"{told.steps_done} steps, expected {per_epoch * request.epochs}"
    if told.steps_skipped > MAX_SKIPPED_SHARE * told.steps_done:
        yield "incomplete-result", f"{told.steps_skipped} of {told.steps_done} steps changed nothing"
    steps = [step.step for step in told.first_steps]
    if steps != list(range(1, min(COMPARED_STEPS, told.steps_done) + 1)):
        yield "incomplete-result", "the numbers of the first steps are not all there"
    if len(told.rank_weights_sha256) != request.ranks:
        yield "incomplete-result", f"{len(told.rank_weights_sha256)} hashes of weights, asked for {request.ranks} ranks"


def _model_objections(evidence: Evidence, result: Result) -> Iterator[tuple[Diagnosis, str]]:
    if evidence.model_sha256 is None:
        yield "model-damaged", f"the model file {result.model.file} is not there"
    if evidence.model_sha256 != result.model.sha256:
        yield "model-damaged", f"the model file {result.model.file} does not have the hash the result gives"
    for training, found in zip(result.earlier, evidence.earlier_sha256, strict=False):
        if found != training.model.sha256:
            yield "model-damaged", f"the model file {training.model.file} does not have the hash the result gives"
    if len(evidence.earlier_sha256) != len(result.earlier):
        yield "model-damaged", "not all model files were looked at"
    check = evidence.model_check
    if check is None:
        yield "model-does-not-load", "vpoc check-model did not succeed"
        return
    told = (result.model.sha256, result.model.bytes, result.model.parameters)
    if told != (check.sha256, check.bytes, check.parameters):
        yield "model-damaged", "hash, size or parameters of the model file are not those the result gives"
    if check.model != result.model_kind:
        yield "model-damaged", f"the model file holds {check.model}, the result says {result.model_kind}"
    if check.weights_sha256 not in result.rank_weights_sha256:
        yield "wrong-result", "the weights in the model file are not those the ranks ended with"


def _number_objections(evidence: Evidence, result: Result) -> Iterator[tuple[Diagnosis, str]]:
    if any(len(set(told.rank_weights_sha256)) != 1 for told in result.trainings):
        yield "wrong-result", "the ranks ended with different weights"
    reference = evidence.reference
    if reference is None:
        yield "no-reference", "the CPU reference could not be computed"
        return
    if (reference.data_sha256, reference.workload_hash) != (result.data.sha256, result.workload_hash):
        yield "no-reference", "the CPU reference is of other data or another workload"
    if [one.model_kind for one in reference.trainings] != [told.model_kind for told in result.trainings]:
        yield "no-reference", "the CPU reference is of other models"
        return
    for told, expected in zip(result.trainings, reference.trainings, strict=True):
        for diagnosis, detail in _step_objections(told, expected, result.dtype):
            yield diagnosis, f"{told.model_kind}: {detail}" if result.earlier else detail


def _step_objections(told: Training, expected: EarlierReference, dtype: str) -> Iterator[tuple[Diagnosis, str]]:
    """Yield what speaks against the first steps of one model."""
    if told.samples != expected.samples:
        yield "incomplete-result", f"trained on {told.samples.train} samples of {expected.samples.train}"
    if len(expected.steps) != len(told.first_steps):
        yield "no-reference", "the CPU reference has another number of steps"
    for got, right in zip(told.first_steps, expected.steps, strict=False):
        tolerance = tolerance_of(told.model_kind, dtype, got.step)
        if not _close(got, right, tolerance):
            yield "wrong-result", f"{_in_words(got)}, the CPU reference has {_in_words(right)} ({tolerance:g})"


def _memory_objections(request: Request, evidence: Evidence, result: Result) -> Iterator[tuple[Diagnosis, str]]:
    if evidence.memory.growth:
        yield "memory-grows", evidence.memory.growth
    if request.max_device_memory is None or request.device == "cpu":
        return
    peak = result.memory.peak_on_device if result.memory else None
    if peak is None:
        yield "incomplete-result", "it does not tell how much memory it used of a GPU, which the workload limits"
        return
    if request.ranks > 1:
        # The result has the first rank's device; the others report theirs in their progress.
        peak = max(peak, evidence.memory.most_reserved_bytes)
    if peak > request.max_device_memory:
        limit = request.max_device_memory / 1e9
        yield "memory-limit", f"{peak / 1e9:.2f} GB in use on a GPU, {limit:.2f} GB are allowed"


def tolerance_of(kind: ModelKind, dtype: str, step: int) -> float:
    """Relative difference allowed in a step, counted from 1."""
    return float(TOLERANCE[dtype] * GROWTH[kind] ** (step - 1))


def _close(got: StepNumbers, expected: StepNumbers, tolerance: float) -> bool:
    pairs = [(got.loss, expected.loss)]
    if got.gradient_norm is not None:
        pairs.append((got.gradient_norm, math.inf if expected.gradient_norm is None else expected.gradient_norm))
    return got.step == expected.step and all(math.isclose(a, b, rel_tol=tolerance, abs_tol=1e-6) for a, b in pairs)


def _in_words(step: StepNumbers) -> str:
    norm = "none" if step.gradient_norm is None else f"{step.gradient_norm:.6g}"
    return f"step {step.step}: loss {step.loss:.6g}, gradient norm {norm}"
