from pathlib import Path

import pytest

from vpoc.training.options import TrainOptions


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
            "warm_up": 20,
            "data_fraction": 1.0,
            "placement": "uniform",
            "value_area": "two_row",
            "rth_close": "16:00",
            "rolls": "auto",
            "chunk_size": 16,
            "vpoc_path": "cpu",
            "epochs": 2,
            "batch_size": 8,
            "learning_rate": 1e-3,
            "hidden_layers": (8, 4),
            "use_mixed_precision": False,
            "seed": 7,
            "threads": 1,
            "loader_workers": 0,
            "device": "cpu",
            "strategy": "single",
            "skip_gpu_cleanup": False,
            "run_dir": None,
            "workload_hash": None,
        }
        return TrainOptions(**{**defaults, **chosen})

    return make
