"""The prepared arrays: samples, bars with the exact levels of their profiles, and the CPU's first steps."""

import math
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vpoc.arrays import Floats, Ints
from vpoc.data.bars import Bars
from vpoc.errors import UserError
from vpoc.features.feature_options import FeatureOptions
from vpoc.features.table import NAMES
from vpoc.models.by_name import window_of
from vpoc.profile.levels import Levels
from vpoc.training.inputs.samples import Samples

SCHEMA = 1
MODELS = ("mlp", "attention", "attention-small")
BATCH = {"mlp": 64, "attention": 16, "attention-small": 16}
VALIDATION = 64
"""The number of samples for validation."""
LEVELS = ("vpoc", "vah", "val", "vpoc_volume", "area_volume", "volume")
BAR_COLUMNS = ("ts", "low", "high", "close", "volume")
SESSION_COLUMNS = ("start", "stop")


@dataclass(frozen=True)
class RthSessions:
    """The rows of the bars at which the regular hours of each session begin and end, [sessions]."""

    start: Ints
    stop: Ints


@dataclass(frozen=True)
class CarriedFeatures:
    """The facts that a training needs about the features from which the samples were made."""

    data_sha256: str
    bar_seconds: int = 60
    options: FeatureOptions = field(default_factory=FeatureOptions)
    rolls_sha256: str = ""

    def summary(self) -> str:
        """Return a short description."""
        return f"prepared arrays {self.data_sha256[:12]}"


class Arrays:
    """The arrays in the file `path`, each read when it is used; UserError if it is missing or of another version."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = np.load(path)
            self.facts: dict[str, Any] = {name: self._file[name].item() for name in ("schema", "steps", "sha256")}
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise UserError(f"{path}: no prepared arrays; make them with benchmarks/gpu_evidence/prepare.py") from error
        if self.facts["schema"] != SCHEMA:
            raise UserError(f"{path}: prepared arrays of another version; make them again with prepare.py")

    @property
    def features(self) -> CarriedFeatures:
        """The facts of the features."""
        return CarriedFeatures(self.facts["sha256"])

    def samples(self, kind: str, count: int) -> tuple[Samples, Samples]:
        """Return `count` samples to train the model `kind`, repeated if there are fewer, and samples to validate."""
        window = window_of(kind)
        ends = self._file["ends"]
        usable = ends >= window - 1
        columns = {name: self._file[name][usable] for name in ("ends", "labels", "weights", "dates")}
        inputs = self._file["inputs"]
        samples = Samples(inputs=inputs, **columns, window=window)
        training, validating = samples.take(slice(-VALIDATION)), samples.take(slice(-VALIDATION, None))
        times = math.ceil(count / len(training))
        if times > 1:
            parts = {name: np.tile(getattr(training, name), times) for name in ("labels", "weights", "dates")}
            ends = np.concatenate([training.ends + number * len(inputs) for number in range(times)])
            training = Samples(inputs=np.tile(inputs, (times, 1)), ends=ends, **parts, window=window)
        return training.take(slice(count)), validating

    def bars(self) -> Bars:
        """Return the bars of regular hours and around them; columns that a profile does not need are zero."""
        columns = {name: self._file[f"bars_{name}"].astype(np.int64) for name in BAR_COLUMNS}
        none = np.zeros(len(columns["ts"]), dtype=np.int64)
        return Bars(
            path=Path("prepared"),
            sha256=self.facts["sha256"],
            **columns,
            open=columns["close"],
            vix=none.astype(np.float64),
            off_grid=none.astype(np.bool_),
            contract=none,
            symbols=(),
            bar_seconds=60,
            rows_in_file=len(none),
        )

    def sessions(self) -> RthSessions:
        """Return the rows of the bars where the regular hours of each session begin and end."""
        return RthSessions(**{name: self._file[f"sessions_{name}"].astype(np.int64) for name in SESSION_COLUMNS})

    def levels(self, placement: str, value_area: str) -> Levels:
        """Return the exact levels of each session's profile, as the CPU computed them."""
        return Levels(*self._file[f"levels_{placement}_{value_area}"])

    def reference(self, kind: str) -> Floats:
        """Return loss and gradient norm of each step, [steps, 2], of the model `kind` in float32 on a CPU."""
        found: Floats = self._file[f"reference_{kind}"]
        return found


def feature_count() -> int:
    """Return the number of inputs of a row."""
    return len(NAMES)
