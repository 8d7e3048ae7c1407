"""The parts of a run that exist before it trains."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from vpoc.gpu_memory.monitor import MemoryMonitor
from vpoc.models.by_name import window_of
from vpoc.progress import Progress
from vpoc.ranks.launch import Ranks
from vpoc.training.inputs.samples import Split, split
from vpoc.training.train_options import TrainOptions

if TYPE_CHECKING:
    # Not imported at run time, so that a training on existing samples needs no polars.
    from vpoc.features.feature_set import FeatureSet
    from vpoc.training.inputs.sample_file import SampleFile
    from vpoc.training.with_jax.jax_device import JaxDevice


@dataclass(frozen=True)
class Prepared:
    """The parts that all models of a run share.

    `devices`: the devices of this process.
    `ranks`: the place of this process among the ranks.
    `on_disk`: the samples, if they are not in memory; the frame of `features` is then empty.
    `jax`: the device of JAX, if JAX trains; torch then uses the CPU.
    """

    devices: list[torch.device]
    ranks: Ranks
    features: "FeatureSet"
    memory: MemoryMonitor
    on_disk: "SampleFile | None"
    jax: "JaxDevice | None"

    def samples_in(self, folder: Path, options: TrainOptions, kind: str, progress: Progress) -> Split:
        """Do what `samples` does; samples for the disk are first written to `folder`."""
        if self.on_disk is not None:
            self.on_disk.write(folder, progress)
        return self.samples(options, kind)

    def samples(self, options: TrainOptions, kind: str) -> Split:
        """Return the samples for the model `kind`."""
        if self.on_disk is not None:
            return self.on_disk.split(window_of(kind))
        return split(self.features, options.target, window_of(kind), inner=options.chooses)
