"""Request + evidence -> outcome. Pure, and the only place where an outcome is decided. Logs have no say here."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from harness.contracts import OutcomeName, Reference, Result, StepNumbers
from harness.executors import Exit

# Relative difference allowed between a step's numbers and the float32 reference on the CPU.
TOLERANCE = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 5e-2}
COMPARED_STEPS = 16
# A shell or an init process reports signal n as exit code 128 + n.
SHELL_SIGNALS = 128

StoppedBy = Literal["user", "time-limit", "watchdog", "host"]
STOPPED: Mapping[StoppedBy, tuple[OutcomeName, str | None]] = {
    "user": ("interrupted", None),
    "time-limit": ("failed", "time-limit"),
    "watchdog": ("hung", "no-progress"),
    "host": ("host-fault", "unkillable"),
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

    @property
    def epochs(self) -> int:
        """Epochs asked for."""
        return int(self.options["epochs"])


@dataclass(frozen=True)
class Evidence:
    """What was seen of a run. None means it is not there."""

    exits: Mapping[str, Exit]
    stopped_by: StoppedBy | None = None
    stop_detail: str = ""
    result: Result | None = None
    result_problem: str = "there is no result.json"
    model_sha256: str | None = None
    model_check: Exit | None = None
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
        if not exit_.ok:
            crash = exit_.code < 0 or exit_.code > SHELL_SIGNALS
            return Outcome("failed", "crash" if crash else "app-error", f"the {phase} process ended with {exit_}")
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
    numbers = [n for step in result.first_steps for n in (step.loss, step.gradient_norm)]
    numbers += [n for epoch in result.epoch_losses for n in (epoch.train, epoch.validation) if n is not None]
    if not all(map(math.isfinite, numbers)):
        yield "not-finite", "a loss or gradient norm is not a finite number"
    if evidence.model_sha256 is None:
        yield "model-damaged", f"the model file {result.model.file} is not there"
    if evidence.model_sha256 != result.model.sha256:
        yield "model-damaged", f"the model file {result.model.file} does not have the hash the result gives"
    if evidence.model_check is None or not evidence.model_check.ok:
        yield "model-does-not-load", f"vpoc check-model ended with {evidence.model_check}"
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
    if not request.epochs == result.epochs_requested == result.epochs_done == len(result.epoch_losses):
        yield "incomplete-result", f"{result.epochs_done} of {request.epochs} epochs"
    per_epoch = math.ceil(result.samples.train / int(request.options["batch_size"]))
    if not per_epoch or result.steps_per_epoch != per_epoch or result.steps_done != per_epoch * request.epochs:
        yield "incomplete-result", f"{result.steps_done} steps, expected {per_epoch * request.epochs}"
    steps = [step.step for step in result.first_steps]
    if steps != list(range(1, min(COMPARED_STEPS, result.steps_done) + 1)):
        yield "incomplete-result", "the numbers of the first steps are not all there"
    if not len(result.devices) == len(result.rank_weights_sha256) == result.world_size:
        yield "incomplete-result", "devices, ranks and weights do not add up"


def _number_objections(evidence: Evidence, result: Result) -> Iterator[tuple[str, str]]:
    if len(set(result.rank_weights_sha256)) != 1:
        yield "wrong-result", "the ranks ended with different weights"
    if evidence.reference is None:
        yield "no-reference", "the CPU reference could not be computed"
        return
    if (evidence.reference.data_sha256, evidence.reference.workload_hash) != (result.data.sha256, result.workload_hash):
        yield "no-reference", "the CPU reference is of other data or another workload"
    if len(evidence.reference.steps) < len(result.first_steps):
        yield "no-reference", "the CPU reference is too short"
    tolerance = TOLERANCE[result.dtype]
    for got, expected in zip(result.first_steps, evidence.reference.steps, strict=False):
        if not _close(got, expected, tolerance):
            numbers = f"loss {got.loss:.6g} and gradient norm {got.gradient_norm:.6g}"
            wanted = f"{expected.loss:.6g} and {expected.gradient_norm:.6g} within {tolerance:g} for {result.dtype}"
            yield "wrong-result", f"step {got.step}: {numbers}, the CPU reference has {wanted}"


def _close(got: StepNumbers, expected: StepNumbers, tolerance: float) -> bool:
    pairs = ((got.loss, expected.loss), (got.gradient_norm, expected.gradient_norm))
    return got.step == expected.step and all(math.isclose(a, b, rel_tol=tolerance, abs_tol=1e-6) for a, b in pairs)
