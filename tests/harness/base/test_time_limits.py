import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from harness.base import time_limits
from harness.base.time_limits import BackgroundCall, read_pieces_in_time


def test_what_was_found_in_time_is_given() -> None:
    assert BackgroundCall(lambda: 5).result(5) == 5


def test_what_takes_longer_is_not_waited_for() -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        BackgroundCall(lambda: time.sleep(5)).result(0.2)
    assert time.monotonic() - began < 4.5


def test_whether_it_is_done_can_be_asked() -> None:
    go_on = threading.Event()
    look = BackgroundCall(go_on.wait)
    assert not look.done
    go_on.set()
    assert look.result(5)
    assert look.done


def test_an_error_comes_back() -> None:
    def broken() -> None:
        raise LookupError("nothing there")

    with pytest.raises(LookupError, match="nothing there"):
        BackgroundCall(broken).result(5)


@pytest.fixture
def pieces_read(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Return a function that counts the pieces that are read until a timeout, or as a negative number until the end.

    Its arguments: how many pieces of how many bytes come, and the seconds that each one takes on a simulated clock.
    """
    clock = [0.0]
    monkeypatch.setattr(time_limits, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def pieces_read(*parts: tuple[int, int, float], used_for: float = 0.0) -> int:
        pieces = iter([(size, seconds) for times, size, seconds in parts for _ in range(times)])

        def read() -> bytes:
            size, seconds = next(pieces, (0, 0.0))
            clock[0] += seconds
            return bytes(size)

        came = 0
        try:
            for _ in read_pieces_in_time(read, 60):
                came += 1
                clock[0] += used_for
        except TimeoutError:
            return came
        return -came

    return pieces_read


def test_a_stall_after_a_fast_start_is_noticed_as_soon_as_one_at_the_start(pieces_read: Callable[..., int]) -> None:
    drops = (200, 1, 1.0)
    assert pieces_read(drops) == 60
    assert pieces_read((1000, 1 << 20, 0.01), drops) - 1000 in (60, 61)


def test_what_comes_fast_enough_is_read_to_its_end(pieces_read: Callable[..., int]) -> None:
    assert pieces_read((500, 1000, 1.0)) == -500
    # The pauses here are shorter than the limit.
    assert pieces_read(*[(1, 100_000, 0.1), (1, 100, 50.0)] * 20) == -40


def test_who_takes_long_to_use_a_piece_does_not_make_it_come_late(pieces_read: Callable[..., int]) -> None:
    assert pieces_read((5, 100, 0.1), used_for=1000.0) == -5
