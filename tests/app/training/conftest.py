from pathlib import Path

import numpy as np
import pytest

from vpoc.training.samples import Samples
from vpoc.training.train_options import TrainOptions


def made(inputs, labels, weights=None, window=1):
    """Samples of one session: one per row that has a window."""
    count = len(inputs)
    ends = np.arange(window - 1, count)
    return Samples(
        inputs=inputs,
        ends=ends,
        labels=labels[ends],
        weights=np.ones(len(ends), np.float32) if weights is None else weights[ends],
        dates=np.zeros(len(ends), np.int32),
        window=window,
    )


@pytest.fixture(name="made")
def make_samples():
    """Samples from inputs and labels."""
    return made


@pytest.fixture
def options(merged: Path):
    """Options of a run of a few steps in this process; keyword arguments replace some."""

    def make(**chosen):
        defaults = {
            "data": merged,
            "features": None,
            "rows": "bar",
            "as_of": "close",
            "target": "prior_vpoc_touched",
            "lookback": 20,
            "data_fraction": 1.0,
            "placement": "uniform",
            "value_area": "two_row",
            "rth_close": "16:00",
            "rolls": "auto",
            "chunk_size": 16,
            "vpoc_path": "cpu",
            "model": ("mlp",),
            "hidden_layers": (8, 4),
            "sdpa": "auto",
            "activation_checkpointing": False,
            "deterministic": False,
            "epochs": 2,
            "batch_size": 8,
            "micro_batch_size": None,
            "spare": None,
            "learning_rate": 1e-3,
            "weight_decay": 0.01,
            "clip_norm": 1.0,
            "schedule": "constant",
            "keep": "last",
            "patience": 0,
            "loop": "plain",
            "chunk_rows": None,
            "use_mixed_precision": False,
            "mixed_precision_dtype": None,
            "seed": 7,
            "threads": 1,
            "loader_workers": 0,
            "device": "cpu",
            "strategy": "single",
            "backend": None,
            "devices": None,
            "rank_timeout": 60.0,
            "checkpoint_every": 3600.0,
            "resume": False,
            "skip_gpu_cleanup": False,
            "run_dir": None,
            "workload_hash": None,
            "injected_fault": None,
        }
        return TrainOptions(**{**defaults, **chosen})

    return make
