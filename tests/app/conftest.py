import io
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import polars as pl
import pytest

from vpoc.data.synth import synthetic_csv

FEW_STEPS = {
    "target": "prior_vpoc_touched",
    "lookback": 20,
    "chunk_size": 16,
    "hidden_layers": (8, 4),
    "epochs": 2,
    "batch_size": 8,
    "keep": "last",
    "patience": 0,
    "loader_workers": 0,
    "rank_timeout": 60.0,
    "checkpoint_every": 3600.0,
}
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
    """Return a merged file of 26 synthetic sessions of 10-minute bars."""
    path = tmp_path_factory.mktemp("data") / "merged.csv"
    path.write_text(coarse_csv(26, 10))
    return path


@pytest.fixture(scope="session")
def other_merged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file like `merged`, generated with another seed."""
    path = tmp_path_factory.mktemp("data") / "other.csv"
    path.write_text(coarse_csv(26, 10, seed=8))
    return path


@pytest.fixture(scope="session")
def summer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return 26 synthetic sessions of 10-minute bars around 11 June 2018 (roll), 3 July (half day), 4 July (none)."""
    path = tmp_path_factory.mktemp("data") / "summer.csv"
    header, *lines = coarse_csv(131, 10).splitlines(keepends=True)
    path.write_text(header + "".join(lines[105 * 138 :]))
    return path


@pytest.fixture
def options(merged: Path):
    """Return a function that makes the options of a short training in this process; keyword arguments replace some."""

    def make(**chosen):
        # Imported here because only few tests train.
        from vpoc.commands.train import train_command  # noqa: PLC0415
        from vpoc.training.train_options import TrainOptions  # noqa: PLC0415

        usual = train_command.make_context("train", ["--data", str(merged), "--device", "cpu"]).params
        of_training = {field.name: usual[field.name] for field in fields(TrainOptions)}
        return TrainOptions(**{**of_training, **FEW_STEPS, **chosen})

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
    """Skip the tests marked `gpu` where torch sees no GPU, of whichever vendor."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch  # noqa: PLC0415

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="torch sees no GPU"))
