"""Trainings on the prepared samples by the app's own code, as `vpoc train` makes them."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_evidence.arrays import BATCH, Arrays
from vpoc.commands.train import train_command
from vpoc.progress import Progress
from vpoc.ranks.launch import Ranks
from vpoc.training.fit import Fit
from vpoc.training.inputs.samples import Split
from vpoc.training.inputs.scaling import fit_scaling
from vpoc.training.loop import Step
from vpoc.training.preparing.device_setup import start_devices
from vpoc.training.preparing.prepared import Prepared
from vpoc.training.train_options import TrainOptions

ALONE = Ranks(rank=0, world=1, local_rank=0, local_world=1, rendezvous=None)


@dataclass(frozen=True)
class Carried(Prepared):
    """A run whose samples are prepared already; there are so many that an epoch has `steps` steps."""

    arrays: Arrays
    steps: int

    def samples(self, options: TrainOptions, kind: str) -> Split:
        """Return the samples as Prepared.samples does; they were scaled when they were prepared."""
        train, validation = self.arrays.samples(kind, self.steps * options.batch_size)
        return Split(train, None, validation, fit_scaling(train.inputs, train.ends))


def options_of(kind: str, device: str, **chosen: Any) -> TrainOptions:
    """Return the options of `vpoc train`: defaults for bar rows, all epochs and the last weights, and `chosen`."""
    words = ["--data", "prepared", "--device", device, "--batch-size", str(BATCH[kind]), "--epochs", "1"]
    words += ["--lookback", "20", "--keep", "last", "--patience", "0", "--loader-workers", "0"]
    words += ["--rank-timeout", "60", "--checkpoint-every", "3600"]
    usual = train_command.make_context("train", words).params
    of_training = {field.name: usual[field.name] for field in fields(TrainOptions)}
    return TrainOptions(**{**of_training, "target": "up_30", "model": (kind,), **chosen})


def fit(
    arrays: Arrays,
    kind: str,
    folder: Path,
    steps: int,
    options: TrainOptions,
    *,
    ranks: Ranks = ALONE,
    progress: Progress | None = None,
) -> Fit:
    """Return a training of the model `kind`, ready to start; epochs of `steps` steps, checkpoints in `folder`."""
    progress = progress or Progress(None)
    devices, memory = start_devices(options, ranks, progress)
    run = Carried(devices, ranks, arrays.features, memory, None, None, arrays, steps)  # type: ignore[arg-type]
    return Fit(options, run, kind, folder, progress, lambda _line: None)


def steps_of(training: Fit) -> Iterator[Step]:
    """Make all steps of a training, without checkpoints and validation."""
    for epoch in range(1, training.options.epochs + 1):
        yield from training.trainer.epoch(training.feed(), epoch, 0, tuple)


def losses_of(training: Fit) -> list[float]:
    """Make all steps of a training and return the loss before each."""
    return [loss for step in steps_of(training) for loss in step.losses]


def weights_of(training: Fit) -> dict[str, torch.Tensor]:
    """Return the current weights, on the CPU."""
    return training.trainer.strategy.weights()


def mixed(dtype: str) -> dict[str, Any]:
    """Return the options with which the forward pass is computed in `dtype`."""
    return {} if dtype == "float32" else {"use_mixed_precision": True, "mixed_precision_dtype": dtype}
