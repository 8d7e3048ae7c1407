"""The first half of a run: devices, data and features, up to the samples of a model."""

from dataclasses import dataclass
from pathlib import Path

import torch

from vpoc.device import clean_up
from vpoc.features.build import FeatureSet
from vpoc.features.compute import features_for, rows_for
from vpoc.gpu_memory.monitor import MemoryMonitor
from vpoc.models.by_name import choose_sdpa, window_of
from vpoc.progress import Progress
from vpoc.ranks.launch import Ranks
from vpoc.training.choose_strategy import devices_of, join_ranks, require_strategy
from vpoc.training.precision import forward_dtype
from vpoc.training.sample_file import SampleFile
from vpoc.training.samples import Samples, split
from vpoc.training.train_options import TrainOptions


@dataclass(frozen=True)
class Prepared:
    """The parts that all models of a run share: `devices` of this process, `ranks` its place among others.

    `on_disk`: where the samples are, when they are not in memory; the frame of `features` is then empty.
    """

    devices: list[torch.device]
    ranks: Ranks
    features: FeatureSet
    memory: MemoryMonitor
    on_disk: SampleFile | None

    def samples_in(self, folder: Path, options: TrainOptions, kind: str, progress: Progress) -> tuple[Samples, Samples]:
        """As `samples`; those that are to be on the disk are first written to `folder`."""
        if self.on_disk is not None:
            self.on_disk.write(folder, progress)
        return self.samples(options, kind)

    def samples(self, options: TrainOptions, kind: str) -> tuple[Samples, Samples]:
        """Training and validation samples for the model `kind`."""
        if self.on_disk is not None:
            return self.on_disk.split(window_of(kind))
        return split(self.features, options.target, window_of(kind))


def prepare(options: TrainOptions, ranks: Ranks, progress: Progress) -> Prepared:
    """Start the devices, meet the other ranks, read or compute the features; UserError when a device is not there."""
    progress.phase("init")
    torch.set_num_threads(options.threads)
    require_strategy(options, ranks)
    devices = devices_of(options, ranks)
    choose_sdpa(options.sdpa, devices[0], forward_dtype(options, devices[0]))
    for device in devices:
        torch.zeros(1, device=device)
    memory = MemoryMonitor(devices, skip_cleanup=options.skip_gpu_cleanup)
    if devices[0].type == "cuda":
        progress.device_memory = memory.read
    join_ranks(options, ranks, devices[0])
    source = options.data, options.features, options.of_features
    if options.chunk_rows and options.rows == "bar":
        rows = rows_for(*source, progress, vpoc_path=options.vpoc_path)
        features = rows.features
        on_disk = SampleFile(rows, options.target, map(window_of, options.model))
    else:
        features = features_for(*source, progress, vpoc_path=options.vpoc_path, device=options.device)
        on_disk = None
    clean_up(devices[0], skip=options.skip_gpu_cleanup)
    return Prepared(devices, ranks, features, memory, on_disk)


def leave(options: TrainOptions) -> None:
    """Part from the other ranks."""
    if options.strategy in ("ddp", "fsdp"):
        # One that leaves while others still talk can be aborted by its own threads.
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
