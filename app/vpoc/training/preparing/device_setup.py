"""The devices of a run, from first use to the end."""

import os

import torch

from vpoc.gpu_memory.monitor import MemoryMonitor
from vpoc.models.by_name import choose_sdpa
from vpoc.progress import Progress
from vpoc.ranks.launch import Ranks
from vpoc.training.precision import forward_dtype
from vpoc.training.preparing.choose_strategy import devices_of, require_strategy
from vpoc.training.strategies.distributed import join
from vpoc.training.train_options import DISTRIBUTED, TrainOptions

CUBLAS_WORKSPACE = ":4096:8"
"""The larger of the two settings with which cuBLAS is deterministic, according to its manual; hipBLAS needs none."""


def start_devices(options: TrainOptions, ranks: Ranks, progress: Progress) -> tuple[list[torch.device], MemoryMonitor]:
    """Start the devices of this process, watch their memory and join the other ranks.

    UserError when a device is not available, or cannot do what the options ask for.
    """
    torch.set_num_threads(options.threads)
    require_strategy(options, ranks)
    devices = devices_of(options, ranks)
    if options.deterministic:
        # The library reads this variable when it creates its first handle.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", CUBLAS_WORKSPACE)
    for device in devices:
        torch.zeros(1, device=device)
    choose_sdpa(options.sdpa, devices[0], forward_dtype(options, devices[0]), options.model)
    memory = MemoryMonitor(devices, skip_cleanup=options.skip_gpu_cleanup)
    if devices[0].type == "cuda":
        progress.device_memory = memory.read
    if options.strategy in DISTRIBUTED:
        join(ranks, options.backend, devices[0], options.rank_timeout)
    return devices, memory
