"""Tests of a campaign as a user sees it on a terminal, and with `matrix watch` from elsewhere."""

import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest

from tests.system.conftest import Command

Wait = Callable[..., None]

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A program in a terminal, and all that it has shown so far."""

    def __init__(self, command: list[str], rows: int, columns: int) -> None:
        self._mine, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        variables = {**os.environ, "TERM": "xterm-256color"}
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=variables)
        os.close(theirs)
        self._shown = bytearray()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        try:
            while content := os.read(self._mine, 65536):
                self._shown += content
        except OSError:
            # The program has closed its end of the terminal.
            pass

    @property
    def raw(self) -> str:
        return self._shown.decode(errors="replace")

    @property
    def text(self) -> str:
        return CONTROL.sub("", self.raw)

    def ended(self) -> int:
        """Wait for the end and return the exit status."""
        status = self.process.wait(120)
        self._reader.join()
        return status

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.ended()
        os.close(self._mine)


@contextmanager
def endless_run(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(240)


@pytest.mark.parametrize("columns", [100, pytest.param(40, marks=pytest.mark.long)])
def test_a_terminal_shows_the_grid_filling_up(columns: int, tmp_path: Path, quick_command: Command) -> None:
    command = quick_command.slow(tmp_path)
    with Terminal(command(tmp_path / "results", "run", "cpu-plain", "cpu-one"), 24, columns) as terminal:
        assert terminal.ended() == 0, terminal.text
    text = terminal.text
    assert re.search(r"plain +>", text), text
    assert re.search(r"(import|data|features 0/1|step \d+/\d+), 0\.\d GB RAM, \d+ s", " ".join(text.split())), text
    assert re.search(r"1 of 2 runs, \d+ (s|min) in all, about \d+ (s|min) left", " ".join(text.split())), text
    assert re.search(r"plain +1/1( seen)?\s+one +1/1", text), text
    assert "[2/2] cpu-one: completed" in text
    # The cursor was hidden while the view was shown, and is visible again.
    assert terminal.raw.rindex("\x1b[?25h") > terminal.raw.rindex("\x1b[?25l")


@pytest.mark.slow
def test_watch_follows_a_campaign_of_another_process_to_its_end(
    tmp_path: Path, quick_command: Command, wait: Wait
) -> None:
    campaign = subprocess.Popen(
        quick_command.slow(tmp_path, 2)(tmp_path, "run"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait(lambda: list(tmp_path.glob("runs/*/work/progress-0.jsonl")))
    moment = subprocess.run(
        quick_command(tmp_path, "watch", "--json"), capture_output=True, text=True, check=True, timeout=240
    )
    told = json.loads(moment.stdout)
    assert [one["runs"] for one in told["campaigns"]] == [3]
    assert [one["cell"] for one in told["cells"]] == ["cpu-plain", "cpu-one", "cpu-two-phases"]
    assert len(told["runs"]) <= 1
    assert all(run["process"] == campaign.pid for run in told["runs"])
    done = subprocess.run(quick_command(tmp_path, "watch"), capture_output=True, text=True, check=False, timeout=200)
    out, err = campaign.communicate(timeout=240)
    assert campaign.returncode == 0, out + err
    assert done.returncode == 0, done.stderr
    assert "cpu-two-phases, tiny: completed in" in done.stderr
    assert done.stdout.startswith("It has ended; `")
    assert done.stdout.endswith(f" --results {tmp_path} status` sums up.\n")


@pytest.mark.slow
def test_ctrl_c_ends_the_watching_and_nothing_else(tmp_path: Path, quick_command: Command, wait: Wait) -> None:
    with endless_run(quick_command(tmp_path, "run-cell", "cpu-plain", "--workload", "endless")) as running:
        wait(lambda: any('"step"' in f.read_text() for f in tmp_path.glob("runs/*/work/progress-0.jsonl")))
        with Terminal(quick_command(tmp_path, "watch"), 24, 80) as terminal:
            wait(lambda: "cpu-plain, endless" in terminal.text)
            wait(lambda: re.search(r"step \d+/\d+, .*0\.\d GB RAM", " ".join(terminal.text.split())))
            terminal.process.send_signal(signal.SIGINT)
            assert terminal.ended() == 130, terminal.text
        assert "Traceback" not in terminal.text
        assert running.poll() is None
    assert running.returncode == 130
