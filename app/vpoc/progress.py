"""Progress lines of a run, for a harness that watches it from outside. Standard library only.

Each rank appends JSON lines to `progress-<rank>.jsonl`. Only the thread that does the work writes them, because a
heartbeat thread would continue while the work hangs.
"""

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vpoc import stacks
from vpoc.errors import Interrupted, from_os_error
from vpoc.files import open_in_place
from vpoc.step_stage import StepStage

PHASES = ("import", "init", "data", "features", "first-step", "step", "validate", "checkpoint", "teardown")
LINE_EVERY_S = 1.0
CONTRACT = 2
"""Version of the contents of these files; raised when a reader has to handle a change."""
NONCE = "VPOC_NONCE"
"""Environment variable with a random word from whoever started this run; every line and the result repeat it."""

ReadDeviceMemory = Callable[[], tuple[int, int]]
"""Returns the bytes allocated and reserved on the device."""


class Progress:
    """Appends progress lines of `rank` in `folder`; does nothing when `folder` is None.

    A line is written at each change of phase and, within a phase, at most once a second. The lines are numbered from 1
    in each process, so that a missing line is noticed.

    After `interrupt`, the next call of `phase` or `step` raises Interrupted, because there the work can stop safely.
    While `holds_interrupts` is set they do not raise; the work then checks `interrupted_by` itself.

    `path`: the file of the lines; None without a folder.
    `nonce`: the random word of the run, which the lines repeat.
    `stage`: the stage of the optimizer step, also in a file in `folder`.
    `device_memory`: may be set once there is a device to ask.
    `wall`: the clock of the lines.

    Stacks are written to `folder` at SIGUSR1, and when there is no line for a minute.
    """

    def __init__(self, folder: Path | None, rank: int = 0) -> None:
        self.device_memory: ReadDeviceMemory | None = None
        self.interrupted_by: int | None = None
        self.holds_interrupts = False
        self.wall: Callable[[], float] = time.time
        self.nonce = os.environ.get(NONCE)
        self.stage = StepStage()
        self._number = 0
        self._rank = rank
        self._phase = PHASES[0]
        self._total: int | None = None
        self._last_line = -math.inf
        self._max_step: float | None = None
        self.path = None if folder is None else folder / f"progress-{rank}.jsonl"
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                self.stage = StepStage(folder / f"position-{rank}.bin")
                stacks.listen(folder / f"stacks-{rank}.txt")
            except OSError as error:
                raise from_os_error(error, folder) from error

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        stacks.finished()

    def interrupt(self, signum: int) -> None:
        """Stop the work at its next sign of progress because of signal `signum`; safe in a signal handler."""
        self.interrupted_by = signum

    def phase(
        self, name: str, total: int | None = None, done: int = 0, epoch_losses: Mapping[str, Any] | None = None
    ) -> None:
        """Enter phase `name`, which has `total` items (None: unknown), of which `done` are done.

        `epoch_losses`: the losses of the epoch that has just ended, in the form of the result.
        """
        if name not in PHASES:
            raise ValueError(name)
        self._check_interrupted()
        self._phase, self._total = name, total
        self._write(done, None, None, epoch_losses)

    def step(self, done: int, seconds: float, loss: float | None = None, gradient_norm: float | None = None) -> None:
        """Report that `done` items of the phase are done, and that the last one took `seconds`."""
        self._check_interrupted()
        self._max_step = max(seconds, self._max_step or 0.0)
        if time.monotonic() - self._last_line >= LINE_EVERY_S:
            self._write(done, loss, gradient_norm)

    def _check_interrupted(self) -> None:
        if self.interrupted_by is not None and not self.holds_interrupts:
            raise Interrupted(self.interrupted_by)

    def _write(
        self,
        done: int,
        loss: float | None,
        gradient_norm: float | None,
        epoch_losses: Mapping[str, Any] | None = None,
    ) -> None:
        if self.path is None:
            return
        self._last_line = time.monotonic()
        self._number += 1
        allocated, reserved = self.device_memory() if self.device_memory else (None, None)
        line = {
            "schema": 2,
            "wall": self.wall(),
            "monotonic": self._last_line,
            "rank": self._rank,
            "pid": os.getpid(),
            "nonce": self.nonce,
            "number": self._number,
            "phase": self._phase,
            "done": done,
            "total": self._total,
            "max_step_s": self._max_step,
            "loss": finite(loss),
            "gradient_norm": finite(gradient_norm),
            "epoch_losses": epoch_losses,
            "memory": {
                "rss_bytes": rss_bytes(),
                "device_allocated_bytes": allocated,
                "device_reserved_bytes": reserved,
            },
        }
        self._max_step = None
        try:
            with open(self.path, "a", encoding="utf-8", opener=open_in_place) as stream:
                stream.write(json.dumps(line, allow_nan=False) + "\n")
                if self._phase == "checkpoint":
                    # After a power cut only checkpoints for which the lines account are resumed from.
                    stream.flush()
                    os.fsync(stream.fileno())
        except OSError as error:
            raise from_os_error(error, self.path) from error
        stacks.progressed()


def finite(value: Any) -> float | None:
    """Return `value` as a float; None for None, NaN and infinity, which strict JSON cannot represent."""
    return float(value) if value is not None and math.isfinite(value) else None


def rss_bytes() -> int:
    """Return the resident memory of this process, in bytes (Linux)."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
