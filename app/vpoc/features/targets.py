"""Targets: what came after the as-of time of a row; NaN if it is unknown or the question does not apply."""

from typing import TYPE_CHECKING

import numpy as np

from vpoc.arrays import Flags, Floats, Ints
from vpoc.errors import UserError

if TYPE_CHECKING:
    # Not imported at run time, because stored features need no profiles.
    from vpoc.features.session_facts import SessionFacts

HORIZON = 30
"""Number of RTH bars that up_30 looks ahead."""
TARGETS = {"bar": ("up_30", "prior_vpoc_touched"), "session": ("next_up", "next_vpoc_touched")}
"""Targets that are 1 or 0, by kind of row, which the networks predict."""
SIZE_TARGETS = {"bar": ("move_30", "label_weight"), "session": ("next_vpoc_move",)}
"""Other target columns: sizes, in ticks, and the average uniqueness of a label."""
DEFAULT_TARGET = {"bar": "up_30", "session": "next_vpoc_touched"}


def target_for(rows: str, asked: str | None) -> str:
    """The target `asked` for, by default the usual one of these `rows`; UserError where they have no such."""
    target = asked or DEFAULT_TARGET[rows]
    if target not in TARGETS[rows]:
        raise UserError(f"--target {target} is not known for --rows {rows}; choose one of {', '.join(TARGETS[rows])}")
    return target


def move_30(close: Ints) -> Floats:
    """Return how far, in ticks, the close 30 bars later is above this one, for the RTH bars [bars] of one session.

    NaN if the session ends before.
    """
    target = np.full(len(close), np.nan)
    target[:-HORIZON] = close[HORIZON:] - close[:-HORIZON]
    return target


def label_weight(move: Floats) -> Floats:
    """Average uniqueness of each label of the session [bars] (Lopez de Prado 2018, 4.4); NaN without a label.

    The mean, over the 30 bars that a label looks at, of 1 / the number of labels that look at that bar: 1/30 in
    mid-session.
    """
    labelled = np.concatenate([[0], np.cumsum(~np.isnan(move))])
    bar = np.arange(len(move))
    looking = labelled[bar] - labelled[np.maximum(bar - HORIZON, 0)]
    shares = np.concatenate([[0.0], np.cumsum(1 / np.maximum(looking, 1))])
    last = np.minimum(bar + HORIZON, len(move) - 1)
    return np.where(np.isnan(move), np.nan, (shares[last + 1] - shares[bar + 1]) / HORIZON)


def touched_later(low: Ints, high: Ints, price: int, *, session_over: bool) -> Floats:
    """Return for each RTH bar [bars] of a session whether a later bar's range has `price` in it.

    NaN from the first touch on, and if the session is not over and has no touch yet.
    """
    touch = (low <= price) & (price <= high)
    target = np.full(len(low), np.nan)
    if touch.any():
        target[: int(touch.argmax())] = 1
    elif session_over:
        target[:] = 0
    return target


def session_targets(days: "SessionFacts", rolls: Ints, t: Ints, *, at_open: bool) -> dict[str, Floats]:
    """Return the targets of session rows `t` [rows], by name.

    They are NaN unless the next session is complete and of the same contract.
    """
    following = np.minimum(t + 1, len(days) - 1)
    number = days.sessions.number
    known = (number[following] == number[t] + 1) & days.sessions.complete[following] & (rolls[following] == rolls[t])
    vpoc = days.profile.levels.vpoc
    touched = (days.low[following] <= vpoc[t]) & (vpoc[t] <= days.high[following])
    origin = days.open[following] if at_open else days.close[t]
    return {
        "next_up": _where(known, days.close[following] > days.open[following]),
        "next_vpoc_touched": _where(known, touched),
        "next_vpoc_move": _where(known, vpoc[following] - origin),
    }


def _where(known: Flags, values: Flags | Ints) -> Floats:
    return np.where(known, values.astype(np.float64), np.nan)
