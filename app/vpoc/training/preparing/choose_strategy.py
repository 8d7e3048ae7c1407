"""The requested strategy, on the available devices."""

from collections.abc import Sequence
from pathlib import Path

import torch

from vpoc.device import require_device
from vpoc.errors import UserError
from vpoc.models.by_name import Network
from vpoc.ranks.launch import Ranks
from vpoc.training.faults.kinds import BETWEEN_RANKS, IN_RUN_FOLDER
from vpoc.training.precision import forward_dtype
from vpoc.training.strategies.averaging import Averaging
from vpoc.training.strategies.data_parallel import DataParallel
from vpoc.training.strategies.distributed import Distributed
from vpoc.training.strategies.model_parallel import ModelParallel
from vpoc.training.strategies.sharded import Sharded, fully_shard
from vpoc.training.strategies.single import Single
from vpoc.training.train_options import CPU_DEVICES, DISTRIBUTED, RANKED, TrainOptions


def devices_of(options: TrainOptions, ranks: Ranks) -> list[torch.device]:
    """Return the devices of this process; UserError when the strategy cannot work with the available ones."""
    require_device(options.device)
    on_gpu = options.device == "cuda"
    if options.strategy == "single" and (options.devices or 1) != 1:
        raise UserError("--devices: --strategy single uses one device; choose another strategy, or --devices 1")
    if options.strategy in ("single", *RANKED):
        if not on_gpu:
            return [torch.device("cpu")]
        there = torch.cuda.device_count()
        if ranks.local_rank >= there:
            raise UserError(f"--devices: {ranks.local_world} ranks on this host, but {there} GPUs", exit_code=3)
        torch.cuda.set_device(ranks.local_rank)
        return [torch.device("cuda", ranks.local_rank)]
    count = options.devices or (torch.cuda.device_count() if on_gpu else CPU_DEVICES)
    if options.strategy == "dp" and (count < 2 or not on_gpu):
        where = f"{count} GPU" if on_gpu else "a CPU, which is one device"
        raise UserError(f"--strategy dp needs two GPUs and would silently be `single` on {where}; choose single or ddp")
    if on_gpu and count > torch.cuda.device_count():
        raise UserError(f"--devices {count}: there are {torch.cuda.device_count()} GPUs", exit_code=3)
    return [torch.device("cuda", number) if on_gpu else torch.device("cpu") for number in range(count)]


def require_strategy(options: TrainOptions, ranks: Ranks) -> None:
    """Raise UserError for options that contradict each other or the environment, before anything is computed."""
    fault = options.injected_fault
    if fault and (fault.rank >= ranks.world or (fault.kind in BETWEEN_RANKS and ranks.world == 1)):
        raise UserError(f"--inject-fault {fault}: there is no such rank, or no other one, among {ranks.world}")
    if fault and fault.kind in IN_RUN_FOLDER and options.run_dir is None:
        raise UserError(f"--inject-fault {fault}: progress is written with --run-dir only; give one")
    if fault and fault.kind == "hang-loader" and options.loop != "plain":
        raise UserError(f"--inject-fault {fault}: --loop {options.loop} has no loader; choose --loop plain")
    if ranks.world > 1 and options.strategy not in RANKED:
        raise UserError(
            f"--strategy {options.strategy} is one process, the environment says RANK={ranks.rank} of "
            f"WORLD_SIZE={ranks.world}; unset these variables, or choose {', '.join(RANKED)}"
        )
    if options.strategy in RANKED and options.devices not in (None, ranks.local_world):
        raise UserError(
            f"--devices {options.devices}: {ranks.local_world} ranks were started on this host; leave --devices out"
        )
    if options.backend and options.strategy not in DISTRIBUTED:
        raise UserError(f"--backend is for ddp and fsdp, not for --strategy {options.strategy}; leave it out")
    if options.mixed_precision_dtype and not options.use_mixed_precision:
        raise UserError("--mixed-precision-dtype says which type --use-mixed-precision takes; give both")
    scaled = forward_dtype(options, torch.device(options.device)) == torch.float16
    if scaled and options.device == "cpu" and not hasattr(torch.amp, "GradScaler"):
        raise UserError(
            f"--mixed-precision-dtype float16: torch {torch.__version__} has no loss scaler for a CPU, 2.3 is the "
            "first; choose bfloat16"
        )
    if options.strategy == "dp" and options.use_mixed_precision and not scaled:
        raise UserError("--strategy dp computes in float16 in its threads; leave out --mixed-precision-dtype bfloat16")
    if options.strategy == "fsdp":
        fully_shard()
        if scaled:
            raise UserError("--strategy fsdp has no loss scaler; give --mixed-precision-dtype bfloat16")


def strategy_of(
    options: TrainOptions, model: Network, devices: Sequence[torch.device], ranks: Ranks, shape: tuple[int, ...]
) -> Single:
    """Return the requested strategy around `model`, whose samples have `shape`."""
    model.recompute = options.activation_checkpointing
    if options.strategy == "averaging":
        if ranks.exchange is None:
            raise UserError("--strategy averaging works on one host, started by vpoc itself; use ddp with torchrun")
        return Averaging(model, devices, ranks.rank, ranks.world, Path(ranks.exchange), options.rank_timeout)
    kinds: dict[str, type[Single]] = {
        "single": Single,
        "dp": DataParallel,
        "ddp": Distributed,
        "fsdp": Sharded,
        "model-parallel": ModelParallel,
    }
    strategy = kinds[options.strategy](model, devices, ranks.rank, ranks.world)
    strategy.settle(torch.zeros(1, *shape, device=devices[0]))
    return strategy
