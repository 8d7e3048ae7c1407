"""One training run: prepare, train, validate, write the model, and say what was really done."""

import math
import platform
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from vpoc import __version__
from vpoc.features.table import NAMES, SCALING
from vpoc.files import json_bytes, sha256, write_atomic, write_json
from vpoc.models.mlp import parameter_count
from vpoc.progress import Progress, finite
from vpoc.terminal import watched
from vpoc.training.artefact import serialise, weights_sha256
from vpoc.training.device import clean_up, describe
from vpoc.training.loop import Evaluation, Step
from vpoc.training.options import TrainOptions
from vpoc.training.prepare import Prepared, prepare, prepare_device
from vpoc.training.samples import Samples

FIRST_STEPS = 16
"""Steps whose loss and gradient norm are kept, to be compared with a reference."""


def train(options: TrainOptions, output: Path, name: str, progress: Progress, say: Callable[[str], None]) -> None:
    """Train and write `<name>.pt`, `<name>_metadata.json` in `output` and, with a run folder, `result.json` there."""
    device = prepare_device(options, progress)
    say(f"device {describe(device)['name']} ({device.type}), torch {torch.__version__}, rows per {options.rows}")
    run = prepare(options, device, progress)
    say(_sample_line(run))

    steps_per_epoch = math.ceil(len(run.train) / options.batch_size)
    first_steps: list[Step] = []
    epoch_losses: list[dict[str, float]] = []
    evaluation = Evaluation(math.nan, math.nan)
    seconds = 0.0
    for epoch in range(1, options.epochs + 1):
        started = time.perf_counter()
        loss = _train_epoch(run, epoch, steps_per_epoch, first_steps, progress)
        seconds += time.perf_counter() - started
        progress.phase("validate", len(run.validation))
        evaluation = run.trainer.evaluate(run.validation, progress)
        clean_up(device, skip=options.skip_gpu_cleanup)
        epoch_losses.append({"epoch": epoch, "train": loss, "validation": evaluation.loss})
        say(
            f"epoch {epoch}/{options.epochs}: training loss {loss:.4f}, "
            f"validation loss {evaluation.loss:.4f}, accuracy {evaluation.accuracy:.3f}"
        )

    run.trainer.require_sound()
    progress.phase("checkpoint")
    model_file, metadata_file = f"{name}.pt", f"{name}_metadata.json"
    content = serialise(
        run.trainer.model,
        {
            "hidden_layers": list(options.hidden_layers),
            "target": options.target,
            "feature_options": asdict(options.of_features),
            "bar_seconds": run.features.bar_seconds,
        },
    )
    model_facts = {
        "file": model_file,
        "sha256": sha256(content),
        "bytes": len(content),
        "parameters": parameter_count(run.trainer.model),
    }
    # All that can go wrong in making the metadata has to happen while the model of an earlier run is still there.
    metadata = json_bytes(_metadata(run, options, evaluation, model_facts))
    write_atomic(output / model_file, content)
    write_atomic(output / metadata_file, metadata)
    say(f"wrote {output / model_file}")

    progress.phase("teardown")
    if options.run_dir is not None:
        result = {
            **_about(run, options),
            "epochs_requested": options.epochs,
            "epochs_done": len(epoch_losses),
            "steps_per_epoch": steps_per_epoch,
            "steps_done": run.trainer.steps_done,
            "steps_skipped": run.trainer.steps_skipped,
            "first_steps": [step_facts(step) for step in first_steps],
            "epoch_losses": epoch_losses,
            "throughput": {
                "samples_per_second": options.epochs * len(run.train) / seconds,
                "train_seconds": seconds,
            },
            "rank_weights_sha256": [weights_sha256(run.trainer.model)],
            "model": model_facts,
            "metadata_file": metadata_file,
        }
        write_json(options.run_dir / "result.json", result)


def step_facts(step: Step) -> dict[str, Any]:
    """The step as result and reference files show it."""
    return {"step": step.number, "loss": step.loss, "gradient_norm": finite(step.gradient_norm)}


def _train_epoch(run: Prepared, epoch: int, steps: int, first_steps: list[Step], progress: Progress) -> float:
    """Train one epoch of `steps` steps; the mean loss of its samples, each taken before the step that used it."""
    total = steps * run.trainer.options.epochs
    progress.phase("first-step" if epoch == 1 else "step", total, run.trainer.steps_done)
    loss = 0.0
    for step in watched(run.trainer.epoch(run.train, epoch), f"epoch {epoch}", steps):
        progress.step(step.number, step.seconds, step.loss, step.gradient_norm)
        if step.number == 1:
            progress.phase("step", total, 1)
        if step.number <= FIRST_STEPS:
            first_steps.append(step)
        loss += step.loss * step.samples
    return loss / len(run.train)


def _sample_line(run: Prepared) -> str:
    return (
        f"{run.features.told()}: {len(run.train)} training samples of {run.train.sessions} "
        f"sessions, {len(run.validation)} validation samples of {run.validation.sessions} sessions"
    )


def _about(run: Prepared, options: TrainOptions) -> dict[str, Any]:
    """What result and metadata files say alike; the device is the one that holds the weights."""
    device = next(run.trainer.model.parameters()).device
    return {
        "schema": 1,
        "app_version": __version__,
        "command": "train",
        "workload_hash": options.workload_hash,
        "options": options.as_json(),
        "data": {"path": str(options.data), "sha256": run.features.data_sha256, "rows": run.features.data_rows},
        "python": platform.python_version(),
        "torch": {"version": torch.__version__, "hip": torch.version.hip, "cuda": torch.version.cuda},
        "numpy": np.__version__,
        "polars": pl.__version__,
        "device": device.type,
        "devices": [describe(device)],
        "strategy": options.strategy,
        "world_size": 1,
        "threads": torch.get_num_threads(),
        "dtype": run.trainer.dtype,
        "sessions": {
            "total": run.features.sessions_total,
            "used": run.features.sessions_used,
            "train": run.train.sessions,
            "validation": run.validation.sessions,
        },
        "samples": {"train": len(run.train), "validation": len(run.validation)},
    }


def _metadata(run: Prepared, options: TrainOptions, last: Evaluation, model: dict[str, Any]) -> dict[str, Any]:
    return {
        **_about(run, options),
        "features": list(NAMES),
        "scaling": SCALING,
        "target": options.target,
        "rows": options.rows,
        "bar_seconds": run.features.bar_seconds,
        "seed": options.seed,
        "metrics": {
            "validation": asdict(last),
            "constant_rate_loss": constant_rate_loss(run.train, run.validation),
        },
        "model": model,
    }


def constant_rate_loss(train: Samples, validation: Samples) -> float:
    """Log-loss on `validation` of always answering the share of ones in `train` (with one more of each, Laplace)."""
    rate = (float(train.labels.sum()) + 1) / (len(train) + 2)
    ones = float(validation.labels.mean())
    return -(ones * math.log(rate) + (1 - ones) * math.log(1 - rate))
