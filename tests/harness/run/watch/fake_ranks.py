"""A program that stands in for the app: its ranks report progress and do no work, and one of them has a fault.

Usage: fake_ranks.py WORLD STEPS [FAULT@STEP/RANK]
"""

import ctypes
import faulthandler
import json
import mmap
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

STEP_SECONDS = 0.05
OUTSIDE, WAITING, FORWARD, BACKWARD, EXCHANGE, UPDATE = range(6)
EXCHANGE_SOURCE = """
def wait_for(others, step, sleep):
    while any(number() < step for number in others):
        sleep(0.01)
"""
# Compiled with this file name, because the harness recognizes by it that a rank waits in the exchange.
exchange: dict[str, Any] = {}
exec(compile(EXCHANGE_SOURCE, "/app/vpoc/ranks/exchange.py", "exec"), exchange)


def hang() -> None:
    while True:
        time.sleep(3600)


def spin() -> None:
    while True: pass  # fmt: skip  # noqa: E701


def work() -> None:
    """Spend four seconds in many different stacks, so that no two samples of them agree."""
    began = time.monotonic()
    while (passed := time.monotonic() - began) < 4:
        deeper(int(20 * passed))


def deeper(depth: int) -> None:
    if depth:
        deeper(depth - 1)
    else:
        time.sleep(0.005)


def hold_gil() -> None:
    library, lock = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(lock)
    library.pthread_mutex_lock(lock)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def segv() -> None:
    ctypes.string_at(0)


FAULTS = {f.__name__: f for f in (hang, spin, work, hold_gil, stop, segv)}


class ProgressWriter:
    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._lines = Path(f"progress-{rank}.jsonl").open("a")  # noqa: SIM115
        with Path(f"position-{rank}.bin").open("w+b") as stream:
            stream.write(bytes(16))
            stream.flush()
            self._position = mmap.mmap(stream.fileno(), 16)

    def at(self, step: int, stage: int) -> None:
        struct.pack_into("<qq", self._position, 0, step, stage)

    def step_of(self, rank: int) -> int:
        content = Path(f"position-{rank}.bin").read_bytes() if Path(f"position-{rank}.bin").exists() else b""
        step: int
        step, stage = struct.unpack("<qq", content) if len(content) == 16 else (0, 0)
        return step - (stage not in (EXCHANGE, UPDATE, OUTSIDE))

    def line(self, phase: str, done: int) -> None:
        memory = {"rss_bytes": 1, "device_allocated_bytes": None, "device_reserved_bytes": None}
        line = {
            "schema": 2, "wall": 0, "monotonic": time.monotonic(), "rank": self._rank, "pid": os.getpid(),
            "phase": phase, "done": done, "total": None, "max_step_s": None, "loss": None, "gradient_norm": None,
            "memory": memory,
        }  # fmt: skip
        self._lines.write(json.dumps(line) + "\n")
        self._lines.flush()


def rank_main(rank: int, world: int, steps: int, fault: str, fault_step: int, fault_rank: int) -> None:
    if fault == "silent" and rank == fault_rank:
        hang()
    if fault != "deaf":
        stacks = Path(f"stacks-{rank}.txt").open("ab", 0)  # noqa: SIM115
        faulthandler.register(signal.SIGUSR1, stacks)
    progress = ProgressWriter(rank)
    progress.line("first-step", 0)
    for step in range(1, steps + 1):
        progress.at(step, BACKWARD)
        if (step, rank) == (fault_step, fault_rank):
            FAULTS.get(fault, hang)()
        time.sleep(STEP_SECONDS)
        progress.at(step, EXCHANGE)
        others = [lambda other=other: progress.step_of(other) for other in range(world) if other != rank]
        if fault != "alone":
            exchange["wait_for"](others, step, time.sleep)
        progress.at(step, UPDATE)
        progress.line("step", step)
    progress.line("teardown", steps)


def main() -> None:
    world, steps = int(sys.argv[1]), int(sys.argv[2])
    fault, _, place = (sys.argv[3] if len(sys.argv) > 3 else "none@0/0").partition("@")
    step, _, fault_rank = place.partition("/")
    if "RANK" in os.environ:
        rank_main(int(os.environ["RANK"]), world, steps, fault, int(step), int(fault_rank))
        return
    command = [sys.executable, *sys.argv]
    ranks = [subprocess.Popen(command, env={**os.environ, "RANK": str(rank)}) for rank in range(world)]
    while None in (ended := [rank.poll() for rank in ranks]) and not any(ended):
        time.sleep(0.02)
    sys.exit(any(ended))


if __name__ == "__main__":
    main()
