import os
import signal
import subprocess
import sys
import time

import pytest

from harness.base.interrupts import interruptible, open_to_interruption, pause, shielded, skippable


def interrupt(number: signal.Signals = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)
    # The interpreter runs the handler only between two of its instructions.
    time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_an_interruption_that_says_its_name(number: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt, match=number.name), interruptible():
        interrupt(number)


def test_what_is_shielded_is_done_to_its_end() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt, match="SIGINT"), interruptible():  # noqa: PT012
        with shielded():
            with shielded():
                interrupt()
                done.append("inner")
            done.append("outer")
        done.append("never")
    assert done == ["inner", "outer"]


def test_an_opening_in_a_shield_lets_a_signal_through_and_closes_again() -> None:
    done = []
    with interruptible(), shielded():
        with pytest.raises(KeyboardInterrupt), open_to_interruption():
            interrupt()
        interrupt()
        done.append("cleaned up")
    assert done == ["cleaned up"]


def test_a_signal_that_came_before_the_opening_counts_at_once() -> None:
    done = []
    with interruptible(), shielded():
        interrupt()
        with pytest.raises(KeyboardInterrupt), open_to_interruption():
            done.append("never")
    assert done == []


def test_each_signal_is_answered_at_once_and_a_second_does_not_tear_the_cleaning_up(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with interruptible():
        with pytest.raises(KeyboardInterrupt):
            interrupt()
        interrupt()
    assert capfd.readouterr().err.splitlines() == [
        "ending what is running, one moment",
        "still ending the running processes, one moment",
    ]


def test_one_more_signal_skips_what_may_be_skipped_and_the_next_tears_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    done = []
    with interruptible():
        with pytest.raises(KeyboardInterrupt):
            interrupt()
        with skippable("keeping something first"):
            interrupt()
            done.append("never")
        interrupt()
        done.append("cleaned up")
        with skippable("keeping more"):
            done.append("kept")
    assert done == ["cleaned up", "kept"]
    assert capfd.readouterr().err.splitlines() == [
        "ending what is running, one moment",
        "keeping something first",
        "left out",
        "still ending the running processes, one moment",
        "keeping more",
    ]


def test_a_pause_in_which_the_process_was_stopped_is_no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """If SIGCONT comes after the end of the pause, Python up to 3.13 returns an uninitialized structure."""
    garbage = signal.struct_siginfo((-22692896, 0, 0, 0, 0, 0, 0))
    waited: list[float] = []

    def stopped(numbers: object, seconds: float) -> signal.struct_siginfo:
        waited.append(seconds)
        return garbage

    monkeypatch.setattr(signal, "sigtimedwait", stopped)
    with interruptible():
        pause(2.5, lambda pid: pytest.fail("garbage was asked about"))
    assert waited == [2.5]


def test_a_terminal_that_was_closed_does_not_tear_the_cleaning_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(_descriptor: int, _text: bytes) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("harness.base.interrupts.os.write", closed)
    with interruptible(), pytest.raises(KeyboardInterrupt):
        interrupt()


def test_afterwards_signals_are_as_before() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with interruptible():
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_what_the_caller_ignores_stays_ignored() -> None:
    code = (
        "import signal, harness.base.interrupts as i\n"
        "with i.interruptible(): print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)"
    )
    run = subprocess.run(["nohup", sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "True\n"
