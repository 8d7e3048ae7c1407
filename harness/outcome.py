"""Request + evidence -> outcome. Pure, and the only place where an outcome is decided. Logs have no say here."""

import math
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from harness.contracts import ModelCheck, OutcomeName, Reference, Result, StepNumbers
from harness.executors import Exit

# Relative difference allowed between a step's numbers and the float32 reference on the CPU.
TOLERANCE = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 5e-2}
COMPARED_STEPS = 16
# A loss scaler skips a few updates while it finds its scale; more than that is a training that did not happen.
MAX_SKIPPED_SHARE = 0.1
# A shell or an init process reports signal n as exit code 128 + n.
SHELL_SIGNALS = 128

StoppedBy = Literal["user", "time-limit", "watchdog", "host", "start", "engine"]
STOPPED: Mapping[StoppedBy, tuple[OutcomeName, str | None]] = {
    "user": ("interrupted", None),
    "engine": ("interrupted", None),
    "time-limit": ("failed", "time-limit"),
    "watchdog": ("hung", "no-progress"),
    "host": ("host-fault", "unkillable"),
    "start": ("failed", "not-started"),
}


@dataclass(frozen=True)
class Request:
    """What a run was asked to do."""

    workload_hash: str
    data_sha256: str
    device: str
    gpus: int
    torch: str | None
    rocm: str | None
    options: Mapping[str, Any]
    phases: tuple[str, ...] = ("train",)

    @property
    def epochs(self) -> int:
        """Epochs asked for."""
        return int(self.options["epochs"])

    @property
    def dtype(self) -> str:
        """The type the forward pass was asked to compute in."""
        if not self.options["use_mixed_precision"]:
            return "float32"
        return "float16" if self.device == "cuda" else "bfloat16"


@dataclass(frozen=True)
class Evidence:
    """What was seen of a run. None means it is not there."""

    exits: Mapping[str, Exit]
    stopped_by: StoppedBy | None = None
    stop_detail: str = ""
    result: Result | None = None
    result_problem: str = "there is no result.json"
    model_sha256: str | None = None
    model_check: ModelCheck | None = None
    reference: Reference | None = None
    gpus_seen: int | None = None


@dataclass(frozen=True)
class Outcome:
    """The outcome, its diagnosis (None for `completed`) and one line of detail."""

    name: OutcomeName
    diagnosis: str | None
    detail: str


def decide(request: Request, evidence: Evidence) -> Outcome:
    """The outcome of a run: `completed` only when nothing speaks against it."""
    if evidence.stopped_by is not None:
        return Outcome(*STOPPED[evidence.stopped_by], evidence.stop_detail)
    for phase, exit_ in evidence.exits.items():
        if not exit_.ok and exit_.out_of_memory:
            killed = "the process" if exit_.code == -signal.SIGKILL else "a process it had started"
            detail = f"{killed} was killed at the container's memory limit; the {phase} process ended with {exit_}"
            return Outcome("failed", "out-of-memory", detail)
        if not exit_.ok:
            crash = exit_.code < 0 or exit_.code > SHELL_SIGNALS
            return Outcome("failed", "crash" if crash else "app-error", f"the {phase} process ended with {exit_}")
    if tuple(evidence.exits) != request.phases:
        return Outcome("failed", "no-result", f"of {', '.join(request.phases)} only {len(evidence.exits)} were run")
    if evidence.result is None:
        return Outcome("failed", "no-result", f"exit 0, but {evidence.result_problem}")
    for diagnosis, detail in _objections(request, evidence, evidence.result):
        return Outcome("failed", diagnosis, detail)
    result = evidence.result
    return Outcome("completed", None, f"{result.epochs_done} epochs, {result.steps_done} steps, model verified")


def _objections(request: Request, evidence: Evidence, result: Result) -> Iterator[tuple[str, str]]:
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
    numbers = [n for step in result.first_steps for n in (step.loss, step.gradient_norm) if n is not None]
    if sum(step.gradient_norm is None for step in result.first_steps) > result.steps_skipped:
        numbers.append(math.nan)
    numbers += [n for epoch in result.epoch_losses for n in (epoch.train, epoch.validation) if n is not None]
    if not all(map(math.isfinite, [*numbers, result.throughput.samples_per_second, result.throughput.train_seconds])):
        yield "not-finite", "a loss, gradient norm or speed is not a finite number"
    yield from _model_objections(evidence, result)
    yield from _number_objections(evidence, result)


def _device_objections(request: Request, evidence: Evidence, result: Result) -> Iterator[tuple[str, str]]:
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


def _completeness_objections(request: Request, result: Result) -> Iterator[tuple[str, str]]:
    epochs = [epoch.epoch for epoch in result.epoch_losses]
    if not (
        epochs == list(range(1, request.epochs + 1)) and result.epochs_requested == result.epochs_done == len(epochs)
    ):
        yield "incomplete-result", f"{result.epochs_done} of {request.epochs} epochs, with the losses of {epochs}"
    if not result.samples.validation or any(epoch.validation is None for epoch in result.epoch_losses):
        yield "incomplete-result", "an epoch was not validated"
    per_epoch = math.ceil(result.samples.train / int(request.options["batch_size"]))
    if not per_epoch or result.steps_per_epoch != per_epoch or result.steps_done != per_epoch * request.epochs:
        yield "incomplete-result", f"{result.steps_done} steps, expected {per_epoch * request.epochs}"
    if result.steps_skipped > MAX_SKIPPED_SHARE * result.steps_done:
        yield "incomplete-result", f"{result.steps_skipped} of {result.steps_done} steps changed nothing"
    steps = [step.step for step in result.first_steps]
    if steps != list(range(1, min(COMPARED_STEPS, result.steps_done) + 1)):
        yield "incomplete-result", "the numbers of the first steps are not all there"
    if not len(result.devices) == len(result.rank_weights_sha256) == result.world_size:
        yield "incomplete-result", "devices, ranks and weights do not add up"
    if result.sessions.train + result.sessions.validation > result.sessions.used or not result.sessions.train:
        yield "incomplete-result", "the sessions do not add up"
    really = {"threads": result.threads, "strategy": result.strategy, "dtype": result.dtype}
    asked = {"threads": request.options["threads"], "strategy": request.options["strategy"], "dtype": request.dtype}
    for name, value in really.items():
        if value != asked[name]:
            yield "wrong-workload", f"{name} really was {value}, asked for {asked[name]}"


def _model_objections(evidence: Evidence, result: Result) -> Iterator[tuple[str, str]]:
    if evidence.model_sha256 is None:
        yield "model-damaged", f"the model file {result.model.file} is not there"
    if evidence.model_sha256 != result.model.sha256:
        yield "model-damaged", f"the model file {result.model.file} does not have the hash the result gives"
    check = evidence.model_check
    if check is None:
        yield "model-does-not-load", "vpoc check-model did not succeed"
        return
    told = (result.model.sha256, result.model.bytes, result.model.parameters)
    if told != (check.sha256, check.bytes, check.parameters):
        yield "model-damaged", "hash, size or parameters of the model file are not those the result gives"
    if check.weights_sha256 not in result.rank_weights_sha256:
        yield "wrong-result", "the weights in the model file are not those the ranks ended with"


def _number_objections(evidence: Evidence, result: Result) -> Iterator[tuple[str, str]]:
    if len(set(result.rank_weights_sha256)) != 1:
        yield "wrong-result", "the ranks ended with different weights"
    if evidence.reference is None:
        yield "no-reference", "the CPU reference could not be computed"
        return
    if (evidence.reference.data_sha256, evidence.reference.workload_hash) != (result.data.sha256, result.workload_hash):
        yield "no-reference", "the CPU reference is of other data or another workload"
    if evidence.reference.samples != result.samples:
        yield "incomplete-result", f"trained on {result.samples.train} samples of {evidence.reference.samples.train}"
    if len(evidence.reference.steps) != len(result.first_steps):
        yield "no-reference", "the CPU reference has another number of steps"
    tolerance = TOLERANCE[result.dtype]
    for got, expected in zip(result.first_steps, evidence.reference.steps, strict=False):
        if not _close(got, expected, tolerance):
            yield "wrong-result", f"{_in_words(got)}, the CPU reference has {_in_words(expected)} ({tolerance:g})"


def _close(got: StepNumbers, expected: StepNumbers, tolerance: float) -> bool:
    pairs = [(got.loss, expected.loss)]
    if got.gradient_norm is not None:
        pairs.append((got.gradient_norm, math.inf if expected.gradient_norm is None else expected.gradient_norm))
    return got.step == expected.step and all(math.isclose(a, b, rel_tol=tolerance, abs_tol=1e-6) for a, b in pairs)


def _in_words(step: StepNumbers) -> str:
    norm = "none" if step.gradient_norm is None else f"{step.gradient_norm:.6g}"
    return f"step {step.step}: loss {step.loss:.6g}, gradient norm {norm}"
