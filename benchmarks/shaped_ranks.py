"""Act as ranks that go through the phases of a training as a plan says, and only sleep in them.

They report progress and position as the app does, at most a line a second. Usage: shaped_ranks.py PLAN, a JSON object:
`ranks`; `first`, the number of steps made before; `parts`, pairs of a phase and seconds (a list of seconds for `step`);
`hang`, (kind, rank, step) or null. A rank that hangs first writes the time, by the monotonic clock, to `hung-at`.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.harness.run.watch.fake_ranks import (
    BACKWARD,
    EXCHANGE,
    OUTSIDE,
    UPDATE,
    WAITING,
    ProgressWriter,
    exchange,
    hang,
    hold_gil,
    stop,
)

LINE_SECONDS = 1.0
HANGS = {"wait": hang, "exchange": hang, "hold-gil": hold_gil, "stop": stop}


class Rank:
    """One rank: its position in the plan, and when it last wrote a progress line."""

    def __init__(self, number: int, plan: dict[str, Any]) -> None:
        self._number, self._plan, self._done = number, plan, int(plan["first"])
        self._progress, self._written_at = ProgressWriter(number), 0.0

    def run(self) -> None:
        """Go through all parts of the plan."""
        before = ""
        for phase, seconds in self._plan["parts"]:
            if phase == "step":
                if before not in ("first-step", "step", "new-workers", "pause"):
                    self._begin(phase)
                for one in seconds:
                    self._step(one)
            elif phase == "checkpoint":
                self._checkpoint(seconds)
            elif phase == "new-workers":
                self._progress.at(self._done + 1, WAITING)
                time.sleep(seconds)
            elif phase == "pause":
                self._pause(seconds)
            else:
                self._begin(phase)
                time.sleep(seconds)
            before = phase
        self._begin("teardown")

    def _begin(self, phase: str) -> None:
        first = phase in ("first-step", "step")
        self._progress.at(self._done + first, WAITING if first else OUTSIDE)
        self._progress.line(phase, self._done if first else 0)

    def _step(self, seconds: float) -> None:
        step = self._done + 1
        self._progress.at(step, BACKWARD)
        wanted = self._plan["hang"] or {}
        hangs = (wanted.get("step"), wanted.get("rank")) == (step, self._number)
        if hangs and wanted["kind"] != "exchange":
            self._hang(wanted["kind"])
        time.sleep(seconds)
        if hangs:
            self._hang("exchange")
        self._progress.at(step, EXCHANGE)
        self._wait_for_others(step)
        self._progress.at(step, UPDATE)
        self._done = step
        self._progress.at(step, OUTSIDE)
        if (now := time.monotonic()) - self._written_at >= LINE_SECONDS:
            self._written_at = now
            self._progress.line("step", step)

    def _hang(self, kind: str) -> None:
        Path("hung-at").write_text(str(time.monotonic()), encoding="ascii")
        HANGS[kind]()

    def _checkpoint(self, seconds: float) -> None:
        """Write a checkpoint on the first rank only; the other ranks wait for it in their next step."""
        if self._number == 0:
            self._progress.line("checkpoint", self._done)
            time.sleep(seconds)
        self._progress.line("step", self._done)

    def _wait_for_others(self, step: int) -> None:
        others = [rank for rank in range(self._plan["ranks"]) if rank != self._number]
        exchange["wait_for"]([lambda other=other: self._progress.step_of(other) for other in others], step, time.sleep)

    def _pause(self, seconds: float) -> None:
        """Stop this process for so long with SIGSTOP, as a user or the kernel might."""
        waker = f"sleep {seconds}; kill -CONT {os.getpid()}"
        with subprocess.Popen(["/bin/sh", "-c", waker]):
            os.kill(os.getpid(), signal.SIGSTOP)


def main() -> None:
    """Start all ranks, or act as one of them."""
    plan = json.loads(sys.argv[1])
    if "RANK" in os.environ:
        import faulthandler  # noqa: PLC0415 (as the app does it: of a rank only)

        number = int(os.environ["RANK"])
        faulthandler.register(signal.SIGUSR1, Path(f"stacks-{number}.txt").open("ab", 0))  # noqa: SIM115
        Rank(number, plan).run()
        return
    command = [sys.executable, *sys.argv]
    ranks = [subprocess.Popen(command, env={**os.environ, "RANK": str(one)}) for one in range(plan["ranks"])]
    while None in (ended := [rank.poll() for rank in ranks]) and not any(ended):
        time.sleep(0.05)
    sys.exit(any(ended))


if __name__ == "__main__":
    main()
