"""Feature rows -> the numbers that enter the network, split by session in order of time."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from vpoc.data.sessions import RTH_MINUTES
from vpoc.errors import UserError
from vpoc.features.build import FeatureSet
from vpoc.features.table import SCALING
from vpoc.features.targets import HORIZON

VALIDATION_SHARE = 0.2
MIN_LABELLED = 3
"""One to train, one that may be purged, one to validate."""


@dataclass(frozen=True)
class Samples:
    """`inputs` [samples, features] and `labels` [samples], float32; `sessions`: how many sessions they come from."""

    inputs: npt.NDArray[np.float32]
    labels: npt.NDArray[np.float32]
    sessions: int

    def __len__(self) -> int:
        return len(self.labels)


def scaled_inputs(frame: pl.DataFrame) -> npt.NDArray[np.float32]:
    """Inputs [rows, features]: columns in ticks divided by the row's atr20, the others by a constant.

    Each row is scaled by what was known at its as-of time, never by statistics of the whole file.
    """
    atr = frame["atr20"].to_numpy()
    ranges = np.where(atr > 0, atr, 1.0)
    columns = [frame[name].to_numpy() / (ranges if isinstance(size, str) else size) for name, size in SCALING.items()]
    return np.ascontiguousarray(np.stack(columns, axis=1), dtype=np.float32)


def split(features: FeatureSet, target: str) -> tuple[Samples, Samples]:
    """Training and validation samples: the last 20 % of the sessions with a label validate.

    The label of a session row comes from the session after it, so the last training session is purged.
    UserError when fewer than 3 sessions have a label, or the bars are so long that none can have one.
    """
    bars_of_session = RTH_MINUTES * 60 // max(features.bar_seconds, 1)
    if target == "up_30" and bars_of_session <= HORIZON:
        raise UserError(
            f"--target {target} looks {HORIZON} bars ahead within a session, which has {bars_of_session} bars of "
            f"{features.bar_seconds} seconds; give shorter bars or choose another --target"
        )
    labelled = features.frame.filter(pl.col(target).is_not_null())
    dates = labelled["trade_date"].unique().sort()
    if len(dates) < MIN_LABELLED:
        raise UserError(
            f"{len(dates)} sessions have a value of {target}, {MIN_LABELLED} are needed; give more sessions"
        )
    validating = max(1, round(VALIDATION_SHARE * len(dates)))
    first_validation = dates[-validating]
    end_of_training = dates[-validating - 1] if features.options.rows == "session" else first_validation
    train = labelled.filter(pl.col("trade_date") < end_of_training)
    validation = labelled.filter(pl.col("trade_date") >= first_validation)
    return _samples(train, target), _samples(validation, target)


def _samples(frame: pl.DataFrame, target: str) -> Samples:
    return Samples(
        inputs=scaled_inputs(frame),
        labels=frame[target].to_numpy().astype(np.float32),
        sessions=frame["trade_date"].n_unique(),
    )
