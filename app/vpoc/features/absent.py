"""Features that a row cannot have, because the file has no bars at the time of the day that they are about."""

import numpy as np

from vpoc.arrays import Flags, Ints
from vpoc.features.session_facts import SessionFacts

OVERNIGHT = ("on_vol_share", "on_range_frac")
"""Features of the bars before 09:30."""
Absent = dict[str, Flags]
"""By the name of a feature, the rows [rows] that do not have it."""


def absent_of_sessions(days: SessionFacts, kept: Ints, *, at_open: bool) -> Absent:
    """The features that rows of the sessions `kept` [numbers] do not have, as of 17:00 or of the next open (`at_open`).

    A file without bars after regular hours does not know the last VIX of a session: it is published at 16:15.
    """
    night, evening = _never_at_night(days), _never_in_the_evening(days)
    now = night[kept + 1] if at_open else evening[kept]
    closes = now | evening[kept]
    return {
        **dict.fromkeys(OVERNIGHT, night[kept + at_open]),
        **dict.fromkeys(("vix", "range_to_expected_move"), now),
        **dict.fromkeys(("vix_chg", "vix_z20"), closes),
    }


def absent_of_bars(days: SessionFacts, place: Ints) -> Absent:
    """The features that bar rows of the sessions `place` [numbers] do not have, [sessions]; each bar knows its VIX."""
    return {
        **dict.fromkeys(OVERNIGHT, _never_at_night(days)[place]),
        **dict.fromkeys(("vix_chg", "vix_z20"), _never_in_the_evening(days)[place - 1]),
    }


def _never_at_night(days: SessionFacts) -> Flags:
    """Return whether no session so far [sessions] has bars before regular hours."""
    never: Flags = ~np.logical_or.accumulate(days.sessions.start > days.sessions.first)
    return never


def _never_in_the_evening(days: SessionFacts) -> Flags:
    """Return whether no session so far [sessions] has bars after regular hours."""
    never: Flags = ~np.logical_or.accumulate(days.sessions.end > days.sessions.stop)
    return never
