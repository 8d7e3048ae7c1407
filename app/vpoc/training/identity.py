"""The settings that a checkpoint must share with a training that resumes from it, and those that may differ."""

from dataclasses import asdict
from typing import Any

import torch

from vpoc import __version__
from vpoc.features.table import FEATURES_SCHEMA
from vpoc.training.loop import Trainer
from vpoc.training.preparing.prepared import Prepared
from vpoc.training.train_options import TrainOptions


def identity_of(options: TrainOptions, run: Prepared, kind: str) -> dict[str, Any]:
    """Return the identity of a training: it can resume only from checkpoints with the same identity."""
    names = ("target", "seed", "batch_size", "learning_rate", "weight_decay", "clip_norm", "schedule", "chunk_rows")
    return {
        "data": run.features.data_sha256,
        "features": FEATURES_SCHEMA,
        "model": kind,
        **{name: getattr(options, name) for name in names},
        # Whether a part of the training sessions is reserved to choose the epoch.
        "choosing": options.chooses,
        # Whether a checkpoint also has the weights of the best epoch.
        "keep": options.keep,
        # With a schedule the rate of a step depends on the total number of steps.
        "epochs": None if options.schedule == "constant" else options.epochs,
        "hidden_layers": list(options.hidden_layers) if kind == "mlp" else [],
        **({"rolls_sha256": run.features.rolls_sha256} if run.features.rolls_sha256 else {}),
        **{name: value for name, value in asdict(run.features.options).items() if name != "chunk_size"},
    }


def manner_of(options: TrainOptions, trainer: Trainer, micro: int) -> dict[str, Any]:
    """Return the settings that may change on resume, after which results are no longer bitwise identical."""
    return {
        "strategy": options.strategy,
        "ranks": trainer.strategy.world,
        "device": options.device,
        "framework": options.framework,
        "threads": torch.get_num_threads(),
        "micro_batch_size": micro,
        "dtype": trainer.dtype,
        "loop": options.loop,
        "sdpa": options.sdpa,
        "activation_checkpointing": options.activation_checkpointing,
        "deterministic": options.deterministic,
        "torch": str(torch.__version__),
        "app_version": __version__,
    }
