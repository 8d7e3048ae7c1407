"""The network of `vpoc train`, fitted by a plain loop for the evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from vpoc.arrays import Floats
from vpoc.errors import UserError
from vpoc.evaluation.models import Inputs, Predict
from vpoc.models.by_name import fresh_network
from vpoc.training.batches import epoch_order


@dataclass(frozen=True)
class NetworkFit:
    """A `Fit`: Adam over mini-batches, each sample once an epoch in an order that depends on the seed alone.

    The loss of a batch is the mean log-loss, weighted by the samples' weights.
    """

    model: str
    epochs: int
    batch_size: int
    learning_rate: float
    hidden_layers: Sequence[int]
    device: torch.device

    def __call__(self, inputs: Inputs, labels: Floats, weights: Floats, seed: int) -> Predict:
        """Fit a fresh network; UserError with exit code 4 when its weights do not stay finite."""
        network = fresh_network(self.model, inputs.shape[1], self.hidden_layers, seed).to(self.device)
        optimizer = torch.optim.Adam(network.parameters(), lr=self.learning_rate)
        given, wanted = self._tensor(inputs), self._tensor(labels)
        # Adam is blind to the scale of the loss but for its epsilon; weights of mean 1 keep it far above that.
        counted = self._tensor(weights / weights.mean())
        network.train()
        for epoch in range(1, self.epochs + 1):
            order = torch.from_numpy(epoch_order(len(labels), seed, epoch)).to(self.device)
            for batch in torch.split(order, self.batch_size):
                optimizer.zero_grad(set_to_none=True)
                logits = network(given[batch]).squeeze(1)
                share = counted[batch] / counted[batch].sum()
                loss = binary_cross_entropy_with_logits(logits, wanted[batch], share, reduction="sum")
                torch.autograd.backward(loss)
                optimizer.step()
        if not all(torch.isfinite(tensor).all() for tensor in network.state_dict().values()):
            raise UserError("the weights of the network are not finite; lower --learning-rate", exit_code=4)
        network.eval()

        def predict(rows: Inputs) -> Floats:
            with torch.no_grad():
                logits = network(self._tensor(rows)).squeeze(1)
            return torch.sigmoid(logits).cpu().numpy().astype(np.float64)

        return predict

    def _tensor(self, values: Inputs) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).to(self.device)
