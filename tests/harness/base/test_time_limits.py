import threading
import time

import pytest

from harness.base.time_limits import Look


def test_what_was_found_in_time_is_given() -> None:
    assert Look(lambda: 5).result(5) == 5


def test_what_takes_longer_is_not_waited_for() -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        Look(lambda: time.sleep(5)).result(0.2)
    assert time.monotonic() - began < 4.5


def test_whether_it_is_done_can_be_asked() -> None:
    go_on = threading.Event()
    look = Look(go_on.wait)
    assert not look.done
    go_on.set()
    assert look.result(5)
    assert look.done


def test_an_error_comes_back() -> None:
    def broken() -> None:
        raise LookupError("nothing there")

    with pytest.raises(LookupError, match="nothing there"):
        Look(broken).result(5)
