"""Start launchers and their ranks as real processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

LAUNCHER = """
import sys
from vpoc.ranks.launch import launch
sys.exit(launch(sys.argv[3:], int(sys.argv[1]), grace_s=float(sys.argv[2])))
"""
PATIENCE_S = 30.0


def arguments(script: str, world: int, grace_s: float = 20.0) -> list[str]:
    return [sys.executable, "-c", LAUNCHER, str(world), str(grace_s), "sh", "-c", script]


def launched(script: str, world: int, grace_s: float = 20.0, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        arguments(script, world, grace_s),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env={**os.environ, **variables},
    )


@contextmanager
def launching(
    script: str, world: int, grace_s: float = 20.0, before: Sequence[str] = ()
) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [*before, *arguments(script, world, grace_s)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as launcher:
        try:
            yield launcher
        finally:
            launcher.kill()


def until(holds: Callable[[], bool], seconds: float = PATIENCE_S) -> bool:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def pids(folder: Path, count: int) -> list[int]:
    """Wait until `count` processes have written a file named by their pid into `folder`, and return the pids."""
    assert until(lambda: len(list(folder.iterdir())) == count)
    return [int(path.name) for path in folder.iterdir()]


def runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def gone(found: list[int]) -> bool:
    try:
        return until(lambda: not any(map(runs, found)), 10)
    finally:
        for pid in filter(runs, found):
            os.kill(pid, signal.SIGKILL)
