"""The forecast of the session to come, and the quality of predictions on sessions that a model has not seen."""

from typing import TYPE_CHECKING

import numpy as np

from vpoc.evaluation.bootstrap import FEWEST_RUNS
from vpoc.evaluation.scores import log_losses, weighted_mean
from vpoc.training.inputs.samples import labels_of

if TYPE_CHECKING:
    import polars as pl


def unseen_in_words(found: "pl.DataFrame", frame: "pl.DataFrame", target: str) -> str:
    """Compare predictions with the labels of sessions on which the model was neither trained nor validated.

    `found`: the predictions for the last rows of `frame`, which has the targets. Empty if no such session has labels
    yet.
    """
    window = frame.height - found.height + 1
    came = labels_of(frame, target, window)
    predicted = found[came.ends - (window - 1)]
    unseen = ~predicted["in_training"].fill_null(value=True).to_numpy()
    if not unseen.any():
        return ""
    labels, weights = (values[unseen].astype(np.float64) for values in (came.labels, came.weights))
    probability = predicted["probability"].to_numpy()[unseen]
    rate = weighted_mean(labels, weights)
    loss = weighted_mean(log_losses(labels, probability), weights)
    constant = weighted_mean(log_losses(labels, np.full(len(labels), rate)), weights)
    sessions, rows = len(np.unique(came.dates[unseen])), len(labels)
    what = "better" if loss < constant else "no better"
    if sessions < FEWEST_RUNS:
        what += f", but fewer than {FEWEST_RUNS} sessions show nothing"
    elif loss < constant:
        what += ", whether by luck `vpoc evaluate` says"
    return (
        f"on sessions that it has not seen ({sessions}, with {rows} known outcomes): log-loss {loss:.4f}; "
        f"always answering their own rate, {rate:.3f}, has {constant:.4f}: {what}"
    )


def forecast_in_words(found: "pl.DataFrame", frame: "pl.DataFrame", target: str) -> str:
    """Return the forecast of the session after the last row of `frame`, whose rows are sessions.

    Empty if its outcome is known.
    """
    if frame[target][-1] is not None:
        return ""
    date, probability = found["trade_date"][-1], found["probability"][-1]
    return f"forecast of the session after {date}: {target} with probability {probability:.3f}"
