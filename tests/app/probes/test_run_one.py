"""Tests of running one check in its process: the result, and that no process of the check is left behind."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from vpoc.errors import UserError
from vpoc.probes import processes, run_one
from vpoc.probes.run_one import run_check


def runs(pid):
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def summary(found):
    return found.outcome, found.exit_code, found.signal


def test_a_check_that_passes(tried):
    found = tried("passes", "with", "arguments")
    assert summary(found) == ("passed", 0, None)
    assert (found.check, found.detail, found.stderr, found.limit_s) == ("passes", "saw cpu with arguments", (), 30.0)
    assert 0 < found.seconds < 30
    assert not found.broken


def test_a_check_starts_in_an_empty_folder_without_torch(tried):
    found = tried("tells_its_surroundings")
    assert found.detail == "True ['stderr'] False"


def test_a_check_that_makes_no_sense_here(tried):
    found = tried("skips")
    assert summary(found) == ("skipped", 0, None)
    assert (found.detail, found.broken) == ("not here", False)


def test_a_wrong_number(tried):
    found = tried("gives_a_wrong_number")
    assert summary(found) == ("wrong-result", 1, None)
    assert found.detail == "3 instead of 4 (at the sum on cpu)"
    assert found.broken


def test_an_exception(tried):
    found = tried("raises")
    assert summary(found) == ("failed", 1, None)
    assert found.detail == "RuntimeError: HIP error: invalid device function (at batch 8)"
    assert found.stderr[-1] == "of advice"
    assert any("in raises" in line for line in found.stderr)


def test_no_device(tried):
    found = tried("finds_no_device")
    assert summary(found) == ("failed", 3, None)
    assert (found.detail, found.stderr) == ("--device cuda: no GPU", ())


@pytest.mark.parametrize(("check", "name"), [("segfaults", "SIGSEGV"), ("aborts", "SIGABRT")])
def test_a_crash(tried, check, name):
    found = tried(check)
    assert summary(found) == ("crashed", None, name)
    assert found.detail == f"died of {name}" + (" at matrix product" if check == "segfaults" else "")
    assert any(f"in {check}" in line for line in found.stderr)


def test_an_exit_without_an_answer(tried):
    found = tried("exits_with_1")
    assert summary(found) == ("failed", 1, None)
    assert (found.detail, found.stderr) == ("ended with exit status 1 and no answer", ("a library says goodbye",))
    assert summary(tried("exits_with_0")) == ("failed", 0, None)


def test_the_end_of_the_process_counts_too(tried):
    found = tried("passes_and_dies_at_the_end")
    assert summary(found) == ("crashed", None, "SIGABRT")
    assert found.detail == "died of SIGABRT after its checks ended (passed: numbers right)"
    found = tried("passes_and_exits_with_7")
    assert summary(found) == ("failed", 7, None)
    found = tried("passes_and_never_ends", limit=3.0)
    assert found.outcome == "hung"
    assert found.detail == "did not end within 3 s after its checks ended (passed: numbers right)"


def test_a_hang_leaves_its_stacks(tried):
    found = tried("sleeps", limit=3.0)
    assert summary(found) == ("hung", None, "SIGTERM")
    assert found.detail == "did not end within 3 s at batch 32 on cuda:1"
    assert any("_dozing_in_a_kernel" in line for line in found.stderr)
    assert found.seconds >= 3
    assert found.killable


def test_the_limit_is_scaled(faulty):
    found = run_check(faulty("sleeps", limit=300), "cpu", 0.005, lambda: False)
    assert (found.outcome, found.limit_s) == ("hung", 1.5)


def test_who_ignores_term_is_killed(tried, monkeypatch):
    monkeypatch.setattr(run_one, "TERM_S", 0.3)
    assert summary(tried("sleeps_and_ignores_term", limit=2.0)) == ("hung", None, "SIGKILL")


@pytest.mark.parametrize("own_group", ["no", "yes"])
@pytest.mark.parametrize("check", ["starts_before_it_sleeps", "leaves_a_child"])
def test_grandchildren_are_ended_too(tried, tmp_path, monkeypatch, check, own_group):
    monkeypatch.setattr(run_one, "TERM_S", 0.3)
    pids = tmp_path / "pids"
    found = tried(check, pids, own_group, limit=3.0 if check == "starts_before_it_sleeps" else 30)
    assert found.outcome == ("hung" if check == "starts_before_it_sleeps" else "passed")
    assert found.killable
    assert not runs(int(pids.read_text()))


@pytest.mark.filterwarnings("ignore:.*Popen.__del__:pytest.PytestUnraisableExceptionWarning")
def test_a_process_that_cannot_be_killed_is_named(tried, monkeypatch):
    """The stand-in for `send` delivers no signal, as if the process waited in the kernel for a dead GPU."""
    told = []
    monkeypatch.setattr(processes, "send", lambda pid, signum: told.append((pid, signum)))
    monkeypatch.setattr(run_one, "TERM_S", 0.1)
    monkeypatch.setattr(run_one, "KILL_S", 0.1)
    found = tried("sleeps", limit=4.0)
    pid = told[0][0]
    assert told == [(pid, signal.SIGTERM), (pid, signal.SIGKILL)]
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert summary(found) == ("hung", None, None)
    assert found.detail.endswith(f"; cannot be killed: process {pid} in state S")
    assert not found.killable


@pytest.mark.slow
def test_only_the_last_lines_are_kept(tried):
    found = tried("talks")
    assert len(found.stderr) == run_one.LINES
    assert found.stderr[-1] == "RuntimeError: said enough"


def test_an_interruption_ends_the_check(faulty):
    start = time.monotonic()
    assert run_check(faulty("sleeps"), "cpu", 1.0, lambda: time.monotonic() > start + 0.5) is None
    assert time.monotonic() < start + 10


def test_nothing_stays_on_disk(tried, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tried("raises")
    assert list(tmp_path.iterdir()) == []


def test_an_interpreter_that_may_not_be_started(tried, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path))
    with pytest.raises(UserError, match=f"{tmp_path}: permission denied"):
        tried("passes")


def test_a_temporary_folder_that_is_not_there(tried, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with pytest.raises(UserError, match="set TMPDIR to a folder that can be written"):
        tried("passes")
