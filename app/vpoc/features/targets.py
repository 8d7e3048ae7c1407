"""Targets: what came after the as-of time of a row; 1, 0, or NaN where it is not known or not asked."""

import numpy as np

from vpoc.data.bars import Flags, Floats, Ints

HORIZON = 30
"""Bars of RTH that up_30 looks ahead."""
TARGETS = {"bar": ("up_30", "prior_vpoc_touched"), "session": ("next_up", "next_vpoc_touched")}
"""Target columns by kind of row."""
DEFAULT_TARGET = {"bar": "up_30", "session": "next_vpoc_touched"}


def up_30(close: Ints) -> Floats:
    """Whether the close 30 bars later is above this one, for the RTH bars [bars] of one session; NaN near the end."""
    target = np.full(len(close), np.nan)
    target[:-HORIZON] = close[HORIZON:] > close[:-HORIZON]
    return target


def touched_later(low: Ints, high: Ints, price: int, *, session_over: bool) -> Floats:
    """Whether a later bar of the session holds `price`, for its RTH bars [bars].

    NaN from the first touch on, and while the session is not over and no touch has come.
    """
    touch = (low <= price) & (price <= high)
    target = np.full(len(low), np.nan)
    if touch.any():
        target[: int(touch.argmax())] = 1
    elif session_over:
        target[:] = 0
    return target


def next_up(open_: Ints, close: Ints) -> Floats:
    """Whether the next session closes above its open, per session [sessions]; NaN for the last."""
    return _of_next(close > open_)


def next_touched(vpoc: Ints, low: Ints, high: Ints) -> Floats:
    """Whether the RTH range of the next session holds this session's VPOC [sessions]; NaN for the last."""
    return _of_next((low <= np.roll(vpoc, 1)) & (np.roll(vpoc, 1) <= high))


def _of_next(happened: Flags) -> Floats:
    return np.append(happened[1:].astype(np.float64), np.nan)
