"""Tests of every device path against the CPU's levels and against an oracle in plain Python integers."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle.some_sessions import PRICE, as_bars, as_tuples, levels_of_session, many_sessions, only

from vpoc.data.exchange.sessions import Sessions
from vpoc.errors import UserError
from vpoc.profile.device import paths
from vpoc.profile.device.paths import PATHS, device_levels
from vpoc.profile.facts import concatenated
from vpoc.profile.levels import Levels
from vpoc.profile.session_profiles import session_levels

CHUNK_SIZES = (1, 2, 7, 1000)
PLACEMENTS = ("uniform", "typical", "close", "ticks")
VALUE_AREAS = ("two_row", "one_row")
needs_gpu = pytest.mark.gpu
DEVICES = ("cpu", pytest.param("cuda", marks=needs_gpu))


def computed(sessions, path, chunk_size, *, device="cpu", **options):
    bars, found = as_bars(sessions, between=2)
    parts = list(device_levels(bars, found, path, device, chunk_size, **options))
    assert [len(part.vpoc) for part in parts] == [len(sessions[i : i + chunk_size]) for i in _starts(found, chunk_size)]
    levels = concatenated(parts)
    assert all(getattr(levels, field.name).dtype == np.int64 for field in fields(Levels))
    return as_tuples(levels)


def _starts(found, chunk_size):
    return range(0, len(found.start), chunk_size)


@pytest.mark.slow
@settings(max_examples=2 * settings.default.max_examples)
@given(many_sessions, st.sampled_from(PATHS), st.sampled_from(CHUNK_SIZES), st.data())
def test_agrees_with_the_oracle(sessions, path, chunk_size, data):
    placement, method = data.draw(st.sampled_from(PLACEMENTS)), data.draw(st.sampled_from(VALUE_AREAS))
    expected = [levels_of_session(session, placement, method) for session in sessions]
    assert computed(sessions, path, chunk_size, placement=placement, value_area=method) == expected


def walk(sessions, seed=7):
    """Return sessions of 1 to 60 bars whose ranges differ a lot."""
    random = np.random.default_rng(seed)
    made = []
    for _ in range(sessions):
        price, session = PRICE + int(random.integers(-500, 500)), []
        spread = int(random.choice([0, 2, 9, 60]))
        for _ in range(int(random.choice([1, 2, 60]))):
            price += int(random.integers(-spread, spread + 1))
            low, high = price - int(random.integers(0, spread + 1)), price + int(random.integers(0, spread + 1))
            volume = int(random.choice([0, 1, 7, 1_000, 2**53 + 1]))
            session.append((low, high, int(random.integers(low, high + 1)), volume))
        made.append(session)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("chunk_size", CHUNK_SIZES)
@pytest.mark.parametrize("path", PATHS)
def test_is_the_cpus_answer_for_every_chunk_size(path, chunk_size, device):
    sessions = walk(40)
    bars, found = as_bars(sessions, between=2)
    expected = as_tuples(session_levels(bars, found, 7))
    assert computed(sessions, path, chunk_size, device=device) == expected


@pytest.mark.parametrize("path", PATHS)
def test_sessions_of_one_bar(path):
    one_tick = [(PRICE, PRICE, PRICE, 5)]
    sessions = [one_tick, [(PRICE - 9, PRICE + 9, PRICE, 3)], one_tick]
    assert computed(sessions, path, 1000)[0] == (PRICE, PRICE, PRICE, 5, 5, 5)
    assert computed(sessions, path, 1000) == [levels_of_session(session) for session in sessions]


@pytest.mark.parametrize("path", PATHS)
def test_ties_go_to_the_middle_of_the_session_then_to_the_lower_price(path):
    def traded(*ticks):
        return [(PRICE + tick, PRICE + tick, PRICE + tick, volume) for tick, volume in ticks]

    near_the_middle = traded((0, 5), (4, 5), (10, 1))
    lower = traded((0, 5), (1, 1), (2, 5))
    # A wide session in the same matrix has its middle elsewhere.
    wide = traded((0, 5), (30, 1), (100, 5))
    found = computed([near_the_middle, lower, wide], path, 1000)
    assert [levels[0] - PRICE for levels in found] == [4, 0, 0]


@pytest.mark.parametrize("path", PATHS)
def test_volumes_that_no_float_can_tell_apart(path):
    session = [(PRICE, PRICE, PRICE, 2**60), (PRICE + 9, PRICE + 9, PRICE + 9, 2**60 + 1)]
    session += [(PRICE + 5, PRICE + 5, PRICE + 5, 1)] * 3
    (levels,) = computed([session], path, 1)
    assert levels == levels_of_session(session)
    assert levels[0] == PRICE + 9
    assert levels[5] == 2**61 + 4


@pytest.mark.parametrize("chunk_size", CHUNK_SIZES)
@pytest.mark.parametrize("path", PATHS)
def test_padding_is_absent_not_empty(path, chunk_size):
    # No rows are left above the high, so the value area extends down through empty rows; and in a session without
    # volume the padding, which is 0 as well, must not become the VPOC.
    gap_below = [(PRICE, PRICE, PRICE, 4), (PRICE + 8, PRICE + 8, PRICE + 8, 5)]
    no_volume = [(PRICE, PRICE + 4, PRICE, 0)]
    wide = [(PRICE, PRICE + 50, PRICE, 100)]
    found = computed([wide, gap_below, no_volume], path, chunk_size)
    assert found[1] == (PRICE + 8, PRICE + 8, PRICE, 5, 9, 9)
    assert found[2] == (PRICE + 2, PRICE + 2, PRICE + 2, 0, 0, 0)


@pytest.mark.parametrize("path", PATHS)
def test_an_untraded_gap_is_not_stepped_over(path):
    def traded(*ticks):
        return [(4 * PRICE + tick, 4 * PRICE + tick, 4 * PRICE + tick, volume) for tick, volume in ticks]

    near, far = computed([traded((0, 2), (1, 10), (400, 5)), traded((0, 2), (1, 10), (400, 6))], path, 2)
    assert [tick - 4 * PRICE for tick in (*near[:3], *far[:3])] == [1, 1, 0, 1, 400, 0]


def allocations(monkeypatch, sessions, path, chunk_size):
    sizes = []
    allocate = paths._allocate

    def counted(cells, place):
        sizes.append(cells)
        return allocate(cells, place)

    monkeypatch.setattr(paths, "_allocate", counted)
    assert computed(sessions, path, chunk_size) == [levels_of_session(session) for session in sessions]
    return sizes


def test_what_each_path_allocates(monkeypatch):
    # The sessions have 4, 51, 3 and 60 ticks; the array of differences has one more column.
    sessions = [[(PRICE, PRICE + span, PRICE, 100)] for span in (3, 50, 2, 59)]
    assert allocations(monkeypatch, sessions, "chunked", 1) == [5, 52, 4, 61]
    assert allocations(monkeypatch, sessions, "preallocated", 1) == [61]
    assert allocations(monkeypatch, sessions, "preallocated", 2) == [122]
    assert allocations(monkeypatch, sessions, "pooled", 1) == [8, 64, 4]


@pytest.mark.parametrize("path", PATHS)
def test_no_session_gives_nothing(path):
    bars, found = as_bars([[(PRICE, PRICE, PRICE, 1)]])
    empty = only(Sessions, None, start=found.start[:0], stop=found.stop[:0])
    assert list(device_levels(bars, empty, path, "cpu", 4)) == []


@pytest.mark.parametrize("path", PATHS)
def test_a_wrong_print_is_refused_before_it_fills_the_memory(path):
    bars, found = as_bars([[(PRICE, PRICE, PRICE, 1), (PRICE * 10, PRICE * 10, PRICE * 10, 1)]])
    with pytest.raises(UserError, match="of 1970-01-01 has a high more than half above its low"):
        device_levels(bars, found, path, "cpu", 1)
