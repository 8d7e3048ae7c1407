"""Synthetic sessions of bars (low, high, close, volume) in the app's types, and the levels that they should have."""

from dataclasses import fields
from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from oracle import profile as vp

from vpoc.data.bars import Bars
from vpoc.data.exchange.sessions import Sessions
from vpoc.profile.levels import Levels

PRICE = 16_000


def only(cls, rest, **known):
    """Return a `cls` with these fields; all its other fields, which the test does not need, are set to `rest`."""
    return cls(**{field.name: known.get(field.name, rest) for field in fields(cls)})


def as_bars(sessions, between=0):
    """Return the sessions as Bars, with `between` bars outside regular hours before each."""
    outside = (PRICE // 2, PRICE * 2, PRICE, 10**6)
    rows, start, stop = [], [], []
    for session in sessions:
        rows += [outside] * between
        start.append(len(rows))
        rows += session
        stop.append(len(rows))
    low, high, close, volume = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    ts, start, stop = np.arange(len(rows)) * 60, np.array(start), np.array(stop)
    bars = only(Bars, None, path=Path("synthetic"), ts=ts, open=close, low=low, high=high, close=close, volume=volume)
    times = {"open_utc": start * 60, "close_utc": (start + 390) * 60}
    return bars, only(Sessions, np.arange(len(sessions)), start=start, stop=stop, in_progress=False, **times)


def as_tuples(levels):
    return list(zip(*(getattr(levels, field.name).tolist() for field in fields(Levels)), strict=True))


def levels_of_rows(rows, method="two_row", size=1):
    """Return the levels of a profile of the oracle; a row's price is its lowest tick."""
    vpoc, area = vp.vpoc(rows), vp.value_area(rows, method)
    return (vpoc * size, area.high * size, area.low * size, rows[vpoc], area.volume, sum(rows.values()))


def profile_of_session(session, placement="uniform"):
    return vp.profile([vp.Bar(0, close, high, low, close, volume) for low, high, close, volume in session], placement)


def levels_of_session(session, placement="uniform", method="two_row"):
    return levels_of_rows(profile_of_session(session, placement), method)


@st.composite
def a_bar(draw):
    low = PRICE + draw(st.integers(-15, 15))
    high = low + draw(st.integers(0, 12))
    # Small volumes make ties and empty rows; the sum of the largest ones is still below 2^63.
    volume = draw(st.one_of(st.integers(0, 20), st.integers(0, 2**53)))
    return low, high, draw(st.integers(low, high)), volume


many_sessions = st.lists(st.lists(a_bar(), min_size=1, max_size=8), min_size=1, max_size=9)
