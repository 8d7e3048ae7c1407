"""Request + evidence -> outcome. Pure, and the only place where an outcome is decided. Logs have no say here."""

import math
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from harness.base.contract import CONTRACT, OLD_CONTRACT
from harness.environments.executors.job import Exit
from harness.evidence.app_files import (
    KeptState,
    Result,
    StepNumbers,
    Training,
    Verification,
    VerifiedTraining,
)
from harness.evidence.choosing import kept_epoch, may_end_early
from harness.evidence.kept_states import wrong_states
from harness.evidence.memory import MemoryUse
from harness.evidence.rank_account import AskedWork
from harness.evidence.run_files import OutcomeName
from harness.evidence.work_folder import WorkFolder
from harness.matrix.strategies import RANK_PER_DEVICE, ModelKind

# Relative difference allowed between the first step's numbers and the float32 reference on the CPU.
TOLERANCE = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 5e-2}
# How many times as much a gradient's norm may differ in a step made again: late in a training its parts cancel, and
# what rounding leaves is large beside it (measured, in docs/evidence/numbers.md).
NORM_FACTOR = 5
# By how much it grows with each step. Adam's first updates follow little but the signs of gradients, so that rounding
# turns into whole steps: the attention models amplify that, the mlp does not (measured, in docs/evidence/numbers.md).
GROWTH: Mapping[ModelKind, float] = {"mlp": 1.0, "attention": 3.0, "attention-small": 3.0}
# Below which differences are none.
ROUNDING = 1e-6
COMPARED_STEPS = 16
MOST_NAMED = 5
# A loss scaler skips a few updates while it finds its scale; more than that is a training that did not happen.
MAX_SKIPPED_SHARE = 0.1
OfEnding = Literal[
    "app-error",
    "crash",
    "disk-limit",
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
    "missing-arch",
    "model-damaged",
    "model-does-not-load",
    "no-result",
    "not-begun",
    "wrong-data",
    "wrong-device",
    "wrong-stack",
    "verification-failed",
    "work-folder",
    "wrong-workload",
]
"""Diagnoses that were decided from the result or from measurements: the outcome's detail is the cause."""
Diagnosis = OfEnding | OfResult

# What the app itself saw: numbers that are not finite; ranks that trained different weights.
APP_EXITS: Mapping[int, Diagnosis] = {4: "not-finite", 5: "wrong-result"}
UNVERIFIED = "old contract, not verified: nothing shows that the result is this run's, and it qualifies for nothing"
NOT_INDEPENDENTLY = "not verified independently, so that it qualifies for nothing"
# A shell or an init process reports signal n as exit code 128 + n.
SHELL_SIGNALS = 128

StoppedBy = Literal[
    "user",
    "time-limit",
    "disk-limit",
    "watchdog",
    "breach",
    "work-folder",
    "host",
    "unhealthy",
    "start",
    "engine",
    "harness",
]
STOPPED: Mapping[StoppedBy, tuple[OutcomeName, Diagnosis | None]] = {
    "user": ("interrupted", None),
    "engine": ("interrupted", None),
    "harness": ("interrupted", None),
    "time-limit": ("failed", "time-limit"),
    "disk-limit": ("failed", "disk-limit"),
    "watchdog": ("hung", "no-progress"),
    "breach": ("failed", "wrong-result"),
    "work-folder": ("failed", "work-folder"),
    "host": ("host-fault", "unkillable"),
    "unhealthy": ("host-fault", "not-begun"),
    "start": ("failed", "not-started"),
}


@dataclass(frozen=True)
class Request:
    """The work that a run was asked to do.

    `gpus`: how many must be seen in use from outside. `devices`: how many the strategy is to use, of whatever kind.
    `hip`: the beginning of `torch.version.hip`, where it is not `rocm`'s. `injected_fault`: the fault that is injected
    into it. `contract` is its app's, `nonce` the intent's; `resumed`: the steps that the checkpoints hold from which
    its models resume, in order. `data_bytes`: the size of the data.
    `not_verified`: why this host has nothing to verify it in; None where it has.
    """

    workload_hash: str
    data_sha256: str
    device: str
    gpus: int
    torch: str | None
    rocm: str | None
    options: Mapping[str, Any]
    hip: str | None = None
    phases: tuple[str, ...] = ("train",)
    devices: int = 1
    max_device_memory: int | None = None
    injected_fault: str | None = None
    contract: int = OLD_CONTRACT
    nonce: str | None = None
    resumed: tuple[int, ...] = ()
    data_bytes: int = 0
    not_verified: str | None = None

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
    def expected(self) -> AskedWork:
        """Return what progress has to account for."""
        return AskedWork(
            contract=self.contract,
            nonce=self.nonce,
            ranks=self.ranks,
            epochs=self.epochs,
            processes=len(self.phases),
            resumed=self.resumed or (0,) * len(self.models),
            kept_steps=COMPARED_STEPS,
            loop=str(self.options.get("loop", "plain")),
            may_end_early=bool(self.options.get("patience")),
            data_bytes=self.data_bytes,
        )

    @property
    def dtype(self) -> str:
        """The type the forward pass was asked to compute in."""
        if not self.options["use_mixed_precision"]:
            return "float32"
        return str(self.options.get("mixed_precision_dtype", "float16" if self.device == "cuda" else "bfloat16"))


# Begins the fault of an attempt that follows one into which it was injected.
AFTER_FAULT = "after "


@dataclass(frozen=True)
class PickedState:
    """The state of a training that was picked to be replayed; `sha256` of its file, None where that is not there."""

    state: KeptState
    sha256: str | None


@dataclass(frozen=True)
class Evidence:
    """Everything seen of a run. None means it is not there.

    `leftovers`: what in the work folder is no file that could be read, in words.
    `picked`: of each model, the state from which a step was computed again; `verification`: what this host computed, or
    `verification_problem` why nothing. `not_verified`: what of this host ended that before it could find anything.
    `breaches`: where progress and result contradict their contract or each other, as `Accounting` finds them, and
    `steps_accounted`: the steps of each model that progress accounts for.
    `no_kernels`: the environment's probe failed on a GPU where another's passed since the boot, in words.
    `host_problems`: what was found to be wrong with the host or a GPU after a run that did not complete.
    """

    exits: Mapping[str, Exit]
    stopped_by: StoppedBy | None = None
    stop_detail: str = ""
    result: Result | None = None
    result_problem: str = f"there is no {WorkFolder.RESULT}"
    model_sha256: str | None = None
    earlier_sha256: tuple[str | None, ...] = ()
    picked: tuple[PickedState | None, ...] = ()
    verification: Verification | None = None
    verification_problem: str = ""
    not_verified: str | None = None
    gpus_seen: int | None = None
    memory: MemoryUse = field(default_factory=MemoryUse)
    leftovers: str = ""
    breaches: tuple[str, ...] = ()
    steps_accounted: tuple[int, ...] | None = None
    no_kernels: str | None = None
    host_problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """The outcome, its diagnosis (None for `completed`) and one line of detail."""

    name: OutcomeName
    diagnosis: Diagnosis | None
    detail: str


def decide(request: Request, evidence: Evidence) -> Outcome:
    """Return the outcome: `completed` only when nothing speaks against it, and never with an injected fault it met."""
    outcome = _decide(request, evidence)
    if evidence.host_problems and outcome.name != "completed":
        found = "; ".join(evidence.host_problems)
        diagnosis = outcome.diagnosis if outcome.name == "host-fault" else "unhealthy-gpu"
        outcome = Outcome("host-fault", diagnosis, f"{found}; the run itself: {_in_short(outcome)}")
    fault = request.injected_fault or (evidence.result.injected_fault if evidence.result else None)
    if fault is None:
        return outcome
    if outcome.name == "completed" and never_meets(request.resumed, fault):
        kind = fault.removeprefix(AFTER_FAULT)
        detail = f"{outcome.detail}; it comes after the injected fault {kind}, so that it counts for nothing"
        return replace(outcome, detail=detail)
    if outcome.name == "completed":
        return Outcome("failed", "injected-fault", f"the injected fault {fault} was not noticed: {outcome.detail}")
    return replace(outcome, detail=f"{outcome.detail}; fault injected on purpose: {fault}")


def undecided(stopped_by: StoppedBy | None, detail: str) -> Outcome:
    """Return the outcome of a run of which nothing else can be made sense of; it needs nothing that the app wrote."""
    return Outcome(*STOPPED[stopped_by or "work-folder"], detail)


def never_meets(resumed: tuple[int, ...], fault: str) -> bool:
    """Return whether an attempt never meets a fault, so that there is nothing to be noticed.

    It was injected into an attempt before (AFTER_FAULT), or the training was resumed behind the step of `KIND@STEP`.
    """
    step = fault.partition("@")[2].partition("/")[0]
    return fault.startswith(AFTER_FAULT) or (any(resumed) and step.isdigit() and int(step) <= min(resumed))


def stands_so_far(request: Request, evidence: Evidence) -> bool:
    """Return whether nothing speaks against a run but, perhaps, what is found when it is verified."""
    return _decide(replace(request, not_verified="not yet"), evidence).name == "completed"


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
            ended = f"the {phase} process ended with {exit_}"
            if evidence.no_kernels and diagnosis in ("crash", "app-error"):
                return Outcome("failed", "missing-arch", f"{evidence.no_kernels}; {ended}")
            return Outcome("failed", diagnosis, ended)
    if tuple(evidence.exits) != request.phases:
        return Outcome("failed", "no-result", f"of {', '.join(request.phases)} only {len(evidence.exits)} were run")
    if evidence.leftovers:
        return Outcome("failed", "work-folder", evidence.leftovers)
    if evidence.result is None:
        return Outcome("failed", "no-result", f"exit 0, but {evidence.result_problem}")
    for diagnosis, detail in _objections(request, evidence, evidence.result):
        return Outcome("failed", diagnosis, detail)
    done = [f"{told.epochs_done} epochs, {told.steps_done} steps" for told in evidence.result.trainings]
    return Outcome("completed", None, f"{', then '.join(done)}{_how_verified(request, evidence)}")


def _how_verified(request: Request, evidence: Evidence) -> str:
    if request.contract != CONTRACT:
        return f"; {UNVERIFIED}"
    why_not = request.not_verified or evidence.not_verified
    if why_not:
        return f"; {NOT_INDEPENDENTLY}: {why_not}"
    return f", verified{verified_from(request.resumed)}"


def verified_from(resumed: Sequence[int]) -> str:
    """Return in words from which step on a run can be verified: those of the runs before it cannot be made again."""
    return f" from step {max(resumed)} on" if any(resumed) else ""


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
    if evidence.breaches:
        yield "wrong-result", "; ".join(evidence.breaches)
    yield from _model_objections(evidence, result)
    if any(len(set(told.rank_weights_sha256)) != 1 for told in result.trainings):
        yield "wrong-result", "the ranks ended with different weights"
    if request.not_verified is None:
        if evidence.not_verified is None:
            yield from _verified_objections(request, evidence, result)
        yield from _state_objections(request, evidence, result)
    yield from _memory_objections(request, evidence, result)


def _numbers(result: Result) -> Iterator[float]:
    """Every number of a training that has to be finite."""
    for told in result.trainings:
        kept = (*told.first_steps, *told.states)
        # Only a loss scaler skips a step, and tells no norm of it.
        skipped = told.steps_skipped if result.dtype == "float16" else 0
        if len({step.step for step in kept if step.gradient_norm is None}) > skipped:
            yield math.nan
        yield from (n for step in kept for n in (step.loss, step.gradient_norm) if n is not None)
        yield from (
            n for epoch in told.epoch_losses for n in (epoch.train, epoch.validation, epoch.inner) if n is not None
        )
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
    # torch.version.hip is like 6.3.42131-fa1d09cbd: its first two numbers are ROCm's, up to ROCm 7.14.
    hip = request.hip or request.rocm
    if hip and (result.torch.hip or "").split(".")[:2] != hip.split(".")[:2]:
        yield "wrong-stack", f"the stack declares ROCm {request.rocm}, HIP {result.torch.hip} ran"


def _completeness_objections(request: Request, result: Result) -> Iterator[tuple[Diagnosis, str]]:
    kinds = [told.model_kind for told in result.trainings]
    if kinds != request.models:
        yield "incomplete-result", f"trained {', '.join(kinds)}, asked for {', '.join(request.models)}"
    for told in result.trainings:
        if told.steps_skipped and request.dtype != "float16":
            yield "incomplete-result", f"{told.steps_skipped} steps changed nothing, which only float16 may skip"
        for diagnosis, detail in _training_objections(request, told):
            yield diagnosis, f"{told.model_kind}: {detail}" if result.earlier else detail
    if (result.world_size, len(result.devices)) != (request.ranks, request.devices):
        asked = f"{request.ranks} on {request.devices}"
        yield "incomplete-result", f"{result.world_size} ranks on {len(result.devices)} devices, asked for {asked}"
    if {device.rank for device in result.devices} != set(range(request.ranks)):
        yield "incomplete-result", "devices and ranks do not add up"
    if (
        result.sessions.train + result.sessions.inner + result.sessions.validation > result.sessions.used
        or not result.sessions.train
    ):
        yield "incomplete-result", "the sessions do not add up"
    really = {"threads": result.threads, "strategy": result.strategy, "dtype": result.dtype}
    asked_for = {"threads": request.options["threads"], "strategy": request.options["strategy"], "dtype": request.dtype}
    for name, value in really.items():
        if value != asked_for[name]:
            yield "wrong-workload", f"{name} really was {value}, asked for {asked_for[name]}"


def _training_objections(request: Request, told: Training) -> Iterator[tuple[Diagnosis, str]]:
    """Yield what one model's training lacks."""
    epochs = [epoch.epoch for epoch in told.epoch_losses]
    counted = told.epochs_done == len(epochs) and epochs == list(range(1, len(epochs) + 1))
    all_told = counted and told.epochs_requested == request.epochs
    early = told.stopped_early and may_end_early(told, request.options)
    if not all_told or (told.epochs_done != request.epochs and not early):
        yield "incomplete-result", f"{told.epochs_done} of {request.epochs} epochs, with the losses of {epochs}"
    if not told.samples.validation or any(epoch.validation is None for epoch in told.epoch_losses):
        yield "incomplete-result", "an epoch was not validated"
    batch_size = int(request.options["batch_size"])
    if told.batch_size not in (None, batch_size):
        yield "wrong-workload", f"batch_size really was {told.batch_size}, asked for {batch_size}"
    per_epoch = math.ceil(told.samples.train / batch_size)
    if not per_epoch or told.steps_per_epoch != per_epoch or told.steps_done != per_epoch * told.epochs_done:
        yield "incomplete-result", f"{told.steps_done} steps, expected {per_epoch * told.epochs_done}"
    if told.kept_epoch is not None and told.kept_epoch != kept_epoch(told, request.options):
        kept = kept_epoch(told, request.options)
        yield "wrong-result", f"epoch {told.kept_epoch} was kept, by its losses it is epoch {kept}"
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


def _state_objections(request: Request, evidence: Evidence, result: Result) -> Iterator[tuple[Diagnosis, str]]:
    """Yield what speaks against the states that were kept of each model."""
    resumed = request.resumed or (0,) * len(result.trainings)
    for told, before in zip(result.trainings, resumed, strict=False):
        if wrong := wrong_states(told, request.nonce, before):
            yield (
                "wrong-result",
                f"{told.model_kind}: its states are not of the steps drawn for the run: {_some(wrong)}",
            )
    for one in evidence.picked:
        if one and one.sha256 != one.state.sha256:
            yield "wrong-result", f"the state of step {one.state.step} does not have the hash the result gives"


def _verified_objections(request: Request, evidence: Evidence, result: Result) -> Iterator[tuple[Diagnosis, str]]:
    """Yield where this host computed something else than what the result says, or nothing."""
    found = evidence.verification
    if found is None:
        yield "verification-failed", f"it could not be verified: {evidence.verification_problem}"
        return
    if (found.data_sha256, found.workload_hash) != (request.data_sha256, request.workload_hash):
        yield "verification-failed", "it was verified with other data or another workload"
    if [one.model_kind for one in found.models] != [told.model_kind for told in result.trainings]:
        yield "verification-failed", "other models were verified"
        return
    for told, right, picked in zip(result.trainings, found.models, evidence.picked, strict=True):
        for objections in (
            _loaded_objections(told, right),
            _step_objections(told, right, result.dtype),
            _validation_objections(told, right, result.dtype),
            _replay_objections(picked, right, result.dtype),
        ):
            for diagnosis, detail in objections:
                yield diagnosis, f"{told.model_kind}: {detail}" if result.earlier else detail


def _loaded_objections(told: Training, right: VerifiedTraining) -> Iterator[tuple[Diagnosis, str]]:
    """Yield what speaks against a model file."""
    if right.model is None:
        yield "model-does-not-load", right.model_problem or "the model does not load"
        return
    claimed = (told.model.sha256, told.model.bytes, told.model.parameters)
    if claimed != (right.model.sha256, right.model.bytes, right.model.parameters):
        yield "model-damaged", "hash, size or parameters of the model file are not those the result gives"
    if right.model.weights_sha256 != (told.kept_weights_sha256 or told.rank_weights_sha256[0]):
        yield "wrong-result", "the weights in the model file are not those of the epoch that was kept"
    if told.kept_epoch in (None, told.epochs_done) and right.model.weights_sha256 not in told.rank_weights_sha256:
        yield "wrong-result", "the weights in the model file are not those the ranks ended with"


def _step_objections(told: Training, right: VerifiedTraining, dtype: str) -> Iterator[tuple[Diagnosis, str]]:
    """Yield what speaks against the first steps of one model."""
    if told.samples != right.samples:
        yield "incomplete-result", f"trained on {told.samples.train} samples of {right.samples.train}"
    if len(right.steps) != len(told.first_steps):
        yield "verification-failed", "another number of first steps was verified"
    for got, expected in zip(told.first_steps, right.steps, strict=False):
        tolerance = tolerance_of(told.model_kind, dtype, got.step)
        if not _close(got, expected, tolerance):
            yield "wrong-result", f"{_in_words(got)}, the CPU reference has {_in_words(expected)} ({tolerance:g})"


def _validation_objections(told: Training, right: VerifiedTraining, dtype: str) -> Iterator[tuple[Diagnosis, str]]:
    """Yield what speaks against the validation loss of the kept epoch, which is that of the saved model."""
    kept = (told.kept_epoch or told.epochs_done) - 1
    claimed, found, tolerance = told.epoch_losses[kept].validation, right.validation_loss, TOLERANCE[dtype]
    if claimed is None or found is None or not math.isclose(claimed, found, rel_tol=tolerance, abs_tol=ROUNDING):
        yield "wrong-result", f"the saved model has validation loss {_number(found)}, not {_number(claimed)}"


def _replay_objections(
    picked: PickedState | None, right: VerifiedTraining, dtype: str
) -> Iterator[tuple[Diagnosis, str]]:
    """Yield what speaks against the step that was computed again."""
    if picked is None:
        # All its steps were made by the run that it resumes.
        return
    got, replay = picked.state, right.replay
    if replay is None or (replay.step, replay.sha256) != (got.step, picked.sha256):
        yield "wrong-result", f"step {got.step} cannot be made again: {right.replay_problem or 'another one was'}"
        return
    tolerances = TOLERANCE[dtype], NORM_FACTOR * TOLERANCE[dtype]
    same_loss = replay.loss is not None and math.isclose(got.loss, replay.loss, rel_tol=tolerances[0], abs_tol=ROUNDING)
    if not (same_loss and _close_norms(got.gradient_norm, replay.gradient_norm, tolerances[1])):
        again = f"loss {_number(replay.loss)}, gradient norm {_number(replay.gradient_norm)}"
        allowed = " and ".join(f"{tolerance:g}" for tolerance in tolerances)
        yield "wrong-result", f"{_in_words(got)}; made again from its state it has {again} ({allowed})"


def _some(steps: tuple[int, ...]) -> str:
    more = f" and {len(steps) - MOST_NAMED} more" if len(steps) > MOST_NAMED else ""
    return f"{', '.join(map(str, steps[:MOST_NAMED]))}{more}"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"


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
    same = got.step == expected.step and math.isclose(got.loss, expected.loss, rel_tol=tolerance, abs_tol=ROUNDING)
    return same and _close_norms(got.gradient_norm, expected.gradient_norm, tolerance)


def _close_norms(got: float | None, expected: float | None, tolerance: float) -> bool:
    """Return whether gradient norms agree; a step that a loss scaler skipped has none to compare."""
    expected = math.inf if expected is None else expected
    return got is None or math.isclose(got, expected, rel_tol=tolerance, abs_tol=ROUNDING)


def _in_words(step: StepNumbers) -> str:
    return f"step {step.step}: loss {step.loss:.6g}, gradient norm {_number(step.gradient_norm)}"
