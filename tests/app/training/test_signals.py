import signal
import sys

import pytest

from vpoc.errors import Interrupted
from vpoc.progress import Progress
from vpoc.training.signals import interruptible


class Sulky:
    def __del__(self):
        raise RuntimeError("a worker was killed")


def terminated_work(progress):
    with interruptible(progress):
        signal.raise_signal(signal.SIGTERM)
        Sulky()
        progress.phase("step")


@pytest.fixture
def reported(monkeypatch):
    found = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: found.append(str(unraisable.exc_value)))
    return found


def test_complaints_on_the_way_out_are_silent_after_a_signal(reported):
    """The single line that says what interrupted the work stays the only one."""
    with pytest.raises(Interrupted):
        terminated_work(Progress(None))
    Sulky()
    assert reported == []


def test_complaints_of_a_run_that_continues_are_heard(reported):
    hook = sys.unraisablehook
    with interruptible(Progress(None)):
        Sulky()
    assert reported == ["a worker was killed"]
    assert sys.unraisablehook is hook
