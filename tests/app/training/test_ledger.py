import statistics
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpoc.training.ledger import TIME_KINDS, Ledger


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def spent(*spans):
    """Return a ledger after these spans of (kind, seconds)."""
    clock = Clock()
    ledger = Ledger(clock=clock)
    for kind, seconds in spans:
        ledger.to(kind)
        clock.now += seconds
    return ledger


def test_a_span_ends_where_the_next_begins():
    clock = Clock()
    ledger = Ledger(clock=clock)
    clock.now += 1
    ledger.to("loader")
    clock.now += 2
    ledger.to("device")
    clock.now += 4
    ledger.to("loader")
    clock.now += 8
    expected = dict.fromkeys(TIME_KINDS, 0.0) | {"bookkeeping": 1.0, "loader": 10.0, "device": 4.0}
    assert ledger.seconds() == expected
    clock.now += 16
    assert ledger.seconds() == expected | {"loader": 26.0}, "what runs continues"


def test_to_tell_changes_nothing():
    ledger = spent(("device", 3), ("loader", 1))
    taken, line = ledger.seconds(), ledger.summary()
    ledger.to("checkpoint")
    assert (ledger.seconds(), ledger.summary()) == (taken, line)
    taken["device"] += 1
    assert ledger.seconds()["device"] == 3


@given(st.lists(st.tuples(st.sampled_from(sorted(TIME_KINDS)), st.integers(0, 1000)), max_size=30))
def test_no_time_is_lost_or_counted_twice(spans):
    seconds = spent(*spans).seconds()
    assert list(seconds) == list(TIME_KINDS)
    assert sum(seconds.values()) == sum(length for _, length in spans)


def test_an_unknown_kind_is_our_own_bug_and_found_at_once():
    ledger = spent(("device", 3))
    with pytest.raises(KeyError, match="waiting"):
        ledger.to("waiting")
    assert ledger.seconds()["device"] == 3


def test_it_continues_from_a_checkpoint():
    before = spent(("device", 3), ("checkpoint", 1)).seconds()
    clock = Clock()
    ledger = Ledger(before, clock)
    ledger.to("device")
    clock.now += 2
    assert ledger.seconds()["device"] == 5
    assert ledger.seconds()["checkpoint"] == 1
    assert before["device"] == 3, "the checkpoint's own figures stay"


@pytest.mark.parametrize(
    ("spans", "line"),
    [
        (
            [("loader", 55), ("device", 30), ("checkpoint", 10), ("copy", 5)],
            "device 30 % busy: 55 % waiting for the loader, 10 % checkpoints, 5 % copying to the device",
        ),
        ([("device", 98), ("validate", 1.2), ("bookkeeping", 0.8)], "device 98 % busy: 1 % validation"),
        ([("device", 1000), ("loader", 0.1)], "device 100 % busy"),
        ([("loader", 2)], "device 0 % busy: 100 % waiting for the loader"),
        ([], "device not used"),
    ],
)
def test_the_line_says_what_kept_the_device_idle(spans, line):
    assert spent(*spans).summary() == line


def test_to_takes_no_more_than_some_microseconds():
    ledger = Ledger()
    rounds = []
    for _ in range(20):
        started = time.perf_counter()
        for _ in range(500):
            ledger.to("loader")
            ledger.to("device")
        rounds.append((time.perf_counter() - started) / 1000)
    assert min(rounds) < 5e-6, statistics.median(rounds)
