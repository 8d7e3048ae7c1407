"""Attacks that take more than the harness or the host has. Each is bounded, so that the machine survives."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from benchmarks.attacks.hostile.app import BOTH, CONTAINED, UNCHANGED, App, attack

GB = 1 << 30
MEGABYTE = b"x" * 1023 + b"\n"
# More processes than one run may have on a host with some cores.
PROCESSES = 4_600
HELD_SECONDS = 3


def _write(stream: object, size: int, block: bytes) -> None:
    block *= 1024
    for _ in range(size // len(block)):
        stream.write(block)  # type: ignore[attr-defined]
    stream.flush()  # type: ignore[attr-defined]


@attack("2 GB of output at full speed", may_complete=UNCHANGED, executors=BOTH)
def output(app: App) -> None:
    _write(sys.stdout.buffer, 2 * GB, MEGABYTE)
    app.done()
    app.run()


@attack("1 GB of output in one line", may_complete=UNCHANGED, executors=CONTAINED)
def output_in_one_line(app: App) -> None:
    app.run()
    app.done()
    _write(sys.stdout.buffer, GB, b"x" * 1024)


@attack("1 GB of output, then a crash", executors=CONTAINED)
def output_and_crash(app: App) -> None:
    app.run()
    app.done()
    _write(sys.stdout.buffer, GB, MEGABYTE)
    os.abort()


@attack("4 MB of short lines that many rules are compared with, then a failure", executors=CONTAINED)
def lines_of_rules(app: App) -> None:
    _write(sys.stdout.buffer, 4 << 20, b"Aborted\n")
    app.done()
    sys.exit(1)


@attack(f"a fork loop, up to {PROCESSES:,} processes", may_complete=UNCHANGED, executors=CONTAINED)
def forks(app: App) -> None:
    made = 0
    for _ in range(PROCESSES):
        try:
            if os.fork() == 0:
                os.execv("/bin/sleep", ["sleep", "600"])
            made += 1
        except OSError as error:
            print(f"refused after {made}: {error}", flush=True)
            break
    app.done()
    time.sleep(HELD_SECONDS)
    app.run()


@attack(f"a thread loop, up to {PROCESSES:,} threads", may_complete=UNCHANGED, executors=CONTAINED)
def threads(app: App) -> None:
    threading.stack_size(64 << 10)
    for made in range(PROCESSES):
        try:
            threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        except RuntimeError as error:
            print(f"refused after {made}: {error}", flush=True)
            break
    app.done()
    time.sleep(HELD_SECONDS)
    app.run()
    os._exit(0)


@attack("3 GB of memory", may_complete=UNCHANGED, executors=CONTAINED)
def memory(app: App) -> None:
    held = bytearray(os.urandom(4096)) * (3 * GB // 4096)
    app.done()
    app.run()
    del held


@attack("2 GB of shared memory", may_complete=UNCHANGED, executors=CONTAINED)
def shared_memory(app: App) -> None:
    with Path("/dev/shm/fill").open("wb") as stream:
        _write(stream, 2 * GB, MEGABYTE)
    app.done()
    app.run()


@attack("2 GB written to `work/`", may_complete=UNCHANGED, executors=CONTAINED)
def disk(app: App) -> None:
    with (app.work / "fill").open("wb") as stream:
        _write(stream, 2 * GB, MEGABYTE)
    app.done()
    app.run()


@attack("2 GB written to `output/` beside the model, as checkpoints", may_complete=UNCHANGED, executors=BOTH)
def disk_in_output(app: App) -> None:
    app.run()
    folder = app.work / "output" / "model_checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"step-000000001.{'0' * 64}.pt").open("wb") as stream:
        _write(stream, 2 * GB, MEGABYTE)


@attack("a thousand pipes and files held open by a hundred processes", may_complete=UNCHANGED, executors=CONTAINED)
def descriptors(app: App) -> None:
    held = "import os, time; [os.pipe() for _ in range(500)]; time.sleep(600)"
    for _ in range(100):
        subprocess.Popen(["/usr/bin/env", "python3", "-I", "-S", "-c", held])
    app.done()
    app.run()
