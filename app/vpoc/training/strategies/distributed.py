"""One process per device, gradients summed by torch.distributed: DistributedDataParallel."""

import datetime
import inspect
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from vpoc.errors import UserError
from vpoc.models.by_name import Network
from vpoc.ranks.launch import Ranks
from vpoc.training.strategies.single import Single

_LEFT: list[Any] = []
"""Process groups that were left, kept alive until the process ends."""


def join(ranks: Ranks, backend: str | None, device: torch.device, timeout_s: float) -> None:
    """Join the other ranks; UserError if torch lacks the backend, or the other ranks do not join in time."""
    backend = backend or ("nccl" if device.type == "cuda" else "gloo")
    there = {
        "nccl": device.type == "cuda" and dist.is_available() and dist.is_nccl_available(),
        "gloo": dist.is_available() and dist.is_gloo_available(),
        "mpi": dist.is_available() and dist.is_mpi_available(),
    }
    if not there[backend]:
        if backend == "nccl" and device.type == "cpu":
            raise UserError("--backend nccl works on GPUs only; choose --backend gloo, or --device cuda")
        raise UserError(
            f"--backend {backend}: torch {torch.__version__} was built without it; choose another --backend"
        )
    bound: dict[str, Any] = {}
    # Otherwise NCCL guesses a rank's device from its number. Torch 2.3 is the first version with this argument.
    if backend == "nccl" and "device_id" in inspect.signature(dist.init_process_group).parameters:
        bound["device_id"] = device
    where = f"file://{ranks.rendezvous}" if ranks.rendezvous else "env://"
    try:
        dist.init_process_group(
            backend,
            init_method=where,
            rank=ranks.rank,
            world_size=ranks.world,
            timeout=datetime.timedelta(seconds=timeout_s),
            **bound,
        )
    except (RuntimeError, ValueError) as error:
        line = str(error).strip().splitlines()[0]
        raise UserError(f"rank {ranks.rank} could not join the {ranks.world} ranks: {line}", exit_code=1) from error


def leave(device: torch.device) -> None:
    """Leave the other ranks, once all are ready to leave."""
    # A rank that leaves while others still communicate can be aborted by its own threads.
    # NCCL alone takes a device, and guesses one if none is given.
    dist.barrier(device_ids=[device.index] if dist.get_backend() == "nccl" else None)
    # DistributedDataParallel also references the group. If it released the group last, it would wait, while holding
    # Python's lock, for a thread of Gloo that may need that lock to end: the rank would hang after its last step.
    _LEFT.append(dist.group.WORLD)
    dist.destroy_process_group()


class Collective(Single):
    """The common part of strategies whose ranks communicate through torch.distributed."""

    @property
    def loss_factor(self) -> float:
        """The number of ranks: both wrappers average over ranks, but sums are wanted."""
        return float(self.world)

    def synchronise(self, numbers: Sequence[float]) -> list[float]:
        """Sum only the numbers here; gradients are summed during the backward pass."""
        sums = torch.tensor(numbers, dtype=torch.float64, device=self.devices[0])
        dist.all_reduce(sums)
        summed: list[float] = sums.tolist()
        return summed

    def smallest(self, number: int) -> int:
        """See Single.smallest."""
        least = torch.tensor([number], device=self.devices[0])
        dist.all_reduce(least, op=dist.ReduceOp.MIN)
        return int(least.item())

    def gathered(self, value: str) -> list[str]:
        """See Single.gathered."""
        found: list[str] = [""] * self.world
        dist.all_gather_object(found, value)
        return found


class Distributed(Collective):
    """DistributedDataParallel: every rank has all weights; gradients are exchanged during the backward pass."""

    def wrap(self, model: Network) -> nn.Module:
        """Return the model in DistributedDataParallel."""
        device = self.devices[0]
        ids = [device.index] if device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(model, device_ids=ids)

    def exchange(self, *, last: bool) -> AbstractContextManager[None]:
        """See Single.exchange: gradients are exchanged only in the backward pass of the last micro-batch."""
        if last or not isinstance(self.forward, nn.parallel.DistributedDataParallel):
            return nullcontext()
        alone: AbstractContextManager[None] = self.forward.no_sync()
        return alone

    def settle(self, inputs: torch.Tensor) -> None:
        """See Single.settle: after its first pass DDP exchanges gradients in another order, which rounds differently.

        Otherwise a resumed training would use the first order where an uninterrupted one uses the second.
        """
        (self.forward(inputs) * 0).sum().backward()
        for parameter in self.model.parameters():
            parameter.grad = None
