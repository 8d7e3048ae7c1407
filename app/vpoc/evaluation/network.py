"""The network of `vpoc train`, fitted for the evaluation by the same steps as its resident loop."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from vpoc.arrays import Floats
from vpoc.errors import UserError
from vpoc.evaluation.models import Inputs, Predict
from vpoc.models.by_name import fresh_network
from vpoc.training.batches import epoch_order
from vpoc.training.flat import FlatMlp, blocks


@dataclass(frozen=True)
class NetworkFit:
    """A `Fitter`: Adam over mini-batches, each sample once an epoch in an order that depends on the seed alone.

    The loss of a batch is the mean log-loss, weighted by the samples' weights. `model`: mlp.
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
        # Adam is blind to the scale of the loss but for its epsilon; weights of mean 1 keep it far above that.
        relative = weights / weights.mean()
        columns = [self._tensor(values) for values in (inputs, labels, relative)]
        trained = FlatMlp(network, self.learning_rate, self.batch_size)
        firsts = np.arange(0, len(labels), self.batch_size)
        for epoch in range(1, self.epochs + 1):
            order = epoch_order(len(labels), seed, epoch)
            sums = np.add.reduceat(relative[order], firsts).tolist()
            for rows, *others in blocks(columns, torch.from_numpy(order).to(self.device), self.batch_size):
                steps = -(-len(rows) // self.batch_size)
                trained.steps(rows, others[0], others[1], sums[:steps])
                del sums[:steps]
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
