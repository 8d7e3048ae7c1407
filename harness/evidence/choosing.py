"""Computes which epoch a training had to keep, and whether it had to stop early, from its reported losses. Pure.

The app decides by the same rules (`vpoc.training.keeping`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from harness.evidence.files.app_files import Training


def kept_epoch(told: Training, options: Mapping[str, Any]) -> int:
    """Return the epoch, from 1, whose weights the model has: with `keep: best` the first with the lowest inner loss."""
    inner = _inner_losses(told)
    if options.get("keep") != "best" or not inner:
        return told.epochs_done
    return min(range(len(inner)), key=inner.__getitem__) + 1


def may_end_early(told: Training, options: Mapping[str, Any]) -> bool:
    """Return whether the last `patience` epochs were no better than one before, and no earlier stop was allowed."""
    patience, inner = int(options.get("patience", 0)), _inner_losses(told)
    return 0 < patience < len(inner) and not _ends(inner[:-1], patience) and _ends(inner, patience)


def _ends(inner: Sequence[float], patience: int) -> bool:
    return len(inner) - 1 - min(range(len(inner)), key=inner.__getitem__) >= patience


def _inner_losses(told: Training) -> list[float]:
    return [epoch.inner for epoch in told.epoch_losses if epoch.inner is not None]
