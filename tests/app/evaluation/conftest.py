from pathlib import Path

import numpy as np
import pytest
import torch

from vpoc.evaluation.models import fit_logistic_model, scaled
from vpoc.evaluation.network import NetworkFit, training_options
from vpoc.evaluation.rows import LabelledRows
from vpoc.features.feature_options import FeatureOptions
from vpoc.features.table import NAMES
from vpoc.training.inputs.samples import Samples


@pytest.fixture
def make_rows():
    """Return a function that makes rows whose label follows the feature `column` with strength `edge` (0: none)."""

    def make(sessions=300, per_session=1, edge=0.0, column=30, seed=1, reach=1):
        random = np.random.default_rng(seed)
        count = sessions * per_session
        inputs = random.normal(size=(count, len(NAMES))).astype(np.float32)
        chance = 1 / (1 + np.exp(-edge * inputs[:, column].astype(np.float64)))
        return LabelledRows(
            inputs=inputs,
            places=random.integers(0, 4, count),
            labels=(random.random(count) < chance).astype(np.float64),
            weights=np.full(count, 1 / per_session),
            sessions=np.repeat(np.arange(sessions), per_session),
            dates=np.arange(17_000, 17_000 + sessions),
            reach=reach,
        )

    return make


@pytest.fixture
def network():
    """Return a function that makes a network which one thread fits in a moment."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def make(rows, **chosen):
        usual = {"model": "mlp", "epochs": 4, "batch_size": 64, "learning_rate": 3e-3, "hidden_layers": (8,)}
        more = {"weight_decay": 0.01, "clip_norm": 1.0, "schedule": "constant", "keep": "best", "patience": 2}
        fixed = {"data": Path("none"), "seed": 1, "threads": 1, "device": "cpu"}
        options = training_options(FeatureOptions(), "up_30", {**usual, **more, **fixed, **chosen})
        samples = Samples(
            inputs=rows.inputs,
            ends=np.arange(len(rows)),
            labels=rows.labels.astype(np.float32),
            weights=rows.weights.astype(np.float32),
            dates=rows.dates[rows.sessions].astype(np.int32),
        )
        return NetworkFit(samples, samples, options, None, purge=rows.reach > 0)

    yield make
    torch.set_num_threads(threads)


@pytest.fixture
def in_place_of_network():
    """Return a stand-in for the network: what `fit` learns from the scaled inputs of the rows."""

    def make(rows, fit=fit_logistic_model):
        def by_number(numbers, labels, weights, seed):
            predict = scaled(fit)(rows.inputs[numbers[:, 0]], labels, weights, seed)
            return lambda given: predict(rows.inputs[given[:, 0]])

        return by_number

    return make
