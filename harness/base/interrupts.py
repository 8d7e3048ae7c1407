"""Ctrl-C, TERM and HUP end a command in order: once, between the steps that must not be torn."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

INTERRUPTED = 130
"""The exit code after Ctrl-C."""
GRACE_SECONDS = 5.0
"""Time between TERM and KILL for every process, in seconds: a user who presses Ctrl-C does not wait for long."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _State:
    """The state of signal handling: one for each process, as for signal handlers."""

    shields = 0
    waiting: str | None = None
    raised = False
    skippable = False
    outlives: Callable[[], bool] = staticmethod(lambda: False)
    shows: Callable[[str], bool] = staticmethod(lambda _: False)


def say_in_view(shows: Callable[[str], bool] = lambda _: False) -> None:
    """Show answers to signals in a live view. `shows`: returns whether the view shows a text; by default none does."""
    _State.shows = staticmethod(shows)


@contextmanager
def interruptible(outlives: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Turn the first signal into KeyboardInterrupt with the signal's name; on later ones say that the end is under way.

    A signal that the caller set to be ignored, as `nohup` does with HUP, stays ignored. HUP is also ignored where
    `outlives` says that it only reports a closed terminal.
    """
    _State.shields, _State.waiting, _State.raised, _State.skippable = 0, None, False, False
    _State.outlives = staticmethod(outlives)
    before = {n: signal.signal(n, _handle) for n in SIGNALS if signal.getsignal(n) != signal.SIG_IGN}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def exit_on_interrupt() -> Iterator[None]:
    """Let Ctrl-C end the process at once: in the middle of an import it could be taken for a broken library."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def shielded() -> Iterator[None]:
    """Complete the block before a signal takes effect that arrives meanwhile."""
    _State.shields += 1
    try:
        yield
    finally:
        _State.shields -= 1
        if _State.waiting and not _State.shields:
            name, _State.waiting = _State.waiting, None
            _interrupt(name)


@contextmanager
def open_to_interruption() -> Iterator[None]:
    """Let signals take effect at once in this block inside `shielded`, also one that arrived before."""
    shields, _State.shields = _State.shields, 0
    try:
        if _State.waiting:
            name, _State.waiting = _State.waiting, None
            _interrupt(name)
        yield
    finally:
        _State.shields = shields


def pause(seconds: float, is_own: Callable[[int], bool]) -> None:
    """Wait, but ignore a signal that arrives meanwhile from a process of ours; `is_own` decides by the pid.

    A program may signal its parent, and the parent of an orphan is this process. The sender of a signal is only known
    here: a signal at any other moment is taken for a person's.
    """
    numbers = [number for number in SIGNALS if signal.getsignal(number) is _handle]
    if not numbers or threading.current_thread() is not threading.main_thread():
        time.sleep(seconds)
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        came = signal.sigtimedwait(numbers, seconds)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    # After a stop of this process, as by Ctrl-Z, the C library returns a structure that was never filled.
    if came is None or came.si_signo not in numbers:
        return
    # Ctrl-C in a terminal has no sending process.
    if came.si_code <= 0 and is_own(came.si_pid):
        name = signal.Signals(came.si_signo).name
        _say(f"process {came.si_pid} of the run sent {name} to this command, which ignores it")
    else:
        _handle(came.si_signo, None)


@contextmanager
def skippable(text: str) -> Iterator[None]:
    """After an interruption, say what is done first; one more signal ends only this block."""
    _say(text)
    try:
        _State.skippable = True
        yield
    except KeyboardInterrupt:
        _say("left out")
    finally:
        _State.skippable = False


def signal_of(caught: BaseException) -> signal.Signals:
    """Return the signal that an interruption came from; SIGINT for any other error."""
    name = str(caught).partition(";")[0]
    return signal.Signals[name] if name in signal.Signals.__members__ else signal.SIGINT


def _handle(number: int, _frame: FrameType | None) -> None:
    name = signal.Signals(number).name
    if number == signal.SIGHUP and _State.outlives():
        return
    if _State.raised and _State.skippable:
        raise KeyboardInterrupt(name)
    if _State.raised:
        _say("still ending the running processes, one moment")
        return
    _say("ending what is running, one moment")
    if _State.shields:
        _State.waiting = name
    else:
        _interrupt(name)


def _say(text: str) -> None:
    # A line written into a live view would shift the view, and its first line would stay on the screen.
    if _State.shows(text):
        return
    # Not through sys.stderr, which may be in the middle of a line. A closed terminal fails with OSError.
    with suppress(OSError):
        os.write(2, f"{text}\n".encode())


def _interrupt(name: str) -> None:
    _State.raised = True
    raise KeyboardInterrupt(name)
