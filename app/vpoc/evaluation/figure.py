"""Calibration and log-loss by fold, as a picture."""

from typing import TYPE_CHECKING

from vpoc.evaluation.document import Document
from vpoc.evaluation.verdict import NETWORK
from vpoc.plots.style import (
    CLOSES_COLOUR,
    DOTS_PER_INCH,
    INK_COLOUR,
    NODE_COLOUR,
    OUTSIDE_COLOUR,
    UP_COLOUR,
    VPOC_COLOUR,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MODEL_COLOURS = {
    "constant": CLOSES_COLOUR,
    "conditional": UP_COLOUR,
    "logistic": NODE_COLOUR,
    "linear": INK_COLOUR,
    NETWORK: VPOC_COLOUR,
}
CALIBRATED = ("conditional", "logistic", "linear", NETWORK)


def draw_evaluation(document: Document) -> "Figure":
    """Left: observed rate against predicted probability, by model. Right: log-loss of each test block and held out."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(12.2, 5.6), dpi=DOTS_PER_INCH, layout="constrained")
    outcome = document["verdict"]["outcome"].replace("-", " ")
    figure.suptitle(f"{document['target']}, {document['rows']} rows: {outcome}", fontweight="bold")
    left, right = figure.subplots(1, 2)
    _calibration(left, document)
    _folds(right, document)
    return figure


def _calibration(axes: "Axes", document: Document) -> None:
    axes.axline((0, 0), slope=1, color=OUTSIDE_COLOUR, zorder=1)
    ends = []
    for name in CALIBRATED:
        bins = document["pooled"]["models"][name]["calibration"]["bins"]
        said, came = [b["predicted"] for b in bins], [b["observed"]["value"] for b in bins]
        axes.plot(said, came, "o-", color=MODEL_COLOURS[name], label=name, ms=4, lw=1.2, gid=f"calibration-{name}")
        ends += [*said, *came]
        if name == NETWORK:
            low, high = [b["observed"]["low"] for b in bins], [b["observed"]["high"] for b in bins]
            axes.vlines(said, low, high, color=MODEL_COLOURS[name], lw=1, alpha=0.6)
            ends += [*low, *high]
    room = max(0.02, 0.05 * (max(ends) - min(ends)))
    limits = max(0.0, min(ends) - room), min(1.0, max(ends) + room)
    axes.set(xlim=limits, ylim=limits, xlabel="predicted probability", ylabel="observed rate")
    axes.set_title("Calibration, pooled test blocks", fontsize="medium")
    axes.legend(frameon=False)


def _folds(axes: "Axes", document: Document) -> None:
    folds = document["folds"]
    ends = [fold["tested"]["last_date"] for fold in folds]
    for name, colour in MODEL_COLOURS.items():
        losses = [fold["models"][name]["log_loss"] for fold in folds]
        axes.plot(range(len(folds)), losses, "o-", color=colour, label=name, ms=4, lw=1.2, gid=f"folds-{name}")
        held_out = document["held_out"]["models"][name]["log_loss"]["value"]
        axes.plot([len(folds)], [held_out], "D", color=colour, ms=6, mfc="none", gid=f"held-out-{name}")
    axes.set_xticks(range(len(folds) + 1), [*ends, "held out"], rotation=30, ha="right", fontsize="small")
    axes.axvline(len(folds) - 0.5, color=OUTSIDE_COLOUR, lw=1)
    axes.set(ylabel="log-loss")
    axes.set_title("Log-loss by test block (last date)", fontsize="medium")
    axes.legend(frameon=False)
