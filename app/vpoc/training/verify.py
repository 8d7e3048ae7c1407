"""The verification of a training that another process made: parts of it are computed again, in float32 on the CPU.

Of its files only what can be recomputed is believed: the first steps, the last validation loss from the saved model,
and one step from the weights that were kept before it.
"""

import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from vpoc.arrays import Ints
from vpoc.errors import UserError
from vpoc.features.table import NAMES
from vpoc.models.by_name import Network, network, parameter_count
from vpoc.progress import Progress, finite
from vpoc.training.fit import VALIDATION_BATCH, Fit, step_facts
from vpoc.training.inputs.samples import Samples
from vpoc.training.loop import Step
from vpoc.training.model_file.artefact import load_model, load_state, require_finite, weights_sha256
from vpoc.training.preparing.prepare import prepare
from vpoc.training.result import constant_rate_loss, sample_counts
from vpoc.training.run import ALONE
from vpoc.training.train_options import TrainOptions

# Room for what a file has besides its weights: some kilobytes, and some hundred bytes for each tensor.
OVERHEAD_BYTES = 1 << 20


@dataclass(frozen=True)
class KeptState:
    """A file with the weights before optimizer step `step`, counted from 1."""

    step: int
    path: Path


def verify(
    options: TrainOptions,
    models: Mapping[str, Path],
    states: Mapping[str, KeptState],
    steps: int,
    progress: Progress,
) -> dict[str, Any]:
    """Compute again what `train` with these options claims, with `steps` first steps.

    `models`, `states`: by kind, the file of the trained model and a kept state of its training. The answer reports a
    file that cannot be used.
    """
    found = []
    for fit in _fits_on_cpu(options, progress):
        facts = _first_steps(fit, steps, progress)
        facts |= _saved_model(fit, models.get(fit.kind), progress)
        facts |= _replayed(fit, states.get(fit.kind), progress)
        found.append((fit, facts))
    progress.phase("teardown")
    return _described(found)


def _fits_on_cpu(options: TrainOptions, progress: Progress) -> Iterator[Fit]:
    """Yield each requested model before its first step, for training in float32 on the CPU in this process alone."""
    options = replace(
        options,
        device="cpu",
        framework="torch",
        vpoc_path="cpu",
        use_mixed_precision=False,
        mixed_precision_dtype=None,
        sdpa="auto",
        injected_fault=None,
        strategy="single",
        backend=None,
        devices=None,
        loop="plain",
        micro_batch_size=None,
    )
    run = prepare(options, ALONE, progress)
    with tempfile.TemporaryDirectory(dir=options.run_dir) as nowhere:
        for kind in options.model:
            # The states of these steps are not needed.
            yield Fit(replace(options, run_dir=None), run, kind, Path(nowhere), progress, lambda _line: None)


def _first_steps(fit: Fit, steps: int, progress: Progress) -> dict[str, Any]:
    """Make the first `steps` steps of a model; return their facts, and the loss of a constant answer."""
    progress.phase("first-step", steps)
    made: list[Step] = []
    for step in islice(_steps(fit), steps):
        made.append(step)
        progress.step(step.number, step.seconds, step.loss, step.gradient_norm)
    return {
        "model_kind": fit.kind,
        "samples": sample_counts(fit),
        "steps": [step_facts(step) for step in made],
        "constant_rate_loss": finite(constant_rate_loss(fit.train, fit.validation)),
    }


def _described(found: list[tuple[Fit, dict[str, Any]]]) -> dict[str, Any]:
    """Return the facts on all models: `found` has each model's, the main one last."""
    *earlier, (fit, main) = found
    return {
        "schema": 2,
        "workload_hash": fit.options.workload_hash,
        "data_sha256": fit.run.features.data_sha256,
        "seed": fit.options.seed,
        "dtype": "float32",
        "torch": torch.__version__,
        **main,
        "earlier": [facts for _, facts in earlier],
    }


def _steps(fit: Fit) -> Iterator[Step]:
    for epoch in range(1, fit.options.epochs + 1):
        yield from fit.trainer.epoch(fit.feed(), epoch, 0, tuple)


def _saved_model(fit: Fit, path: Path | None, progress: Progress) -> dict[str, Any]:
    """Return the facts of a model's file, and its loss on the validation samples."""
    if path is None:
        return {"model": None, "model_problem": "there is no model file", "validation_loss": None}
    try:
        _require_size(path, fit)
        loaded = load_model(path, fit.kind, fit.options.hidden_layers)
        require_finite(loaded)
        made_for = (loaded.target, loaded.features, loaded.feature_options)
        if made_for != (fit.options.target, list(NAMES), fit.options.of_features):
            raise UserError(f"{path}: a model of another target or other features")
        # By its dates `vpoc predict` tells which sessions the model has not seen.
        if (loaded.bar_seconds, loaded.market) != (fit.run.features.bar_seconds, fit.run.features.market):
            raise UserError(f"{path}: says that it was trained on other bars, another market or other dates")
        if not loaded.scaling.is_close(fit.scaling):
            raise UserError(f"{path}: its scaling is not that of its training samples")
    except UserError as error:
        return {"model": None, "model_problem": str(error), "validation_loss": None}
    facts = {
        "sha256": loaded.sha256,
        "bytes": loaded.bytes,
        "parameters": parameter_count(loaded.model),
        "weights_sha256": weights_sha256(loaded.model.state_dict()),
    }
    samples = fit.validation
    progress.phase("validate", len(samples))
    with torch.no_grad():
        loss = summed_loss(loaded.model, samples, np.arange(len(samples)), progress)
    return {"model": facts, "model_problem": None, "validation_loss": finite(loss / samples.weight_sum)}


def _replayed(fit: Fit, state: KeptState | None, progress: Progress) -> dict[str, Any]:
    """Return loss and gradient norm of the step that begins with a kept state."""
    if state is None:
        return {"replay": None, "replay_problem": "there is no state"}
    epoch, batch = divmod(state.step - 1, fit.order.steps)
    if not 0 <= epoch < fit.options.epochs:
        return {"replay": None, "replay_problem": f"there is no step {state.step}"}
    model = network(fit.kind, len(NAMES), fit.options.hidden_layers)
    try:
        _require_size(state.path, fit)
        digest = load_state(state.path, model)
    except UserError as error:
        return {"replay": None, "replay_problem": str(error)}
    chosen = next(fit.order.batches(epoch + 1, batch))
    divisor = len(chosen) * fit.train.mean_weight
    progress.phase("step", len(chosen))
    loss = summed_loss(model, fit.train, chosen, progress) / divisor
    norm = math.hypot(*(float(torch.linalg.vector_norm(p.grad)) for p in model.parameters() if p.grad is not None))
    facts = {"step": state.step, "sha256": digest, "loss": finite(loss), "gradient_norm": finite(norm / divisor)}
    return {"replay": facts, "replay_problem": None}


def _require_size(path: Path, fit: Fit) -> None:
    """Raise UserError if a file is much larger than its model's weights: reading it would only take time."""
    with torch.device("meta"):
        weights = network(fit.kind, len(NAMES), fit.options.hidden_layers).state_dict().values()
    if path.is_file() and path.stat().st_size > 2 * sum(weight.nbytes for weight in weights) + OVERHEAD_BYTES:
        raise UserError(f"{path}: is much larger than the weights of such a model")


def summed_loss(model: Network, samples: Samples, chosen: Ints, progress: Progress) -> float:
    """Return the sum over the samples `chosen` of weight times log-loss.

    Its gradient is computed, too, if gradients are enabled.
    """
    total = 0.0
    for start in range(0, len(chosen), VALIDATION_BATCH):
        part = chosen[start : start + VALIDATION_BATCH]
        labels, weights = (torch.from_numpy(values[part]) for values in (samples.labels, samples.weights))
        logits = model(torch.from_numpy(samples.windows(part))).squeeze(1)
        each = functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        loss = (each * weights).sum()
        if torch.is_grad_enabled():
            loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
        progress.step(start + len(part), 0.0)
    return total
