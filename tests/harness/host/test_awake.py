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
    held = tmp_path / "held"
    inhibitor(tmp_path, f"touch {held}; cat; rm {held}", monkeypatch)
    with stay_awake("a test") as why_not:
        assert why_not is None
        deadline = time.monotonic() + 60
        while not held.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert held.exists()
    assert not held.exists()


def test_that_it_cannot_be_done_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inhibitor(tmp_path, "exit 1", monkeypatch)
    monkeypatch.setattr("harness.host.awake.REFUSED_SECONDS", 60.0)
    with stay_awake("a test") as why_not:
        assert why_not == "systemd-inhibit is refused"
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with stay_awake("a test") as why_not:
        assert why_not == "there is no systemd-inhibit"
