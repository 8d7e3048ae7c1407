"""Run one row after another, each in its own process, until all are done or the time is up."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu_evidence.in_use import why_not
from benchmarks.gpu_evidence.rows import Row
from vpoc.probes.check import HUNG, PASSED, SKIPPED, CheckResult
from vpoc.probes.run_one import run_check

HELD, DIFFERS, NOT_APPLICABLE, NOT_REACHED = "held", "differs", "not-applicable", "not-reached"
VERDICTS = (DIFFERS, HELD, NOT_APPLICABLE, NOT_REACHED)
ROOTS = (Path(__file__).parents[2], Path(__file__).parents[2] / "app")
"""Folders from which a row's process imports: the checkout and the app in it."""
PYTHONPATH = os.pathsep.join([*map(str, ROOTS), *filter(None, [os.environ.get("PYTHONPATH")])])
LEAST_S = 5.0
"""A row is not started if less time than this is left, in seconds."""
LONGEST_ON_GPU_S = 120.0
"""On a GPU, only a `matrix run` and a compiler take longer than this, unless they hang."""
HANGS_AFTER_S = 60.0
"""A row that had this many seconds and did not end hangs, even if its own limit is longer."""
START_S = 120.0
"""Seconds in which torch must be imported and must find its devices."""


@dataclass(frozen=True)
class Judged:
    """A row and its verdict; `seconds`: None if the row was not started."""

    row: Row
    verdict: str
    detail: str
    seconds: float | None = None
    numbers: dict[str, Any] = field(default_factory=dict)
    last_lines: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the row's entry in gpu-evidence.json."""
        return {
            "row": self.row.name,
            "shows": self.row.shows,
            "verdict": self.verdict,
            "detail": self.detail,
            "numbers": self.numbers,
            "seconds": self.seconds,
            "gpu_only": self.row.needs_gpu,
            "shown_red": self.row.shown_red,
            "last_lines": list(self.last_lines),
        }


@dataclass(frozen=True)
class Setting:
    """How rows are run.

    `until`: the deadline, by `time.monotonic`.
    `folder`: where rows leave their numbers.
    `hip`: the version of HIP that torch was built for, or None.
    """

    device: str
    arrays: Path
    steps: int
    folder: Path
    until: float
    destructive: bool = False
    hip: str | None = None


def run_rows(
    rows: Sequence[Row], setting: Setting, interrupted: Callable[[], bool], before: Callable[[Row], None]
) -> Iterator[Judged]:
    """Run the rows in turn; `before` is called with each row first. Rows for which no time is left are not reached."""
    os.environ["PYTHONPATH"] = PYTHONPATH
    lost = ""
    for row in rows:
        left = setting.until - time.monotonic()
        if row.needs_gpu and setting.device == "cpu":
            yield Judged(row, NOT_APPLICABLE, "needs a GPU")
        elif row.destructive and not setting.destructive:
            yield Judged(row, NOT_REACHED, "breaks the GPU: only with --destructive")
        elif row.destructive and (reason := why_not(setting.device, setting.hip)):
            yield Judged(row, NOT_REACHED, f"breaks the GPU, and {reason}")
        elif lost or interrupted() or left < LEAST_S:
            yield Judged(row, NOT_REACHED, lost or ("interrupted" if interrupted() else "the time was up"))
        else:
            before(row)
            judged = run_row(row, setting, left, interrupted)
            yield judged
            if "cannot be killed" in judged.detail:
                lost = f"a process of {row.name} cannot be killed and may hold the device"


def run_row(row: Row, setting: Setting, left: float, interrupted: Callable[[], bool]) -> Judged:
    """Run one row for at most its limit and the `left` seconds; if it is stopped too early, that is no hang."""
    check = row.check(str(setting.arrays), str(setting.steps), str(setting.folder))
    quick = setting.device == "cuda" and not row.long
    own = min(row.limit_s, LONGEST_ON_GPU_S) if quick else row.limit_s
    given = min(own, left)
    result = run_check(check, setting.device, given / row.limit_s, interrupted)
    if result is None:
        return Judged(row, NOT_REACHED, "interrupted")
    if result.outcome == HUNG and result.killable and given < (min(own, HANGS_AFTER_S) if quick else own):
        text = f"the time was up after {result.seconds:.0f} s"
        return Judged(row, NOT_REACHED, text, result.seconds, {}, result.stderr)
    file = setting.folder / f"{row.name}.json"
    numbers = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    lines = result.stderr if result.broken else ()
    return Judged(row, _verdict(result), _detail(result), result.seconds, numbers, lines)


def _verdict(result: CheckResult) -> str:
    return {PASSED: HELD, SKIPPED: NOT_APPLICABLE}.get(result.outcome, DIFFERS)


def _detail(result: CheckResult) -> str:
    return (
        result.detail if result.outcome in (PASSED, SKIPPED, "wrong-result") else f"{result.outcome}: {result.detail}"
    )


def device_that_is_there() -> str:
    """Return cuda if torch sees a GPU, else cpu; a child process looks, because this one must not hold the device."""
    words = [sys.executable, "-c", "import torch; print(torch.cuda.is_available())"]
    said = subprocess.run(words, capture_output=True, text=True, check=True, timeout=START_S).stdout
    return "cuda" if said.split()[-1:] == ["True"] else "cpu"
