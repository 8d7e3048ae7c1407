"""Attacks with processes that hide, do not end or stop."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.attacks.hostile.app import BOTH, CONTAINED, UNCHANGED, App, attack, daemon

# A child of an attack ends by itself after this time, whatever happens to it.
LIFE_SECONDS = 240
PR_SET_NAME = 15
DEAF = 200


def _live() -> None:
    time.sleep(LIFE_SECONDS)
    os._exit(0)


@attack("a double fork with an emptied environment", executors=BOTH, may_complete=UNCHANGED)
def emptied_environment(app: App) -> None:
    app.run()
    if daemon():
        os.closerange(0, 3)
        os.execve("/bin/sleep", ["sleep", str(LIFE_SECONDS)], {})


@attack(
    "a child with another name, group, session and folder, and an emptied environment",
    executors=BOTH,
    may_complete=UNCHANGED,
)
def renamed(app: App) -> None:
    app.run()
    if daemon():
        os.chdir("/")
        ctypes.CDLL(None).prctl(PR_SET_NAME, b"kworker/0:1", 0, 0, 0)
        os.execve("/bin/sleep", ["[kworker/0:1-events]", str(LIFE_SECONDS)], {})


@attack(
    "a child that forks again every few milliseconds, with an emptied environment",
    executors=BOTH,
    may_complete=UNCHANGED,
)
def fork_race(app: App) -> None:
    app.run()
    if daemon():
        os.execve(
            "/bin/sh", ["sh", "-c", "n=0; while [ $n -lt 400 ]; do n=$((n + 1)); sleep 0.1 & wait; done; sleep 200"], {}
        )


@attack(f"{DEAF} children that ignore TERM", executors=BOTH, may_complete=UNCHANGED)
def deaf_children(app: App) -> None:
    app.run()
    for _ in range(DEAF):
        if os.fork() == 0:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            _live()


@attack("ignores TERM, and trains for ever", diagnoses=("time-limit", "no-progress", "wrong-result"), executors=BOTH)
def deaf(app: App) -> None:
    app.start(app.words_with(epochs="5000"))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    app.done()
    _live()


@attack("SIGSTOP to itself and to the app while it trains", executors=BOTH, diagnoses=("no-progress",))
def stopped(app: App) -> None:
    process = app.start()
    app.wait_for_step(2, process)
    process.send_signal(signal.SIGSTOP)
    app.done()
    os.kill(os.getpid(), signal.SIGSTOP)


@attack("a child that is left holds its output open", executors=BOTH, may_complete=UNCHANGED)
def held_output(app: App) -> None:
    app.run()
    if daemon():
        os.execve("/bin/sleep", ["sleep", str(LIFE_SECONDS)], {})


@attack("a child that is left goes on writing output, progress and result")
def writes_afterwards(app: App) -> None:
    app.run()
    if daemon():
        until = time.monotonic() + 20
        while time.monotonic() < until:
            print("written afterwards", flush=True)
            for name in ("progress-0.jsonl", "result.json", "output/model.pt"):
                with (app.work / name).open("a", encoding="utf-8") as stream:
                    stream.write("written afterwards\n")
            time.sleep(0.02)
        os._exit(0)


@attack("ends with status 0 while a child of it still trains", executors=BOTH)
def ends_early(app: App) -> None:
    app.start()
    app.done()
    os._exit(0)


@attack("kills every process that it may", executors=CONTAINED)
def kill_all(app: App) -> None:
    with app.training():
        app.done()
        os.kill(-1, signal.SIGKILL)
        os.kill(1, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


@attack("500 zombies", executors=BOTH, may_complete=UNCHANGED)
def zombies(app: App) -> None:
    for _ in range(500):
        if os.fork() == 0:
            os._exit(0)
    app.done()
    app.run()


@attack(
    "tries to mount, to make devices, to change the clock, to reach the engine, the network and other processes",
    may_complete=UNCHANGED,
    executors=CONTAINED,
)
def break_out(app: App) -> None:
    app.run()
    tries = (
        ["mount", "-t", "tmpfs", "none", "/work"],
        ["mknod", "/work/disk", "b", "254", "0"],
        ["date", "-s", "2000-01-01"],
        ["chroot", "/proc/1/root", "true"],
        ["sh", "-c", "echo planted > /data/planted; for f in /data/*; do echo planted >> $f; done"],
        ["sh", "-c", "echo 1 > /proc/sys/kernel/sysrq; echo c > /proc/sysrq-trigger"],
        ["sh", "-c", f"echo planted >> /proc/1/root{app.canary}/ssh-key; echo planted >> {app.canary}/ssh-key"],
        ["unshare", "-r", "mount", "-t", "tmpfs", "none", "/mnt"],
    )
    app.done()
    for words in tries:
        # Some images lack some of these programs.
        with suppress(OSError):
            subprocess.run(words, check=False, stdin=subprocess.DEVNULL)
    print("socket of the engine:", Path("/var/run/docker.sock").exists(), file=sys.stderr, flush=True)
