"""The options of a training run, resolved."""

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from vpoc.features.feature_options import FeatureOptions
from vpoc.training.faults.kinds import InjectedFault

RANKED = ("ddp", "averaging", "fsdp")
"""Strategies with one process per device."""
DISTRIBUTED = ("ddp", "fsdp")
"""Those whose ranks talk through torch.distributed."""
MOST_LAYERS = 256
"""Most hidden layers of an mlp: with many thousands, a network takes minutes to build from a file of megabytes."""
CPU_DEVICES = 2
"""Number of processes, or of parts of a model, on the CPU, where devices cannot be counted."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options of `vpoc train`, resolved; the command's help explains each.

    A default here is the value that applies if the option is not given.
    """

    data: Path
    features: Path | None = None
    rows: str
    as_of: str
    target: str
    lookback: int
    data_fraction: float
    placement: str
    value_area: str
    rth_close: str
    rolls: str
    chunk_size: int
    vpoc_path: str = "cpu"
    model: tuple[str, ...]
    hidden_layers: tuple[int, ...]
    sdpa: str = "auto"
    activation_checkpointing: bool = False
    deterministic: bool = False
    epochs: int
    batch_size: int
    micro_batch_size: int | str | None = None
    spare: float | None = None
    learning_rate: float
    weight_decay: float
    clip_norm: float
    schedule: str
    keep: str
    patience: int
    loop: str
    chunk_rows: int | None = None
    use_mixed_precision: bool = False
    mixed_precision_dtype: str | None = None
    seed: int
    threads: int
    loader_workers: int
    device: str
    strategy: str = "single"
    backend: str | None = None
    devices: int | None = None
    rank_timeout: float
    checkpoint_every: float
    resume: bool = False
    skip_gpu_cleanup: bool
    run_dir: Path | None = None
    workload_hash: str | None = None
    injected_fault: InjectedFault | None = None
    accepted: tuple[str, ...] = ()
    framework: str = "torch"

    @property
    def of_features(self) -> FeatureOptions:
        """The options of the features."""
        return FeatureOptions(**{f.name: getattr(self, f.name) for f in fields(FeatureOptions)})

    @property
    def chooses(self) -> bool:
        """Return whether some training sessions are reserved, to choose the kept epoch or the end of the training."""
        return self.keep == "best" or self.patience > 0

    def as_json(self) -> dict[str, Any]:
        """Return every option as a plain JSON value."""
        return {
            **{name: plain(value) for name, value in asdict(self).items()},
            "injected_fault": self.injected_fault and str(self.injected_fault),
        }


def plain(value: Any) -> Any:
    """Return an option as a JSON value."""
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value
