"""Tests of locks with real processes."""

import fcntl
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.base.errors import InUseError, UserError
from harness.base.files import locks
from harness.base.files.locks import held_locks, locked


def test_a_child_that_was_given_a_lock_keeps_it_when_its_parent_is_killed(tmp_path: Path) -> None:
    code = """
import os, signal, subprocess, sys
from pathlib import Path
from harness.base.files.locks import held_locks, locked
with locked(Path(sys.argv[1])):
    subprocess.Popen(["sleep", "1"], pass_fds=held_locks(), stdout=subprocess.DEVNULL)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", code, tmp_path / "lock"], check=False)
    assert held_locks() == ()
    with locked(tmp_path / "lock"):
        assert time.monotonic() - began > 1
        assert len(held_locks()) == 1
    assert held_locks() == ()


def test_who_waits_long_for_a_lock_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    message = f"waiting for another process to unlock {tmp_path / 'lock'}; `fuser {tmp_path / 'lock'}` names it"
    for quiet, expected in ((locks.QUIET_SECONDS, []), (0.0, [message])):
        monkeypatch.setattr(locks, "QUIET_SECONDS", quiet)
        with locked(tmp_path / "lock"), pytest.raises(InUseError), locked(tmp_path / "lock", seconds=0.15):
            pass
        assert caplog.messages == expected


def test_a_lock_that_is_removed_while_it_is_waited_for_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "QUIET_SECONDS", 0.0)
    other = (tmp_path / "lock").open("w")
    fcntl.flock(other, fcntl.LOCK_EX)

    def remove(_: str) -> None:
        (tmp_path / "lock").unlink()
        other.close()

    with locked(tmp_path / "lock", remove), (tmp_path / "lock").open("a") as next_one:
        with pytest.raises(BlockingIOError):
            fcntl.flock(next_one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert len(held_locks()) == 1


def test_a_lock_that_somebody_keeps_is_waited_for_only_so_long(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with (
            pytest.raises(UserError, match=r"lock: another process has locked it for 0 s; `fuser .*lock` names"),
            locked(tmp_path / "lock", seconds=0.2),
        ):
            pass
    with locked(tmp_path / "lock", seconds=0.2):
        pass
