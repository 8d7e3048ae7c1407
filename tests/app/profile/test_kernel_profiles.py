"""Tests of the compiled kernel against numpy: every fact of every profile is bitwise identical."""

from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vpoc import kernel
from vpoc.data.bars import Bars
from vpoc.data.exchange.sessions import Sessions, split_sessions
from vpoc.data.load import load_bars
from vpoc.features.look_back import naked
from vpoc.profile import kernel_profiles as compiled
from vpoc.profile.histogram import histograms
from vpoc.profile.nodes import smooth
from vpoc.profile.rth import developing_facts, session_rth_facts
from vpoc.profile.session_profiles import rth_bars, session_levels

PRICE = 16_000
PLACEMENTS = ("uniform", "close", "typical")
METHODS = ("two_row", "one_row")

pytestmark = pytest.mark.skipif(kernel.library() is None, reason="there is no compiled part here, or it is off")


def assert_same(found, wanted, name=""):
    if is_dataclass(found):
        for field in fields(found):
            assert_same(getattr(found, field.name), getattr(wanted, field.name), f"{name}.{field.name}")
    else:
        assert found.dtype == wanted.dtype, name
        assert found.tobytes() == wanted.tobytes(), f"{name}: {found} is not {wanted}"


def both(monkeypatch, work):
    """Return the results of `work` with the compiled kernel and with numpy."""
    found = work()
    with monkeypatch.context() as without:
        without.setattr(compiled, "present", lambda: False)
        return found, work()


def check(monkeypatch, bars, sessions, placement, method):
    rth = rth_bars(bars, sessions, placement)
    told = bars, sessions, rth, placement, method
    (found, rows), (wanted, wanted_rows) = both(monkeypatch, lambda: session_rth_facts(*told))
    assert_same(found, wanted)
    for row, wanted_row, width in zip(rows, wanted_rows, rth.width, strict=True):
        assert row[:width].tolist() == wanted_row[:width].tolist()
    assert_same(*both(monkeypatch, lambda: developing_facts(*told)))
    assert_same(*both(monkeypatch, lambda: session_levels(bars, sessions, 3, placement, method)))


@st.composite
def a_bar(draw, far):
    low = PRICE + draw(st.integers(-far, far))
    high = low + draw(st.one_of(st.integers(0, 6), st.integers(0, far)))
    # Small volumes make ties, empty rows and plateaus; large ones need 64 bits.
    volume = draw(st.one_of(st.integers(0, 3), st.integers(0, 200), st.integers(0, 2**53)))
    inside = st.integers(low, high)
    return draw(st.integers(0, 4)), draw(inside), high, low, draw(inside), volume


@st.composite
def some_sessions(draw):
    """Return columns of bars that follow each other by 0 to 4 brackets, and the number of bars of each session."""
    far = draw(st.sampled_from([4, 20, 300]))
    return draw(st.lists(st.lists(a_bar(far), min_size=1, max_size=14), min_size=1, max_size=4))


def made(sessions):
    rows = np.array([bar for session in sessions for bar in session], dtype=np.int64)
    sizes = np.array([len(session) for session in sessions])
    stop = np.cumsum(sizes)
    ts = np.cumsum(rows[:, 0]) * 900
    names = ("open", "high", "low", "close", "volume")
    columns = {name: np.ascontiguousarray(rows[:, place]) for place, name in enumerate(names, 1)}
    no = np.zeros(len(rows), dtype=np.int64)
    facts = {"path": "synthetic", "sha256": "", "symbols": (), "bar_seconds": 60, "rows_in_file": len(rows)}
    bars = Bars(ts=ts, vix=no * np.nan, off_grid=no > 0, contract=no, **columns, **facts)
    place = np.arange(len(sessions))
    return bars, Sessions(
        date=place,
        number=place,
        close=np.full(len(sessions), 960),
        open_utc=ts[stop - sizes],
        close_utc=ts[stop - 1] + 60,
        first=stop - sizes,
        start=stop - sizes,
        stop=stop,
        end=stop,
        expected=sizes,
        found=sizes,
        complete=place >= 0,
        contract=np.zeros(len(sessions), dtype=np.int64),
        mixed=place < 0,
        in_progress=False,
    )


@pytest.mark.slow
@settings(max_examples=3 * settings.default.max_examples)
@given(some_sessions(), st.sampled_from(PLACEMENTS), st.sampled_from(METHODS), st.integers(1, 3))
def test_any_bars(sessions, placement, method, threads):
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(compiled, "FEW", 2)
        monkeypatch.setattr(compiled, "cores", lambda: threads)
        check(monkeypatch, *made(sessions), placement, method)


def test_nodes_that_are_just_tall_or_deep_enough(monkeypatch):
    """The smoothed volumes are exactly half and exactly a quarter of the peak."""
    rng = np.random.default_rng(5)
    sessions = []
    for _ in range(300):
        prices = [PRICE, PRICE + 26, *(PRICE + rng.integers(0, 27, 6)).tolist()]
        sessions.append([(0, price, price, price, price, int(rng.integers(1, 9))) for price in prices])
    bars, found = made(sessions)
    check(monkeypatch, bars, found, "close", "two_row")
    rth = rth_bars(bars, found, "close")
    rows = histograms(rth.placed, rth.session, (len(sessions), 27))
    smoothed = smooth(np.pad(rows, ((0, 0), (4, 4))).reshape(-1)).reshape(len(rows), -1)
    peak = smoothed.max(axis=1, keepdims=True)
    inner, left, right = smoothed[:, 5:-5], smoothed[:, 4:-6], smoothed[:, 6:-4]
    assert ((inner < left) & (inner < right) & (4 * inner == peak)).any()
    assert ((inner > left) & (inner > right) & (2 * inner == peak)).any()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("data", ["merged", "summer"])
def test_sessions_of_a_file(request, monkeypatch, data, placement, method):
    bars = load_bars(request.getfixturevalue(data))
    sessions = split_sessions(bars)
    check(monkeypatch, bars, sessions.take(sessions.stop > sessions.start), placement, method)


@pytest.mark.parametrize(("name", "value"), [("close", PRICE - 50), ("close", PRICE + 50), ("low", PRICE + 1)])
def test_a_bar_that_cannot_be_is_no_crash(name, value):
    bars, sessions = made([[(0, PRICE, PRICE, PRICE, PRICE, 5)] * 3])
    rth = rth_bars(bars, sessions, "close")
    getattr(bars, name)[1] = value
    with pytest.raises(ValueError, match="a price outside"):
        session_rth_facts(bars, sessions, rth, "close", "two_row")


levels = st.lists(st.integers(-3, 3), min_size=4, max_size=4)


@settings(max_examples=2 * settings.default.max_examples)
@given(st.lists(st.tuples(levels, st.lists(st.booleans(), min_size=4, max_size=4), st.integers(1, 3)), min_size=1))
def test_naked_levels(sessions):
    level, alive = (np.array([session[place] for session in sessions]) for place in (0, 1))
    size = np.array([session[2] for session in sessions])
    age = np.broadcast_to(np.arange(1, 5), level.shape)
    price = np.resize([0, 1, -1, 3], int(size.sum()))
    low, high = np.minimum(price, np.resize([0, -2], len(price))), np.maximum(price, 1)
    found = compiled.naked_at_bars(size, low, high, price, level, age, alive)
    level, age, alive = (np.repeat(values, size, axis=0) for values in (level, age, alive))
    wanted = naked(level, age, alive & ((level < low[:, None]) | (level > high[:, None])), price)
    for row, name in zip(found, ("above", "below", "up", "down", "age"), strict=True):
        assert row.tolist() == getattr(wanted, name).tolist(), name


def test_bars_that_are_no_rows_of_their_own(merged, monkeypatch):
    """Columns of other types, and columns with gaps in memory, give the same levels."""
    bars = load_bars(merged)
    sessions = split_sessions(bars).take(slice(3, 9))
    wide = replace(bars, high=np.repeat(bars.high, 2)[::2], volume=bars.volume.astype(np.int32))
    wanted = session_levels(bars, sessions, 4)
    assert_same(session_levels(wide, sessions, 4), wanted)
