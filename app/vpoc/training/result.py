"""The contents of result and metadata files."""

import math
import platform
from typing import Any

import numpy as np
import polars as pl
import torch

from vpoc import __version__
from vpoc.features.table import NAMES
from vpoc.training.fit import Fit, Trained
from vpoc.training.inputs.samples import Samples
from vpoc.training.model_file.artefact import weights_sha256


def training_facts(trained: Trained, model: dict[str, Any], metadata_file: str) -> dict[str, Any]:
    """Return the facts that differ between the models of a run."""
    fit, options = trained.fit, trained.fit.options
    seconds = fit.history.seconds
    training = sum(seconds[kind] for kind in ("device", "loader", "copy", "bookkeeping"))
    return {
        "model_kind": fit.kind,
        "batch_size": options.batch_size,
        "micro_batch_size": fit.micro,
        "samples": sample_counts(fit),
        "epochs_requested": options.epochs,
        "epochs_done": len(fit.history.epoch_losses),
        "stopped_early": fit.stopped_early,
        "kept_epoch": fit.kept_epoch,
        "steps_per_epoch": fit.order.steps,
        "steps_done": fit.trainer.steps_done,
        "steps_skipped": fit.trainer.steps_skipped,
        "resumed_at": fit.history.resumed_at,
        "first_steps": fit.history.first_steps,
        "states": fit.states.facts,
        "epoch_losses": fit.history.epoch_losses,
        "throughput": {
            "samples_per_second": len(fit.history.epoch_losses) * len(fit.train) / training,
            "train_seconds": training,
        },
        "time": seconds,
        "rank_weights_sha256": trained.rank_weights_sha256,
        "kept_weights_sha256": weights_sha256(trained.weights),
        "model": model,
        "metadata_file": metadata_file,
    }


def common_facts(trained: Trained) -> dict[str, Any]:
    """Return the common part of result and metadata files; devices are those of every rank that hold weights."""
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
        "framework": options.framework,
        "jax": None if run.jax is None else run.jax.versions,
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
            "inner": 0 if fit.inner is None else fit.inner.sessions,
            "validation": fit.validation.sessions,
        },
    }


def metadata(trained: Trained, model: dict[str, Any]) -> dict[str, Any]:
    """Return the contents of a model's metadata file."""
    fit, options = trained.fit, trained.fit.options
    return {
        **common_facts(trained),
        "samples": sample_counts(fit),
        "model_kind": fit.kind,
        "features": list(NAMES),
        "scaling": fit.scaling.as_json(),
        "target": options.target,
        "rows": options.rows,
        "bar_seconds": fit.run.features.bar_seconds,
        "seed": options.seed,
        "metrics": {
            "kept_epoch": fit.kept_epoch,
            "validation": {"loss": kept_loss(fit), "accuracy": fit.history.accuracy},
            "constant_rate_loss": constant_rate_loss(fit.train, fit.validation),
        },
        "model": model,
    }


def sample_counts(fit: Fit) -> dict[str, int]:
    """Return the numbers of samples that train, choose the epoch, and validate."""
    inner = 0 if fit.inner is None else len(fit.inner)
    return {"train": len(fit.train), "inner": inner, "validation": len(fit.validation)}


def kept_loss(fit: Fit) -> float:
    """Return the validation loss of the kept epoch."""
    loss: float = fit.history.epoch_losses[fit.kept_epoch - 1]["validation"]
    return loss


def judgement(fit: Fit) -> str:
    """Return a sentence that compares the model with always answering the rate of its training samples."""
    loss, constant = kept_loss(fit), constant_rate_loss(fit.train, fit.validation)
    done, early = len(fit.history.epoch_losses), ", stopped early" if fit.stopped_early else ""
    what = (
        "better, by how much and whether by luck `vpoc evaluate` says"
        if loss < constant
        else "WORSE: on sessions it has not seen this model is no better than that one number; do not use it"
    )
    return (
        f"{fit.kind}: epoch {fit.kept_epoch} of {done} is kept{early}: validation loss {loss:.4f}; always answering "
        f"the rate of the training samples, {fit.train.share_of_ones:.3f}, has {constant:.4f}: {what}"
    )


def constant_rate_loss(train: Samples, validation: Samples) -> float:
    """Return the log-loss on `validation` of always answering the share of ones in `train`.

    The share counts one more label of each kind (Laplace). Both are weighted as in training.
    """
    rate = (train.share_of_ones * len(train) + 1) / (len(train) + 2)
    ones = validation.share_of_ones
    return -(ones * math.log(rate) + (1 - ones) * math.log(1 - rate))
