"""One process per device, each with a part of the weights: fully sharded data parallel (FSDP 2)."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from vpoc.errors import UserError
from vpoc.models.by_name import Network, parameter_count
from vpoc.training.strategies.distributed import Collective


def fully_shard() -> Any:
    """Return torch's `fully_shard`; UserError if torch has none.

    It gathers a layer's weights just before they are needed and never more than one layer ahead, for which the older
    wrapper needed `limit_all_gathers`.
    """
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6):
        raise UserError(
            f"--strategy fsdp: torch {torch.__version__} has no fully_shard, 2.6 is the first; choose ddp or averaging"
        )
    from torch.distributed.fsdp import fully_shard as shard  # noqa: PLC0415 - torch 2.6 and newer

    return shard


class Sharded(Collective):
    """Weights, gradients and optimizer state are spread over the ranks; a layer is gathered when it is used."""

    def wrap(self, model: Network) -> nn.Module:
        """Return the model with each layer sharded."""
        shard = fully_shard()
        # Without a mesh torch would choose a GPU if there is one.
        mesh = init_device_mesh(self.devices[0].type, (self.world,))
        for layer in model:
            if parameter_count(layer):
                shard(layer, mesh=mesh)
        sharded: nn.Module = shard(model, mesh=mesh)
        return sharded

    def exchange(self, *, last: bool) -> AbstractContextManager[None]:
        """See Single.exchange."""
        return self._synchronising(last)

    @contextmanager
    def _synchronising(self, last: bool) -> Iterator[None]:
        self.forward.set_requires_gradient_sync(last)  # type: ignore[operator]
        yield

    def gradient_norm(self) -> float:
        """Return the norm of the whole gradient, of which each rank has a part."""
        parts = [_local(p.grad) for p in self.model.parameters() if p.grad is not None]
        squares = [torch.linalg.vector_norm(part, dtype=torch.float64).square() for part in parts if part.numel()]
        total = torch.stack(squares).sum() if squares else torch.zeros((), dtype=torch.float64, device=self.devices[0])
        dist.all_reduce(total)
        return float(total.sqrt())

    def whole(self, tensor: torch.Tensor) -> torch.Tensor:
        """See Single.whole."""
        full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        return super().whole(full)

    def part(self, tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """See Single.part."""
        if not hasattr(like, "device_mesh"):
            return super().part(tensor, like)
        from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415 - torch 2.5 and newer

        spread: torch.Tensor = distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)  # type: ignore[attr-defined]
        return spread


def _local(tensor: torch.Tensor) -> torch.Tensor:
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local
