import os
import signal
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.campaign.detach import detach, in_own_session

TALKS = "import os, signal, sys, time; print(os.getsid(0), signal.getsignal(signal.SIGHUP), flush=True); time.sleep(60)"


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Return a function that makes a program, first on PATH, which writes down its arguments one a line."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)

    def make(name: str, text: str) -> Path:
        program, words = tmp_path / "bin" / name, tmp_path / f"{name}.txt"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\nfor word in "$@"; do echo "$word" >> {words}; done\n{text}\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return words

    return make


def test_a_session_of_its_own_survives_the_end_of_the_terminal_and_ends_by_what_is_said(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "log"
    log.parent.mkdir()
    started = in_own_session((sys.executable, "-c", TALKS), log)
    pid = int(started.stop.split()[-1])
    assert started.stop == f"kill -INT {pid}"
    deadline = time.monotonic() + 60
    while not log.read_text().endswith("\n") and time.monotonic() < deadline:
        time.sleep(0.05)
    session, hup = log.read_text().split(maxsplit=1)
    assert int(session) == pid
    assert "SIG_IGN" in hup or hup.strip() == "1"
    os.kill(pid, signal.SIGHUP)
    os.kill(pid, signal.SIGINT)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) in (1, -signal.SIGINT)
    assert "KeyboardInterrupt" in log.read_text()


@pytest.mark.parametrize("start", [detach, in_own_session])
def test_what_somebody_put_in_the_place_of_the_log_is_not_written_to(
    tmp_path: Path, start: Callable[..., object]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "log").symlink_to(tmp_path / "file")
    with pytest.raises(UserError, match="log: cannot be written"):
        start(("echo", "x"), tmp_path / "log")
    assert (tmp_path / "file").read_text() == ""


def test_this_process_minds_the_end_of_its_terminal_as_before(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGHUP), signal.getsignal(signal.SIGINT)
    with pytest.raises(UserError, match="leave out --detach"):
        in_own_session((str(tmp_path / "nothing"),), tmp_path / "log")
    assert (signal.getsignal(signal.SIGHUP), signal.getsignal(signal.SIGINT)) == before


def test_a_user_who_lingers_gets_a_unit_that_ends_in_order(tmp_path: Path, tool: Callable[[str, str], Path]) -> None:
    tool("loginctl", "echo yes")
    words = tool("systemd-run", "exit 0")
    started = detach(("matrix", "run", "--yes"), tmp_path / "log")
    name = f"matrix-{os.getpid()}"
    assert started.stop == f"systemctl --user stop {name}"
    given = words.read_text().splitlines()
    assert given[-4:] == ["--", "matrix", "run", "--yes"]
    # Without KillMode=mixed, the processes that the command started would get the signal, too.
    for word in (
        "--user",
        "--property=KillMode=mixed",
        "--property=KillSignal=SIGINT",
        f"--working-directory={Path.cwd()}",
        "--setenv=PATH",
    ):
        assert word in given
    assert f"--property=StandardOutput=append:{tmp_path / 'log'}" in given


@pytest.mark.parametrize(("lingers", "unit"), [("echo no", "exit 0"), ("exit 1", "exit 0"), ("echo yes", "exit 1")])
def test_without_a_unit_that_outlives_the_login_it_is_a_session(
    tmp_path: Path, tool: Callable[[str, str], Path], lingers: str, unit: str
) -> None:
    tool("loginctl", lingers)
    tool("systemd-run", unit)
    started = detach((sys.executable, "-c", "pass"), tmp_path / "log")
    assert "in a session of its own" in started.by
    os.waitpid(int(started.stop.split()[-1]), 0)
