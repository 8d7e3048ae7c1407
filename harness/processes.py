"""Processes of this host, named so that a later process can recognise them."""

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

RUN_MARK = "MATRIX_RUN_ID"
WAIT_SECONDS = 0.02


def boot_id() -> str:
    """The identity of this boot; pids and start times mean nothing across boots."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


@dataclass(frozen=True)
class ProcessId:
    """A process, told apart from a later one with the same pid."""

    pid: int
    started: float
    boot: str

    @classmethod
    def of(cls, pid: int) -> "ProcessId":
        """The identity of a live process; raises `psutil.NoSuchProcess` where there is none."""
        return cls(pid, psutil.Process(pid).create_time(), boot_id())

    @classmethod
    def mine(cls) -> "ProcessId":
        """The identity of this process."""
        return cls.of(os.getpid())

    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        if self.boot != boot_id():
            return False
        try:
            process = psutil.Process(self.pid)
            return process.create_time() == self.started and _runs(process)
        except psutil.NoSuchProcess:
            return False


def processes_of_run(run_id: str) -> list[psutil.Process]:
    """Every live process that was started by a run, loader workers and strays included."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(RUN_MARK) == run_id:
                found.append(process)
    return found


def end_processes_of_run(run_id: str, grace: float) -> bool:
    """End what a run left: TERM, `grace` seconds, KILL. False when something cannot be killed."""
    processes = processes_of_run(run_id)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    stubborn = _left_after(grace, processes)
    for process in stubborn:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return not _left_after(grace, stubborn)


def _left_after(seconds: float, processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that still run after some time.

    Not by psutil's wait: that would take the exit status of a child of ours away from its `Popen`, and wait for
    zombies, which hold nothing any more.
    """
    until = time.monotonic() + seconds
    while (left := [process for process in processes if _runs(process)]) and time.monotonic() < until:
        time.sleep(WAIT_SECONDS)
    return left


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
