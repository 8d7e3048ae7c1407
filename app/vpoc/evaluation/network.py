"""The networks of `vpoc train`, fitted for the evaluation with the training's own scaling, loop and choice of epoch."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vpoc.arrays import Floats
from vpoc.evaluation.models import Inputs, Predict
from vpoc.features.feature_options import FeatureOptions
from vpoc.features.feature_set import FeatureSet
from vpoc.gpu_memory.monitor import MemoryMonitor
from vpoc.models.by_name import Network, network
from vpoc.progress import Progress
from vpoc.training.fit import Fit
from vpoc.training.inputs.feeds import resident_in_order
from vpoc.training.inputs.samples import Samples, Split, split_inner
from vpoc.training.inputs.scaling import fit_scaling
from vpoc.training.preparing.prepared import Prepared
from vpoc.training.run import ALONE
from vpoc.training.train_options import TrainOptions

SAMPLES_AT_A_TIME = 4096
CHOSEN = (
    *("epochs", "batch_size", "learning_rate", "weight_decay", "clip_norm", "schedule", "keep", "patience"),
    *("hidden_layers", "seed", "threads", "device"),
)
"""Options that the evaluation has in common with the training."""


@dataclass(frozen=True)
class FoldRun(Prepared):
    """A run on the samples of a fold."""

    made: Split

    def samples(self, options: TrainOptions, kind: str) -> Split:  # noqa: ARG002 - as Prepared.samples
        """Return the samples of the fold."""
        return self.made


@dataclass(frozen=True)
class NetworkFit:
    """A `Fitter` of the model that `options` name; it is given numbers of `samples`.

    `samples`: all samples, unscaled.
    `single`: the samples for a window of one row, on which a training fits its scaling.
    `purge`: as in `split_inner`.
    """

    samples: Samples
    single: Samples
    options: TrainOptions
    features: FeatureSet | None
    purge: bool

    def __call__(self, inputs: Inputs, labels: Floats, weights: Floats, seed: int) -> Predict:
        """Train as `vpoc train` does; UserError with exit code 4 when numbers are not finite."""
        kind, device = self.options.model[0], torch.device(self.options.device)
        numbers = inputs[:, 0].astype(np.int64)
        given = replace(
            self.samples.take(numbers), labels=labels.astype(np.float32), weights=weights.astype(np.float32)
        )
        train, inner = split_inner(given, np.unique(given.dates), purge=self.purge, inner=self.options.chooses)
        scaling = fit_scaling(given.inputs, self.single.ends[self.single.dates <= train.dates[-1]])
        # Use only rows up to the last one that trains.
        rows = scaling.apply(given.inputs[: int(given.ends[-1]) + 1].copy())
        chooses = None if inner is None else replace(inner, inputs=rows)
        made = Split(replace(train, inputs=rows), chooses, train.take(slice(0)), scaling)
        memory = MemoryMonitor([device], skip_cleanup=True)
        run = FoldRun([device], ALONE, self.features, memory, None, None, made)  # type: ignore[arg-type]
        options = replace(self.options, seed=seed)
        weights_of = (
            Fit(options, run, kind, Path(), Progress(None), lambda _line: None, one_of_many=True).to_the_end().weights
        )
        trained = network(kind, rows.shape[1], options.hidden_layers).to(device)
        trained.load_state_dict(weights_of)

        def predict(chosen: Inputs) -> Floats:
            asked = self.samples.take(chosen[:, 0].astype(np.int64))
            first = int(asked.ends[0]) - asked.window + 1
            scaled = scaling.apply(asked.inputs[first : int(asked.ends[-1]) + 1].copy())
            return probabilities(trained, replace(asked, inputs=scaled, ends=asked.ends - first), device)

        return predict


@torch.no_grad()
def probabilities(trained: Network, samples: Samples, device: torch.device) -> Floats:
    """Return the probability that the label is 1, [samples]; `samples` are scaled and in order."""
    trained.eval()
    micros = resident_in_order(samples, SAMPLES_AT_A_TIME, device)
    logits = torch.cat([trained(micro.inputs).squeeze(1) for micro in micros])
    found: Floats = torch.sigmoid(logits.double()).cpu().numpy()
    return found


def training_options(options: FeatureOptions, target: str, chosen: dict[str, Any]) -> TrainOptions:
    """Return the options of a training in the evaluation: `chosen`, with data on the device, and no files kept."""
    fixed: dict[str, Any] = {
        "data": Path(chosen["data"]),
        "target": target,
        "model": (chosen["model"],),
        "loop": "resident",
        "loader_workers": 0,
        "rank_timeout": 600.0,
        "checkpoint_every": 3600.0,
        "skip_gpu_cleanup": True,
    }
    return TrainOptions(**asdict(options), **fixed, **{name: chosen[name] for name in CHOSEN})
