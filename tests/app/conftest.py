import io
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from vpoc.data.synth import synthetic_csv

SHARED = Path(__file__).parents[2].parent / "shared" / "data"


def coarse_csv(sessions: int, minutes: int, seed: int = 7) -> str:
    frame = pl.read_csv(io.BytesIO(synthetic_csv(sessions, seed)), infer_schema_length=None)
    grouped = (
        frame.with_columns(pl.col("ts").str.to_datetime("%Y-%m-%dT%H:%M:%SZ"))
        .group_by_dynamic("ts", every=f"{minutes}m")
        .agg(
            pl.col("open").first(),
            pl.col("high").max(),
            pl.col("low").min(),
            pl.col("close").last(),
            pl.col("volume").sum(),
            pl.col("vix").last(),
        )
    )
    return grouped.write_csv(datetime_format="%Y-%m-%dT%H:%M:%SZ", float_precision=2)


@pytest.fixture(scope="session")
def merged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """26 synthetic sessions of 10-minute bars."""
    path = tmp_path_factory.mktemp("data") / "merged.csv"
    path.write_text(coarse_csv(26, 10))
    return path


@pytest.fixture(scope="session")
def other_merged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with another seed."""
    path = tmp_path_factory.mktemp("data") / "other.csv"
    path.write_text(coarse_csv(26, 10, seed=8))
    return path


@pytest.fixture(scope="session")
def summer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """26 synthetic sessions of 10-minute bars around 11 June 2018 (a roll), 3 July (a half day) and 4 July (none)."""
    path = tmp_path_factory.mktemp("data") / "summer.csv"
    header, *lines = coarse_csv(131, 10).splitlines(keepends=True)
    path.write_text(header + "".join(lines[105 * 138 :]))
    return path


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
        from vpoc.training.train_options import TrainOptions  # noqa: PLC0415 - few tests train

        return TrainOptions(**{**defaults, **chosen})

    return make


@pytest.fixture(autouse=True)
def _warnings_are_errors_in_other_processes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "error")


@pytest.fixture
def real_data() -> Callable[[str], Path]:
    def find(name: str) -> Path:
        path = SHARED / name
        if not path.exists():
            pytest.skip(f"no {path}")
        return path

    return find


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` run where torch sees one, whoever made it."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch  # noqa: PLC0415

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="torch sees no GPU"))
