"""Tests of signals that reach the harness while it watches a run, from the run and from other processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# A harness in a process of its own, whose only child is the run. It polls so rarely that a signal finds it waiting.
HARNESS = """
import sys
from pathlib import Path
from harness.base.interrupts import interruptible
from harness.environments.executors.job import Job
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.files.run_folder import RunFolder
from harness.run.watch import watch
from harness.run.watch.limits import LIMITS, Limits

watch.POLL_SECONDS = 1.0
folder = Path(sys.argv[1])
with interruptible(), watch.Watch(RunFolder(folder), ProcessExecutor()) as watched:
    job = Job((sys.executable, "-S", "-c", sys.argv[2], *sys.argv[3:]), {}, folder, folder / "log.txt")
    try:
        print(watched.execute(job, 60, Limits.fixed(LIMITS)))
    except KeyboardInterrupt as caught:
        print(caught)
"""
# A run that sends each signal only while the receiver sleeps.
APP = """
import os, sys, time

def work_of(pid):
    fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
    return fields[0], fields[11:13], open(f"/proc/{pid}/status").read().partition("voluntary")[2]

def send(number, to):
    before = None
    while (now := work_of(to)) != before or now[0] != "S":
        before = now
        time.sleep(0.05)
    os.kill(to, number)

if sys.argv[1] == "another":
    print("ready", flush=True)
    time.sleep(60)
for number in (1, 2, 15):
    send(number, os.getppid())
    sent, tells = os.pipe()
    if os.fork() == 0:
        parent = os.getpid()
        if os.fork() == 0:
            while os.getppid() == parent:
                time.sleep(0.001)
            send(number, os.getppid())
        os._exit(0)
    os.wait()
    os.close(tells)
    os.read(sent, 1)
time.sleep(0.5)
sys.exit(3)
"""


def test_a_run_that_signals_its_parent_interrupts_nothing(tmp_path: Path) -> None:
    """A program may signal its parent when it gives up, and the parent of an orphan of it is the harness."""
    command = [sys.executable, "-c", HARNESS, str(tmp_path), APP, "itself"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.stdout == "exit 3\n", run.stderr
    said = [line.split(" of the run ")[1] for line in run.stderr.splitlines()]
    assert sorted(said) == [
        f"sent SIG{name} to this command, which ignores it" for name in ("HUP", "HUP", "INT", "INT", "TERM", "TERM")
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_is_not_of_the_run_interrupts_it(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", HARNESS, str(tmp_path), APP, "another"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as harness:
        while "ready" not in ((tmp_path / "log.txt").read_text() if (tmp_path / "log.txt").exists() else ""):
            assert harness.poll() is None
            time.sleep(0.02)
        os.kill(harness.pid, number)
        assert harness.stdout
        assert harness.stdout.read() == f"{number.name}\n"
