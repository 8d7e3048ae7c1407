"""A trained model on new data."""

import numpy as np
import polars as pl
import torch

from vpoc.errors import UserError
from vpoc.features.build import FeatureSet
from vpoc.features.table import NAMES, SCALING
from vpoc.training.artefact import LoadedModel
from vpoc.training.samples import scaled_inputs


def require_match(loaded: LoadedModel, bar_seconds: int) -> None:
    """UserError when the model was trained on other features, scaling or bars than this data would give it."""
    if loaded.features != list(NAMES) or loaded.scaling != SCALING:
        raise UserError(f"{loaded.path}: its features are not those of this version of vpoc; train it again")
    if loaded.bar_seconds != bar_seconds:
        raise UserError(
            f"{loaded.path}: trained on bars of {loaded.bar_seconds} s, the data has bars of {bar_seconds} s; "
            "give data with the same bars"
        )


def predict(loaded: LoadedModel, features: FeatureSet) -> pl.DataFrame:
    """trade_date, ts (bar rows) and the probability that the target is 1, one row per row of `features`.

    UserError with exit code 1 when an answer is not finite.
    """
    with torch.no_grad():
        logits = loaded.model(torch.from_numpy(scaled_inputs(features.frame))).squeeze(1)
    if not torch.isfinite(logits).all():
        raise UserError(f"{loaded.path}: the model's answer is not finite for some rows; train it again", exit_code=1)
    probability = torch.sigmoid(logits).numpy().astype(np.float64)
    stamps = [name for name in ("trade_date", "ts") if name in features.frame.columns]
    return features.frame.select(stamps).with_columns(pl.Series("probability", probability))
