"""One process per device, gradients added through shared memory: it uses no collective library."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from vpoc.models.by_name import Network, parameter_count
from vpoc.ranks.exchange import MOST_NUMBERS, SharedGradients
from vpoc.training.strategies.single import Single


class Averaging(Single):
    """Every rank has all weights; it writes its gradient to memory that all ranks share, and adds up all gradients.

    Sums are made in the order of the ranks, so that results are bitwise identical on all ranks, and to those of one
    device that computes the ranks' shares one after another as micro-batches. Errors of waiting and of damaged memory
    are those of SharedGradients.
    """

    def __init__(
        self, model: Network, devices: Sequence[torch.device], rank: int, world: int, folder: Path, timeout_s: float
    ) -> None:
        super().__init__(model, devices, rank, world)
        self._shared = SharedGradients(folder, rank, world, parameter_count(model), timeout_s=timeout_s)

    def synchronise(self, numbers: Sequence[float]) -> list[float]:
        """See Single.synchronise."""
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        mine = torch.cat([gradient.flatten() for gradient in gradients]).cpu().numpy()
        whole = torch.from_numpy(self._shared.sum(mine))
        for gradient, part in zip(gradients, torch.split(whole, [g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))
        sums: list[float] = self._shared.sum_numbers(np.asarray(numbers, dtype=np.float64)).tolist()
        return sums

    def flip_next_exchange(self) -> bool:
        """See Single.flip_next_exchange."""
        self._shared.flip_next()
        return True

    def smallest(self, number: int) -> int:
        """See Single.smallest."""
        return int(self._shared.gather(np.array([number], dtype=np.float64)).min())

    def gathered(self, value: str) -> list[str]:
        """See Single.gathered; ValueError for text of more than 1024 bytes."""
        letters = np.frombuffer(value.encode().ljust(MOST_NUMBERS), np.uint8).astype(np.float64)
        return [row.astype(np.uint8).tobytes().decode().rstrip() for row in self._shared.gather(letters)]

    def close(self) -> None:
        """Leave the others."""
        self._shared.close()
