"""A simulated app that reports its training as the contract demands, on a clock of its own, for tests to change."""

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

from harness.evidence.app_reports.accounting import Accounting
from harness.evidence.app_reports.rank_account import NEVER_LATE, AskedWork, SeenAt
from harness.evidence.files.app_files import Phase, Progress, Result

NONCE = "0123456789abcdef" * 2
MEMORY = {"rss_bytes": 1, "device_allocated_bytes": None, "device_reserved_bytes": None}
KINDS = ("device", "loader", "copy", "validate", "checkpoint", "bookkeeping")
LOOK_SECONDS = 0.1

Values = dict[str, Any]


class ProgressLines:
    """The progress lines that one rank writes, each with its time."""

    def __init__(self, rank: int = 0, clock: float = 1000.0) -> None:
        self.rank = rank
        self.clock = clock
        self.lines: list[Values] = []
        self._number = 0

    def process(self) -> None:
        """Begin a process, whose lines are numbered from 1 again."""
        self._number = 0

    def write(self, phase: str, done: int = 0, total: int | None = None, after: float = 0.01, **more: Any) -> None:
        """Write a line `after` seconds after the one before."""
        self.clock += after
        self._number += 1
        self.lines.append(
            {
                "schema": 2, "wall": self.clock, "monotonic": self.clock, "rank": self.rank, "pid": 1, "nonce": NONCE,
                "number": self._number, "phase": phase, "done": done, "total": total, "max_step_s": None, "loss": None,
                "gradient_norm": None, "epoch_losses": None, "memory": MEMORY, **more,
            }
        )  # fmt: skip


def write_start(progress: ProgressLines) -> ProgressLines:
    """Write the lines of a process before its first step."""
    progress.process()
    for phase in ("import", "init", "data", "features", "features"):
        progress.write(phase)
    return progress


def loss_of(step: int) -> float:
    """Return the loss of a step, as in the fixture `result_values`."""
    return 0.7 - step / 100


def write_training(
    progress: ProgressLines,
    epochs: int = 2,
    per_epoch: int = 16,
    resumed: int = 0,
    step_s: float = 0.0625,
    *,
    of_epochs: int = 0,
) -> ProgressLines:
    """Write the lines of one model, one a second, from its first step or the one after `resumed` to its end.

    `of_epochs`: the number of epochs that were asked for, if the training ends before.
    """
    total, shown = (of_epochs or epochs) * per_epoch, progress.clock
    if resumed < total or not resumed:
        progress.write("step" if resumed else "first-step", resumed, total)
    for epoch in range(resumed // per_epoch + 1, epochs + 1):
        if resumed < (epoch - 1) * per_epoch:
            progress.write("step", (epoch - 1) * per_epoch, total, 0)
        for step in range(max(resumed, (epoch - 1) * per_epoch) + 1, epoch * per_epoch + 1):
            progress.clock += step_s
            if progress.clock - shown >= 1:
                progress.write("step", step, total, 0, loss=loss_of(step), gradient_norm=0.5 + step / 100)
                shown = progress.clock
            if step == 1:
                progress.write("step", 1, total, 0)
        progress.write("validate", 0, 200, 0)
        losses = {"epoch": epoch, "train": 0.6, "validation": 0.65}
        progress.write("checkpoint", epoch * per_epoch, total, 0.2, epoch_losses=losses)
        progress.write("step", epoch * per_epoch, total, 0.05)
    progress.write("checkpoint")
    return progress


def write_end(progress: ProgressLines) -> ProgressLines:
    """Write the line that ends a process."""
    progress.write("teardown")
    return progress


def result_of(values: Values, progress: ProgressLines, **changes: Any) -> Values:
    """Return `values`, as of the fixture `result_values`, changed to a result that fits the lines of one model."""
    began_at = next(line["monotonic"] for line in progress.lines if line["phase"] in ("first-step", "step"))
    seconds = max(line["monotonic"] for line in progress.lines if line["phase"] == "checkpoint") - began_at
    epochs, samples = values["epochs_done"], values["samples"]["train"]
    return {
        **deepcopy(values),
        "contract": 2,
        "nonce": NONCE,
        "throughput": {"samples_per_second": epochs * samples / seconds, "train_seconds": seconds},
        "time": {kind: seconds if kind == "device" else 0.0 for kind in KINDS},
        **changes,
    }


def expected(**changes: Any) -> AskedWork:
    """Return the work that the fixture `result_values` was asked for, with changes."""
    asked = {"contract": 2, "nonce": NONCE, "ranks": 1, "epochs": 2, "processes": 1, "resumed": (0,)}
    asked |= {"loop": "plain"}
    return AskedWork(**{**asked, **changes})


def accounting_of(
    lines: list[Values],
    asked: AskedWork,
    seen: Callable[[float], SeenAt] | None = None,
    late: Mapping[Phase, float] = NEVER_LATE,
) -> Accounting:
    """Return an accounting that saw these lines: by default soon after each, on a clock that differs by 500 s."""
    accounting = Accounting(asked, late)
    for line in sorted(lines, key=lambda line: float(line["monotonic"])):
        at = line["monotonic"] - 500
        accounting.saw(
            Progress.model_validate(line), seen(at) if seen else SeenAt(at - LOOK_SECONDS, at + LOOK_SECONDS)
        )
    return accounting


def breaches(lines: list[Values], result: Values | None, asked: AskedWork | None = None) -> tuple[str, ...]:
    """Return the breaches in these lines and in the result; None: the app left no result."""
    accounting = accounting_of(lines, asked or expected())
    return accounting.close(None if result is None else Result.model_validate(result))


def each(lines: list[Values], phase: str) -> Iterator[Values]:
    """Yield the lines of a phase."""
    yield from (line for line in lines if line["phase"] == phase)
