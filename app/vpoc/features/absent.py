"""Features that a row cannot have, because its session has no bars at the time of day that they describe.

Bars without volume are bars: features computed from them are 0, not missing.
"""

import numpy as np

from vpoc.arrays import Flags, Ints
from vpoc.data.exchange.selection import some_unknown
from vpoc.features.session_facts import SessionFacts

Absent = dict[str, Flags]
"""Flags [rows] of the rows without a feature, by the name of the feature."""


def absent_of_sessions(days: SessionFacts, kept: Ints, *, at_open: bool) -> Absent:
    """Return the features that rows of the sessions `kept` [numbers] lack, as of 17:00 or of the next open (`at_open`).

    Without bars after regular hours neither the volume of the day nor the last VIX, published at 16:15, is known.
    """
    night, evening = days.sessions.without_overnight, days.sessions.without_evening
    now = night[kept + 1] if at_open else evening[kept]
    return {
        "on_vol_share": now | night[kept + at_open],
        "on_range_frac": night[kept + at_open],
        **dict.fromkeys(("vix", "range_to_expected_move"), now),
        **{name: now | flags for name, flags in _without_closes(days, kept, through=True).items()},
    }


def absent_of_bars(days: SessionFacts, place: Ints) -> Absent:
    """Return the features that bar rows of the sessions `place` [numbers] lack, [sessions]; each bar knows its VIX."""
    night = days.sessions.without_overnight[place]
    return {"on_vol_share": night, "on_range_frac": night, **_without_closes(days, place, through=False)}


def _without_closes(days: SessionFacts, t: Ints, *, through: bool) -> Absent:
    """Return where the VIX is missing: before `t`, and in any of 20 sessions.

    Only complete sessions count. The 20 sessions end before `t`, or with `t` when `through` is 1.
    """
    complete, unknown = days.sessions.complete, days.sessions.without_evening
    done = np.flatnonzero(complete)
    before = done[np.searchsorted(done, t) - 1]
    return {"vix_chg": unknown[before], "vix_z20": some_unknown(complete, unknown, through=through)[t]}
