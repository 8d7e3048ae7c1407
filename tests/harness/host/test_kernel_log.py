"""Tests of the kernel log with synthetic commands, because this machine's own log may not be readable."""

import time
from pathlib import Path

import pytest

from harness.host import kernel_log
from harness.host.kernel_log import read_kernel_log

JOURNAL = "2026-11-21T19:00:01.123456+0000 host kernel: amdgpu 0000:03:00.0: ring gfx_0.0.0 timeout"


class Commands:
    """A folder of commands, the only one on PATH; a call adds a command."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, name: str, script: str) -> None:
        file = self._folder / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return Commands(folder)


def test_the_journal_is_asked_for_the_kernel_since_the_run_began(commands: Commands, tmp_path: Path) -> None:
    commands("journalctl", f'echo "$@" > {tmp_path}/asked; echo "-- Boot 1 --"; echo "{JOURNAL}"')
    log = read_kernel_log(1_763_000_002.0)
    assert (log.lines, log.missing) == ((JOURNAL,), None)
    assert "--dmesg" in (tmp_path / "asked").read_text()
    assert "--since=@1763000000" in (tmp_path / "asked").read_text()


@pytest.mark.parametrize(("set_by", "from_start"), [(3600, True), (-3600, False)])
def test_the_journal_is_read_from_the_start_though_the_clock_was_set(
    set_by: float, from_start: bool, commands: Commands, tmp_path: Path
) -> None:
    """Lines from before a step forward have stamps by the clock of then, and those after a step back by that of now."""
    commands("journalctl", f'for one in "$@"; do echo "$one"; done > {tmp_path}/asked')
    real = time.time()
    began, now = real - set_by - 1200, real - set_by
    read_kernel_log(began, now=now)
    (asked,) = (line for line in (tmp_path / "asked").read_text().splitlines() if line.startswith("--since=@"))
    assert float(asked.removeprefix("--since=@")) == pytest.approx((began if from_start else real - 1200) - 2, abs=2)


def test_a_name_in_the_journal_begins_no_line_and_does_not_refuse_it(commands: Commands) -> None:
    """A process name may read like a line of the driver or of journalctl, which indents the text after a line end."""
    lines = ["2026-11-21T19:00:01+0000 host kernel: traps: a", "    No journal files\u2028c[1] trap"]
    commands("journalctl", f"echo '{lines[0]}'; echo '{lines[1]}'; echo '{JOURNAL}'")
    assert read_kernel_log(time.time()).lines == (f"{lines[0]} {lines[1].lstrip()}", JOURNAL)


def test_a_quiet_kernel_is_an_empty_log_and_not_a_missing_one(commands: Commands) -> None:
    commands("journalctl", 'echo "-- No entries --"')
    log = read_kernel_log(time.time())
    assert (log.lines, log.missing) == ((), None)


@pytest.mark.parametrize(
    "journal",
    [
        'echo "No journal files were found." >&2; echo "-- No entries --"',
        'echo "No journal files were opened due to insufficient permissions." >&2; exit 1',
        'echo "Hint: You are currently not seeing messages from other users and the system." >&2',
        "exit 1",
    ],
)
def test_where_the_journal_tells_nothing_only_dev_kmsg_is_read(
    journal: str, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """dmesg is not asked, because it shows the text after a line end in a process name as a line of its own."""
    commands("journalctl", journal)
    commands("dmesg", f'echo "[{time.monotonic():.6f}] amdgpu: GPU reset begin!"')
    monkeypatch.setattr("harness.host.kernel_log._kmsg", lambda file, _: (str(file),))
    assert read_kernel_log(time.time() - 5).lines == ("/dev/kmsg",)


def test_records_of_dev_kmsg_are_read_since_then(
    tmp_path: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands("journalctl", "echo of another machine")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "kmsg").write_text(
        f"6,1,{int((time.monotonic() - 100) * 1e6)},-;before\n"
        f"3,2,{int((time.monotonic() - 1) * 1e6)},-;amdgpu 0000:03:00.0: GPU reset(1) succeeded!\n"
        f" SUBSYSTEM=pci\n6,3,²,-;no time\n6,4,{'9' * 5000},-;no time\n"
    )
    log = read_kernel_log(time.time() - 10, tmp_path)
    assert log.missing is None
    assert [line.partition("] ")[2] for line in log.lines] == ["amdgpu 0000:03:00.0: GPU reset(1) succeeded!"]
    # On a simulated host the file may have no end, so no more than a limit is read.
    monkeypatch.setattr(kernel_log, "LARGEST_LOG", 1)
    monkeypatch.setattr(kernel_log, "RECORD_BYTES", 30)
    assert read_kernel_log(time.time() - 10, tmp_path).lines == ()


def test_without_dev_kmsg_the_log_is_missing(tmp_path: Path) -> None:
    log = read_kernel_log(0, tmp_path)
    assert log.missing == "kernel log: /dev/kmsg: No such file or directory; add this user to group adm"


def test_a_command_that_does_not_answer_is_not_waited_for(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.host.kernel_log.COMMAND_SECONDS", 0.2)
    commands("journalctl", "exec /bin/sleep 30")
    monkeypatch.setattr("harness.host.kernel_log._kmsg", lambda *_: ())
    began = time.monotonic()
    assert read_kernel_log(time.time()).missing is None
    assert time.monotonic() - began < 10
