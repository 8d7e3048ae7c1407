"""Tests of a command whose terminal is closed, on a real pseudo-terminal."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# The command leads its session, like a shell for which a terminal was opened, and prints for each byte that it gets.
SCRIPT = """\
import os, sys
from harness.base.closed_terminal import Terminal, outliving
from harness.base.interrupts import interruptible

terminal = Terminal(__import__("pathlib").Path(sys.argv[1]), "the terminal was closed")
with outliving(terminal), interruptible(terminal.is_closed):
    print("before", flush=True)
    try:
        os.write(3, b"ready")
        while os.read(4, 1):
            print("out", flush=True)
            print("err \\x1b[2K\\x1b[36mframe\\x1b[0m", end="", file=sys.stderr, flush=True)
    except KeyboardInterrupt as signalled:
        print(f"ended by {signalled}")
        sys.exit(130)
    print(sys.stdout.isatty(), sys.stdin.read() == "", terminal.is_there)
"""


class OnTerminal:
    """A command on a terminal of its own."""

    def __init__(self, folder: Path, *, ignored: bool = False) -> None:
        self.log = folder / "logs" / "command.log"
        self.master, slave = os.openpty()
        read, ready = os.pipe()
        told, self._tell = os.pipe()
        shell = "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
        shell += "signal.signal(signal.SIGHUP, signal.SIG_IGN); " if ignored else ""
        # The command gets these as 3 and 4, so no other descriptor may have those numbers when it starts.
        high = [os.dup2(number, at) for number, at in ((ready, 103), (told, 104))]
        shell += f"os.dup2({high[0]}, 3); os.dup2({high[1]}, 4); "
        shell += "os.set_inheritable(3, True); os.set_inheritable(4, True); "
        shell += "os.execv(sys.executable, [sys.executable, '-c', sys.argv[1], sys.argv[2]])"
        words = [sys.executable, "-c", shell, SCRIPT, str(self.log)]
        self.process = subprocess.Popen(
            words, stdin=slave, stdout=slave, stderr=slave, pass_fds=high, start_new_session=True
        )
        for number in (slave, ready, told, *high):
            os.close(number)
        assert os.read(read, 5) == b"ready"
        os.close(read)

    def close(self) -> None:
        """Close the terminal."""
        os.close(self.master)

    def say(self) -> None:
        """Make the command print something."""
        os.write(self._tell, b"x")

    def ended(self) -> int:
        """Let the command end, if it has not ended yet, and return its exit code."""
        os.close(self._tell)
        return self.process.wait(60)


@pytest.mark.parametrize("ignored", [False, True])
def test_what_is_said_after_the_terminal_was_closed_is_in_the_log(ignored: bool, tmp_path: Path) -> None:
    """The command gets SIGHUP when its terminal is closed, unless it ignores that signal."""
    command = OnTerminal(tmp_path, ignored=ignored)
    command.close()
    command.say()
    assert command.ended() == 0
    assert command.log.read_text().splitlines() == ["the terminal was closed", "out", "err frame", "False True False"]


@pytest.mark.parametrize("make", [os.mkfifo, lambda log: log.symlink_to(log.with_name("elsewhere"))])
def test_nothing_else_is_written_in_the_place_of_a_log(make: Callable[[Path], None], tmp_path: Path) -> None:
    command = OnTerminal(tmp_path)
    command.log.parent.mkdir()
    make(command.log)
    command.close()
    command.say()
    assert command.ended() == 0
    assert not command.log.with_name("elsewhere").exists()


def test_the_signal_alone_ends_it(tmp_path: Path) -> None:
    command = OnTerminal(tmp_path)
    command.process.send_signal(signal.SIGHUP)
    assert command.process.wait(60) == 130
    assert not command.log.exists()
    command.close()
    command.ended()
