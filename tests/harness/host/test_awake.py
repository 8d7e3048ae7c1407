import os
import queue
import stat
import time
from pathlib import Path

import pytest

from harness.host.awake import stay_awake


def inhibitor(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "systemd-inhibit"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_it_is_held_inside_and_let_go_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, said = tmp_path / "held", list[str]()
    inhibitor(tmp_path, f"touch {held}; cat; rm {held}", monkeypatch)
    with stay_awake("a test", said.append):
        deadline = time.monotonic() + 60
        while not held.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert held.exists()
    assert not held.exists()
    assert said == []


def test_that_it_is_refused_is_said_however_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse, said = tmp_path / "refuse", queue.Queue[str]()
    os.mkfifo(refuse)
    inhibitor(tmp_path, f"read answer < {refuse}; exit 1", monkeypatch)
    with stay_awake("a test", said.put):
        assert said.empty()
        refuse.write_text("no\n")
        assert said.get(timeout=60) == "systemd-inhibit is refused"
    assert said.empty()


def test_that_there_is_none_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with stay_awake("a test", said.append):
        assert said == ["there is no systemd-inhibit"]
