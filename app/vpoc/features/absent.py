"""Features that a row cannot have, because its session has no bars at the time of the day that they are about.

Bars without volume are bars: what is computed from them is 0, and not missing.
"""

import numpy as np

from vpoc.arrays import Flags, Ints
from vpoc.data.exchange.selection import HISTORY
from vpoc.features.session_facts import SessionFacts

Absent = dict[str, Flags]
"""By the name of a feature, the rows [rows] that do not have it."""


def absent_of_sessions(days: SessionFacts, kept: Ints, *, at_open: bool) -> Absent:
    """The features that rows of the sessions `kept` [numbers] do not have, as of 17:00 or of the next open (`at_open`).

    Without bars after regular hours neither the volume of the day nor the last VIX is known, published at 16:15.
    """
    night, evening = days.sessions.without_overnight, days.sessions.without_evening
    now = night[kept + 1] if at_open else evening[kept]
    return {
        "on_vol_share": now | night[kept + at_open],
        "on_range_frac": night[kept + at_open],
        **dict.fromkeys(("vix", "range_to_expected_move"), now),
        **{name: now | flags for name, flags in _without_closes(days, kept, through=1).items()},
    }


def absent_of_bars(days: SessionFacts, place: Ints) -> Absent:
    """The features that bar rows of the sessions `place` [numbers] do not have, [sessions]; each bar knows its VIX."""
    night = days.sessions.without_overnight[place]
    return {"on_vol_share": night, "on_range_frac": night, **_without_closes(days, place, through=0)}


def _without_closes(days: SessionFacts, t: Ints, *, through: int) -> Absent:
    """Where the VIX of the complete session before `t` is not known, or one of 20, with that of `t` (`through`)."""
    done = np.flatnonzero(days.sessions.complete)
    unknown = days.sessions.without_evening[done]
    before = np.searchsorted(done, t)
    count = np.concatenate([[0], np.cumsum(unknown)])
    stop = before + through
    return {"vix_chg": unknown[before - 1], "vix_z20": count[stop] > count[np.maximum(stop - HISTORY, 0)]}
