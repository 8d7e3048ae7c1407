"""Predictions of a trained model on new data."""

from collections.abc import Collection

import numpy as np
import polars as pl
import torch

from vpoc.device import require_device
from vpoc.errors import UserError
from vpoc.features.feature_set import FeatureSet
from vpoc.features.market import Market
from vpoc.features.table import NAMES
from vpoc.models.by_name import window_of
from vpoc.terminal import watched
from vpoc.training.inputs.samples import inputs_of
from vpoc.training.inputs.scaling import outside_words
from vpoc.training.model_file.artefact import LoadedModel
from vpoc.training.precision import half_of

ROWS_AT_A_TIME = 4096
WINDOWS_AT_A_TIME = 64
"""Windows at a time on a CPU, where more exceed its cache: 4,096 take a third longer."""


def require_match(loaded: LoadedModel, bar_seconds: int, market: Market, others: Collection[str] = ()) -> None:
    """Raise UserError when the model was trained on other features than this version computes.

    The same error is raised when it was trained on another symbol, tick or bar length than the data has, unless
    `others` names that property. A property that the model or the data lacks is not compared.
    """
    if loaded.features != list(NAMES):
        raise UserError(f"{loaded.path}: its features are not those of this version of vpoc; train it again")
    known = loaded.market
    for name, trained, given in (
        ("bars", _bars(loaded.bar_seconds), _bars(bar_seconds)),
        ("symbol", known.symbol, market.symbol),
        ("tick", f"a tick of {known.tick:g}", f"a tick of {market.tick:g}"),
    ):
        if trained != given and trained and given and name not in others:
            raise UserError(
                f"{loaded.path}: trained on {trained}, the data has {given}; give data with the same, or say "
                f"--other {name}"
            )


def _bars(seconds: int) -> str:
    return f"bars of {seconds} s" if seconds else "single trades"


def unnamed_symbol(loaded: LoadedModel, market: Market) -> str:
    """Return a sentence that symbols are not compared because the model or the data names none; "" if both name one."""
    if loaded.market.symbol and market.symbol:
        return ""
    trained = f"on {loaded.market.symbol}" if loaded.market.symbol else "on data that names none"
    given = f"is of {market.symbol}" if market.symbol else "names no symbol"
    return f"the data {given}, and the model was trained {trained}: whether they belong together was not checked"


def predict(
    loaded: LoadedModel, features: FeatureSet, device: str = "cpu", *, half: bool = False
) -> tuple[pl.DataFrame, list[str]]:
    """Predict, for each row of `features`, the probability that the target is 1.

    Returns a frame with trade_date, ts (bar rows) and the probability, and the names, each with its share, of the
    features with at least 1 % of values outside the range that the model was trained on.

    The first rows have no prediction if the model needs rows before them. The model works on `device`, some rows at a
    time; with `half` in a 16-bit type.
    UserError with exit code 1 when an output is not finite.
    """
    window = window_of(loaded.kind)
    inputs = inputs_of(features.frame)
    outside = outside_words(loaded.scaling, inputs, NAMES)
    rows = torch.from_numpy(loaded.scaling.apply(inputs))
    if len(rows) < window:
        raise UserError(f"{len(rows)} rows, and the model looks at {window} at a time; give more data")
    windows = rows if window == 1 else rows.unfold(0, window, 1).transpose(1, 2)
    where = require_device(device)
    model = loaded.model.to(where)
    parts = torch.split(windows, WINDOWS_AT_A_TIME if window > 1 and where.type == "cpu" else ROWS_AT_A_TIME)
    with torch.inference_mode(), torch.autocast(where.type, dtype=half_of(where), enabled=half):
        answers = (model.answer(part.to(where)).squeeze(1).float().cpu() for part in parts)
        done = list(watched(answers, "rows", len(parts)))
    logits = torch.cat(done)
    if not torch.isfinite(logits).all():
        raise UserError(f"{loaded.path}: the model's answer is not finite for some rows; train it again", exit_code=1)
    probability = torch.sigmoid(logits).numpy().astype(np.float64)
    stamps = [name for name in ("trade_date", "ts") if name in features.frame.columns]
    found = features.frame[window - 1 :].select(stamps).with_columns(pl.Series("probability", probability))
    return found, outside
