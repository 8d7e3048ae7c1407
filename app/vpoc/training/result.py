"""The contents of result and metadata files."""

import math
import platform
from typing import Any

import numpy as np
import polars as pl
import torch

from vpoc import __version__
from vpoc.features.table import NAMES, SCALING
from vpoc.training.fit import Trained
from vpoc.training.samples import Samples


def training_facts(trained: Trained, model: dict[str, Any], metadata_file: str) -> dict[str, Any]:
    """Return what is different for each model that a run trains."""
    fit, options = trained.fit, trained.fit.options
    seconds = fit.history.seconds
    training = sum(seconds[kind] for kind in ("device", "loader", "copy", "bookkeeping"))
    return {
        "model_kind": fit.kind,
        "batch_size": options.batch_size,
        "micro_batch_size": fit.micro,
        "samples": {"train": len(fit.train), "validation": len(fit.validation)},
        "epochs_requested": options.epochs,
        "epochs_done": len(fit.history.epoch_losses),
        "steps_per_epoch": fit.order.steps,
        "steps_done": fit.trainer.steps_done,
        "steps_skipped": fit.trainer.steps_skipped,
        "resumed_at": fit.history.resumed_at,
        "first_steps": fit.history.first_steps,
        "states": fit.states.facts,
        "epoch_losses": fit.history.epoch_losses,
        "throughput": {
            "samples_per_second": options.epochs * len(fit.train) / training,
            "train_seconds": training,
        },
        "time": seconds,
        "rank_weights_sha256": trained.rank_weights_sha256,
        "model": model,
        "metadata_file": metadata_file,
    }


def about(trained: Trained) -> dict[str, Any]:
    """Return the common part of result and metadata files; devices are those that hold weights, of every rank."""
    fit, options = trained.fit, trained.fit.options
    run = fit.run
    return {
        "schema": 2,
        "app_version": __version__,
        "command": "train",
        "workload_hash": options.workload_hash,
        "options": options.as_json(),
        "data": {"path": str(options.data), "sha256": run.features.data_sha256, "rows": run.features.data_rows},
        "python": platform.python_version(),
        "torch": {"version": torch.__version__, "hip": torch.version.hip, "cuda": torch.version.cuda},
        "numpy": np.__version__,
        "polars": pl.__version__,
        "device": trained.devices[0]["device"].split(":")[0],
        "devices": trained.devices,
        "strategy": options.strategy,
        "world_size": run.ranks.world,
        "threads": torch.get_num_threads(),
        "dtype": fit.trainer.dtype,
        "injected_fault": fit.history.injected_fault,
        "sessions": {
            "total": run.features.sessions_total,
            "used": run.features.sessions_used,
            "train": fit.train.sessions,
            "validation": fit.validation.sessions,
        },
    }


def metadata(trained: Trained, model: dict[str, Any]) -> dict[str, Any]:
    """The metadata file of a model."""
    fit, options = trained.fit, trained.fit.options
    return {
        **about(trained),
        "samples": {"train": len(fit.train), "validation": len(fit.validation)},
        "model_kind": fit.kind,
        "features": list(NAMES),
        "scaling": SCALING,
        "target": options.target,
        "rows": options.rows,
        "bar_seconds": fit.run.features.bar_seconds,
        "seed": options.seed,
        "metrics": {
            "validation": {"loss": fit.history.epoch_losses[-1]["validation"], "accuracy": fit.history.accuracy},
            "constant_rate_loss": constant_rate_loss(fit.train, fit.validation),
        },
        "model": model,
    }


def constant_rate_loss(train: Samples, validation: Samples) -> float:
    """Log-loss on `validation` of always answering the share of ones in `train` (with one more of each, Laplace).

    Both weighted as in training.
    """
    rate = (train.share_of_ones * len(train) + 1) / (len(train) + 2)
    ones = validation.share_of_ones
    return -(ones * math.log(rate) + (1 - ones) * math.log(1 - rate))
