"""What a training run was asked to do."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class TrainOptions:
    """Options of `vpoc train` and `vpoc reference`, resolved; the command's help says what each means."""

    data: Path
    features: Path | None
    rows: str
    target: str
    warm_up: int
    data_fraction: float
    chunk_size: int
    epochs: int
    batch_size: int
    learning_rate: float
    hidden_layers: tuple[int, ...]
    use_mixed_precision: bool
    seed: int
    threads: int
    loader_workers: int
    device: str
    strategy: str
    skip_gpu_cleanup: bool
    run_dir: Path | None
    workload_hash: str | None

    def as_json(self) -> dict[str, Any]:
        """Every option as a plain JSON value."""
        return {name: _plain(value) for name, value in asdict(self).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value
