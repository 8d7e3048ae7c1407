"""Decides which epoch of a training is kept and when it ends, by the losses on its inner samples."""

from collections.abc import Sequence


def best_epoch(losses: Sequence[float]) -> int:
    """Return the epoch, from 1, with the lowest of `losses`, the first of equal ones; ValueError without any."""
    return min(range(len(losses)), key=losses.__getitem__) + 1


def ends_early(losses: Sequence[float], patience: int) -> bool:
    """Return whether the last `patience` epochs (if not 0) were no better than an earlier one."""
    return 0 < patience <= len(losses) - best_epoch(losses) if losses else False
