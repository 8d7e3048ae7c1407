"""Objections to a run that ended by itself, from its result and from what was seen of the run."""

import math
from collections.abc import Iterator

from harness.base.text import safe_text
from harness.evidence.choosing import kept_epoch, may_end_early
from harness.evidence.files.app_files import Result, Training
from harness.evidence.outcome.diagnoses import BREACH, Diagnosis
from harness.evidence.outcome.evidence import Evidence
from harness.evidence.outcome.request import Request
from harness.evidence.outcome.tolerances import COMPARED_STEPS

# Largest share of skipped steps. A loss scaler skips a few updates while it finds its scale; with more than that, the
# training did not really happen.
MAX_SKIPPED_SHARE = 0.1


def result_objections(request: Request, evidence: Evidence, result: Result) -> Iterator[tuple[Diagnosis, str]]:
    """Yield what speaks against a result and the rest of its run, except its memory, the gravest first."""
    yield from _device_objections(request, evidence, result)
    if result.data.sha256 != request.data_sha256:
        yield "wrong-data", f"trained on data {result.data.sha256[:12]}, asked for {request.data_sha256[:12]}"
    if result.workload_hash != request.workload_hash:
        yield "wrong-workload", "the workload hash in the result is not the one asked for"
    if result.injected_fault and request.injected_fault is None:
        yield "wrong-workload", f"the result names a fault that nobody injected: {safe_text(result.injected_fault)}"
    for name, asked in request.options.items():
        got = result.options.get(name)
        if (list(got) if isinstance(got, tuple) else got) != asked:
            yield "wrong-workload", f"{name} was {got!r}, asked for {asked!r}"
    yield from _completeness_objections(request, result)
    if not all(map(math.isfinite, _numbers(result))):
        yield "not-finite", "a loss, gradient norm or speed is not a finite number"
    if evidence.breaches:
        yield "wrong-result", f"{BREACH}{'; '.join(evidence.breaches)}"
    yield from _model_objections(evidence, result)
    if any(len(set(told.rank_weights_sha256)) != 1 for told in result.trainings):
        yield "wrong-result", "the ranks ended with different weights"


def _numbers(result: Result) -> Iterator[float]:
    """Yield every number of a training that has to be finite."""
    for told in result.trainings:
        kept = (*told.first_steps, *told.states)
        # Only a loss scaler skips a step, and then reports no norm for it.
        skipped = told.steps_skipped if result.dtype == "float16" else 0
        if len({step.step for step in kept if step.gradient_norm is None}) > skipped:
            yield math.nan
        yield from (n for step in kept for n in (step.loss, step.gradient_norm) if n is not None)
        yield from (
            n for epoch in told.epoch_losses for n in (epoch.train, epoch.validation, epoch.inner) if n is not None
        )
        yield from (told.throughput.samples_per_second, told.throughput.train_seconds, *(told.time or {}).values())


def _device_objections(request: Request, evidence: Evidence, result: Result) -> Iterator[tuple[Diagnosis, str]]:
    used = {result.device, *(device.device.split(":")[0] for device in result.devices)}
    if used != {request.device}:
        yield (
            "wrong-device",
            f"asked for {request.device}, the result says {' and '.join(map(safe_text, sorted(used)))}",
        )
    if request.device != "cpu" and (evidence.gpus_seen or 0) < request.gpus:
        seen = "nothing was seen" if evidence.gpus_seen is None else f"{evidence.gpus_seen} were seen"
        yield "wrong-device", f"asked for {request.gpus} GPU; from outside {seen} in use"
    if request.torch and result.torch.version.split("+")[0] != request.torch:
        yield "wrong-stack", f"the stack declares torch {request.torch}, torch {safe_text(result.torch.version)} ran"
    # torch.version.hip is like 6.3.42131-fa1d09cbd: its first two numbers are ROCm's, up to ROCm 7.14.
    hip = request.hip or request.rocm
    if hip and (result.torch.hip or "").split(".")[:2] != hip.split(".")[:2]:
        yield "wrong-stack", f"the stack declares ROCm {request.rocm}, HIP {safe_text(result.torch.hip or 'none')} ran"
    if request.jax != result.jax_version:
        declares, ran = (f"jax {safe_text(one)}" if one else "torch" for one in (request.jax, result.jax_version))
        yield "wrong-stack", f"the stack declares that {declares} makes the steps, {ran} made them"


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
            yield "wrong-workload", f"{name} really was {safe_text(str(value))}, asked for {asked_for[name]}"


def _training_objections(request: Request, told: Training) -> Iterator[tuple[Diagnosis, str]]:
    """Yield what is missing in one model's training, or contradicts the request."""
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
        yield "model-damaged", f"the model file {safe_text(result.model.file)} is not there"
    models = (result.model, *(training.model for training in result.earlier))
    for model, found in zip(models, (evidence.model_sha256, *evidence.earlier_sha256), strict=False):
        if found != model.sha256:
            yield "model-damaged", f"the model file {safe_text(model.file)} does not have the hash the result gives"
    if len(evidence.earlier_sha256) != len(result.earlier):
        yield "model-damaged", "not all model files were checked"


def memory_objections(request: Request, evidence: Evidence, result: Result) -> Iterator[tuple[Diagnosis, str]]:
    """Yield what speaks against the memory that the run used, of the host or of a GPU."""
    if evidence.memory.growth:
        yield "memory-grows", evidence.memory.growth
    if request.max_device_memory is None or request.device == "cpu":
        return
    peak = result.memory.peak_on_device if result.memory else None
    if peak is None:
        yield "incomplete-result", "it does not say how much GPU memory it used, which the workload limits"
        return
    if request.ranks > 1:
        # The result has the device of the first rank only; the other ranks report theirs in their progress.
        peak = max(peak, evidence.memory.most_reserved_bytes)
    if peak > request.max_device_memory:
        limit = request.max_device_memory / 1e9
        yield "memory-limit", f"{peak / 1e9:.2f} GB in use on a GPU, {limit:.2f} GB are allowed"
