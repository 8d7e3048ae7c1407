"""Tests of profiles against an oracle in plain Python integers, written from the definitions."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from oracle.some_sessions import (
    PRICE,
    a_bar,
    as_bars,
    as_tuples,
    levels_of_rows,
    levels_of_session,
    many_sessions,
    profile_of_session,
)

from vpoc.errors import UserError
from vpoc.profile import moves
from vpoc.profile.levels import find_levels
from vpoc.profile.moves import last_moves
from vpoc.profile.session_profiles import developing_profiles, rth_bars, session_levels, session_profiles

methods = st.sampled_from(["two_row", "one_row"])


@pytest.mark.slow
@settings(max_examples=3 * settings.default.max_examples)
@given(many_sessions, st.integers(1, 6), methods)
def test_sessions_agree_with_the_oracle(sessions, chunk_size, method):
    bars, found = as_bars(sessions)
    levels = session_levels(bars, found, chunk_size, method=method)
    expected = [levels_of_session(session, method=method) for session in sessions]
    assert as_tuples(levels) == expected
    rth = rth_bars(bars, found, "uniform")
    profiles, histogram = session_profiles(rth, method)
    assert as_tuples(profiles.levels) == expected
    for rows, session in zip(histogram.tolist(), sessions, strict=True):
        volumes = list(profile_of_session(session).values())
        assert rows == volumes + [0] * (len(rows) - len(volumes))


@pytest.mark.slow
@settings(max_examples=3 * settings.default.max_examples)
@given(many_sessions, methods)
def test_developing_profiles_agree_with_the_oracle(sessions, method):
    bars, found = as_bars(sessions)
    rth = rth_bars(bars, found, "uniform")
    profiles = developing_profiles(rth, method)
    so_far = [session[: i + 1] for session in sessions for i in range(len(session))]
    assert as_tuples(profiles.levels) == [levels_of_session(part, method=method) for part in so_far]
    assert profiles.low.tolist() == [min(bar[0] for bar in part) for part in so_far]
    assert profiles.high.tolist() == [max(bar[1] for bar in part) for part in so_far]


@st.composite
def a_busy_bar(draw):
    """Return one of a few similar bars, so that the VPOC moves often, over a range with more ticks than rivals."""
    low = PRICE + draw(st.sampled_from([0, 1, 2, 20, 40, 60]))
    high = low + draw(st.sampled_from([0, 0, 1, 5]))
    return low, high, draw(st.sampled_from([low, high])), draw(st.integers(0, 4))


def print_at(tick, volume):
    return PRICE + tick, PRICE + tick, PRICE + tick, volume


TIED_WITH_NO_RIVAL = [
    (PRICE, PRICE + 5, PRICE, 0),
    print_at(0, 5),
    print_at(5, 5),
    print_at(3, 5),
    (PRICE + 3, PRICE + 7, PRICE + 3, 0),
    print_at(5, 5),
    print_at(0, 2),
]
"""The VPOC moves away from 3, which is no rival of 5 at the end but had the same volume before."""


def last_move_of(session):
    """Return the bar, from 0, at which the VPOC of the bars so far last changed."""
    vpoc = [levels_of_session(session[: i + 1])[0] for i in range(len(session))]
    return max((i for i in range(1, len(vpoc)) if vpoc[i] != vpoc[i - 1]), default=0)


@pytest.mark.slow
@settings(max_examples=3 * settings.default.max_examples)
@given(
    st.lists(st.lists(st.one_of(a_busy_bar(), a_bar()), min_size=1, max_size=25), min_size=1, max_size=4),
    st.sampled_from([1, 3, 32]),
)
@example([TIED_WITH_NO_RIVAL], 1)
def test_the_last_move_of_the_developing_vpoc_is_found(sessions, rivals):
    """The result does not depend on how many ticks count as rivals of the VPOC."""
    bars, found = as_bars(sessions)
    rth = rth_bars(bars, found, "uniform")
    profiles, histogram = session_profiles(rth, "two_row")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moves, "RIVALS", rivals)
        moved = last_moves(rth, histogram, profiles.levels.vpoc - rth.base)
    assert moved.tolist() == [last_move_of(session) for session in sessions]


def test_the_share_of_an_enormous_volume_does_not_overflow():
    rows = [2**60, 2**61, 2**60, 2**60]
    one = np.zeros(1, dtype=np.int64)
    assert as_tuples(find_levels(np.array([rows]), one, one + 3, one)) == [levels_of_rows(dict(enumerate(rows)))]


def test_no_volume_at_all():
    bars, found = as_bars([[(PRICE, PRICE + 4, PRICE, 0)]])
    assert as_tuples(session_levels(bars, found, 1)) == [(PRICE + 2, PRICE + 2, PRICE + 2, 0, 0, 0)]


def test_a_wrong_print_is_refused_before_it_fills_the_memory():
    bars, found = as_bars([[(PRICE, PRICE, PRICE, 1), (PRICE * 10, PRICE * 10, PRICE * 10, 1)]])
    with pytest.raises(UserError, match="high more than half above its low"):
        session_levels(bars, found, 1)
