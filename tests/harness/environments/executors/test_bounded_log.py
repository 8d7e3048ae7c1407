"""Tests that a log keeps its beginning and its end, counts the bytes left out, and never takes much of the disk."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.environments.executors.bounded_log import BLOCK, HEAD_BYTES, TAIL_BYTES, BoundedLog
from harness.environments.executors.job import Job
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.app_reports.last_line import last_line

HEAD, TAIL = 3 * BLOCK, 2 * BLOCK
PRINTING = """
import sys
line = b"x" * 99 + b"\\n"
print("the beginning", flush=True)
for _ in range(int(sys.argv[1])):
    sys.stdout.buffer.write(line * 10_000)
print("the end")
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.txt"


def lines(count: int) -> bytes:
    return b"".join(b"%09d\n" % number for number in range(count))


def test_a_short_log_stays_as_it_is(log: Path) -> None:
    log.write_bytes(lines((HEAD + TAIL) // 10))
    bounded = BoundedLog(log, 0, HEAD, TAIL)
    bounded.trim()
    bounded.finish()
    assert log.read_bytes() == lines((HEAD + TAIL) // 10)


def test_head_and_tail_stay_and_the_middle_is_counted_though_it_was_given_back_to_the_disk(log: Path) -> None:
    text = lines(100_000)
    bounded = BoundedLog(log, 0, HEAD, TAIL)
    with log.open("ab", 0) as file:
        for begins in range(0, len(text), 5000):
            file.write(text[begins : begins + 5000])
            bounded.trim()
            assert log.stat().st_blocks * 512 <= HEAD + 2 * TAIL + 5000 + 2 * BLOCK
    assert log.stat().st_size == len(text)
    bounded.finish()
    found = log.read_bytes()
    assert found.startswith(text[:HEAD])
    assert found.endswith(text[-TAIL:])
    words = found[HEAD:-TAIL].decode()
    assert words == f"\n... {len(text) - HEAD - TAIL:,} bytes left out ...\n"


def test_what_an_earlier_process_wrote_is_not_touched(log: Path) -> None:
    log.write_bytes(b"a" * 10 * BLOCK)
    with log.open("ab") as file:
        file.write(b"b" * 20 * BLOCK)
    bounded = BoundedLog(log, 10 * BLOCK, HEAD, TAIL)
    bounded.trim()
    bounded.finish()
    found = log.read_bytes()
    assert found.startswith(b"a" * 10 * BLOCK + b"b" * HEAD + b"\n... ")
    assert found.endswith(b" ...\n" + b"b" * TAIL)
    assert b"\0" not in found


def test_after_a_gap_the_count_is_a_lower_bound(log: Path) -> None:
    log.write_bytes(b"begins\n" + b"ends\n")
    BoundedLog(log, 0, HEAD, TAIL).finish_after_gap(7, 1_000_012)
    assert log.read_bytes() == (
        b"begins\n... at least 1,000,000 bytes left out, which the engine did not keep ...\nends\n"
    )


@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "gone"])
def test_what_is_no_log_any_more_is_left_alone(kind: str, log: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(lines(10_000))
    if kind == "link":
        log.symlink_to(other)
    elif kind == "fifo":
        os.mkfifo(log)
    elif kind == "folder":
        log.mkdir()
    bounded = BoundedLog(log, 0, HEAD, TAIL)
    bounded.trim()
    bounded.finish()
    assert other.read_bytes() == lines(10_000)


def test_on_a_full_disk_nothing_is_lost(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log.write_bytes(lines(10_000))
    full = os.open("/dev/full", os.O_WRONLY)
    monkeypatch.setattr("harness.base.files.storage.os.fsync", lambda _: os.write(full, b"x"))
    BoundedLog(log, 0, HEAD, TAIL).finish()
    assert log.read_bytes() == lines(10_000)


def run_printing(folder: Path, megabytes: int) -> tuple[Path, int]:
    """Run a program that prints `megabytes`; return its log, and the most disk that the log took, in bytes."""
    log, most = folder / "log.txt", 0
    job = Job((sys.executable, "-c", PRINTING, str(megabytes)), {"PATH": "/usr/bin:/bin"}, folder, log)
    handle = ProcessExecutor().start(job)
    while (exit_ := handle.poll()) is None:
        most = max(most, log.stat().st_blocks * 512)
        time.sleep(0.05)
    assert exit_.ok
    return log, most


def test_output_of_a_process_is_bounded(tmp_path: Path) -> None:
    log, _ = run_printing(tmp_path, 40)
    text = log.read_text()
    assert len(text) < HEAD_BYTES + TAIL_BYTES + 100
    assert text.startswith("the beginning\n")
    assert last_line(log) == "'the end'"
    (count,) = re.findall(r"^\.\.\. ([\d,]+) bytes left out \.\.\.$", text, re.MULTILINE)
    assert int(count.replace(",", "")) == 40_000_000 + 22 - HEAD_BYTES - TAIL_BYTES


def test_a_process_outlives_a_harness_that_is_killed_while_it_prints(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    printing = "import time\nfor n in range(40):\n    print(n, flush=True); time.sleep(0.05)\nprint('the end')"
    harness = f"""
import os, sys
from pathlib import Path
from harness.environments.executors.job import Job
from harness.environments.executors.process import ProcessExecutor
folder = Path({str(tmp_path)!r})
ProcessExecutor().start(Job((sys.executable, "-c", {printing!r}), {{}}, folder, folder / "log.txt"))
os.kill(os.getpid(), 9)
"""
    killed = subprocess.run([sys.executable, "-c", harness], check=False, timeout=60)
    assert killed.returncode == -9
    until = time.monotonic() + 30
    while last_line(log) != "'the end'":
        assert time.monotonic() < until, "it died with its harness"
        time.sleep(0.1)


@pytest.mark.slow
def test_two_gigabytes_of_output_take_little_memory_disk_and_time(tmp_path: Path) -> None:
    began = time.monotonic()
    before = peak_memory_bytes()
    log, most = run_printing(tmp_path, 2000)
    assert log.stat().st_size < HEAD_BYTES + TAIL_BYTES + 100
    # Between two looks at the log some of the output is on the disk, but far from all of it.
    assert most < 1_500_000_000
    assert peak_memory_bytes() - before < 100 << 20
    assert time.monotonic() - began < 60


def peak_memory_bytes() -> int:
    """Return the most memory that this process ever had, in bytes."""
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) << 10
