"""Tests of profiles, levels, TPO and nodes against the oracle: synthetic sessions, exactly equal integers."""

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from oracle import profile as vp
from oracle.profile import Bar
from oracle.some_sessions import PRICE, as_tuples, levels_of_rows

from vpoc.profile.levels import find_levels
from vpoc.profile.nodes import nodes_of
from vpoc.profile.profile import Profile, levels_of, profile_of
from vpoc.profile.tpo import session_tpo

PLACEMENTS = ("uniform", "close", "typical", "ticks")
METHODS = ("two_row", "one_row")

# Small volumes make ties and empty rows; the sum of the largest ones is still below 2^63.
volumes = st.one_of(st.integers(0, 3), st.integers(0, 20), st.integers(0, 2**53), st.just(2**53), st.just(0))


@st.composite
def a_bar(draw):
    low = PRICE + draw(st.one_of(st.integers(-15, 15), st.integers(-80, 80)))
    high = low + draw(st.one_of(st.just(0), st.integers(0, 12), st.integers(0, 100)))
    price = st.integers(low, high)
    return Bar(0, draw(price), high, low, draw(price), draw(volumes))


@st.composite
def a_trade(draw):
    price = PRICE + draw(st.integers(-15, 15))
    return Bar(0, price, price, price, price, draw(volumes))


sessions = st.one_of(
    st.lists(a_bar(), min_size=1, max_size=8),
    st.lists(a_trade(), min_size=1, max_size=12),
    # A session whose bars all have one tick.
    st.lists(volumes, min_size=1, max_size=4).map(lambda sizes: [Bar(0, *[PRICE] * 4, size) for size in sizes]),
)
row_sizes = st.sampled_from([1, 1, 2, 3, 4, 7, 200])
# Flat stretches: plateaus, deep valleys, ties and empty rows.
blocks = st.lists(st.tuples(st.sampled_from([0, 0, 1, 2, 5, 9, 10, 2**53]), st.integers(1, 14)), min_size=1, max_size=9)
# Hills with wide, shallow valleys between them give high and low volume nodes.
hills = st.lists(
    st.tuples(st.integers(5, 12), st.integers(1, 12), st.integers(0, 2), st.integers(6, 20)), min_size=2, max_size=4
)
histograms = st.one_of(
    st.lists(st.integers(0, 6), min_size=1, max_size=12),
    st.lists(volumes, min_size=1, max_size=8),
    hills.map(lambda parts: [size for a, n, b, m in parts for size in [a] * n + [b] * m]),
    blocks.map(lambda parts: [height for height, width in parts for _ in range(width)]),
)


def columns(bars, *names):
    return [np.array([getattr(bar, name) for bar in bars], dtype=np.int64) for name in names]


def as_dict(profile):
    """Return the volume by row number, in the oracle's form."""
    assert profile.volume.dtype == np.int64
    assert profile.base % profile.row_ticks == 0
    return {profile.base // profile.row_ticks + i: volume for i, volume in enumerate(profile.volume.tolist())}


@settings(max_examples=300, deadline=None)
@given(sessions, st.sampled_from(PLACEMENTS), row_sizes)
def test_profiles(bars, placement, size):
    profile = profile_of(*columns(bars, "low", "high", "close", "volume"), placement=placement, row_ticks=size)
    assert as_dict(profile) == vp.profile(bars, placement, size)
    assert int(profile.volume.sum()) == sum(bar.volume for bar in bars), "totals are conserved to the contract"


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(sessions, st.sampled_from(PLACEMENTS), st.sampled_from(METHODS), row_sizes)
def test_levels_of_profiles(bars, placement, method, size):
    profile = profile_of(*columns(bars, "low", "high", "close", "volume"), placement=placement, row_ticks=size)
    assert as_tuples(levels_of(profile, method)) == [levels_of_rows(vp.profile(bars, placement, size), method, size)]


@settings(max_examples=200, deadline=None)
@given(histograms, st.sampled_from(METHODS))
def test_levels_of_any_histogram(volume, method):
    rows = {PRICE + i: one for i, one in enumerate(volume)}
    event(f"ties at the peak: {volume.count(max(volume)) > 1}")
    assert as_tuples(levels_of(Profile(PRICE, np.array(volume)), method)) == [levels_of_rows(rows, method)]


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(histograms, min_size=1, max_size=6), st.integers(0, 3), st.integers(0, 3), st.sampled_from(METHODS))
def test_ragged_profiles_in_one_padded_matrix(profiles, before, after, method):
    """Each profile of another width lies at its own place in the matrix, and the padding counts as no rows."""
    width = before + max(len(volume) for volume in profiles) + after
    matrix = np.zeros((len(profiles), width), dtype=np.int64)
    first = np.array([(before * (i + 1)) % (width - len(volume) + 1) for i, volume in enumerate(profiles)])
    for row, start, volume in zip(matrix, first, profiles, strict=True):
        row[start : start + len(volume)] = volume
    last = first + np.array([len(volume) for volume in profiles]) - 1
    base = PRICE + 1_000 * np.arange(len(profiles))
    levels = find_levels(matrix, first, last, base, method)
    assert as_tuples(levels) == [
        levels_of_rows({b + f + i: one for i, one in enumerate(volume)}, method)
        for b, f, volume in zip(base.tolist(), first.tolist(), profiles, strict=True)
    ]


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(a_bar(), st.integers(0, 3)), min_size=1, max_size=10), row_sizes, st.sampled_from(METHODS))
def test_tpo(found, size, method):
    bars, brackets = [bar for bar, _ in found], sorted(bracket for _, bracket in found)
    low, high = (prices // size for prices in columns(bars, "low", "high"))
    base = int(low.min())
    shape = (1, int(high.max()) - base + 1)
    count = session_tpo(low - base, high - base, np.array(brackets), np.zeros(len(low), dtype=np.int64), shape)
    profile = Profile(base * size, count[0], size)
    rows = vp.tpo(bars, brackets, size)
    assert as_dict(profile) == rows
    assert as_tuples(levels_of(profile, method)) == [levels_of_rows(rows, method, size)]


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(histograms)
def test_nodes(volume):
    high, low = vp.nodes(dict(enumerate(volume)))
    event(f"low volume nodes: {len(low)}")
    found_high, found_low = nodes_of(np.array(volume))
    assert ([*found_high], [*found_low]) == (high, low)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_one_bar_of_one_tick(placement, method):
    one = np.array([PRICE])
    profile = profile_of(one, one, one, np.array([7]), placement=placement)
    assert as_dict(profile) == {PRICE: 7}
    assert as_tuples(levels_of(profile, method)) == [(PRICE, PRICE, PRICE, 7, 7, 7)]
