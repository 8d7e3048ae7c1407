"""The course of a training in bounded memory: losses by step and memory over time, as data and as a picture."""

import csv
import io
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vpoc.gpu_memory.monitor import MemorySample
from vpoc.plots.style import GRID_COLOUR, INK_COLOUR

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOSS_POINTS = 4000
"""Most points of a loss curve: more than a picture has dots across."""
MEMORY_POINTS = 2000
MEMORY_KINDS = ("rss_bytes", "allocated_bytes", "reserved_bytes", "driver_used_bytes")
HEADER = ("kind", "step", "seconds", "value")
TRAINING, VALIDATION = "#24406f", "#e07b00"
MEMORY_LINES = {
    "rss_bytes": ("#a9afb8", "resident in the host's memory"),
    "allocated_bytes": ("#1b7f79", "allocated by torch"),
    "reserved_bytes": ("#24406f", "reserved by torch"),
    "driver_used_bytes": ("#b5403a", "used, by the driver"),
}
GIB = 1 << 30


@dataclass
class _Losses:
    """Points (last step, sum) of `stride` losses each; `sum` and `count` of the losses since the last point.

    The order of additions depends only on the number of losses.
    """

    steps: list[int] = field(default_factory=list)
    sums: list[float] = field(default_factory=list)
    stride: int = 1
    step: int = 0
    sum: float = 0.0
    count: int = 0

    def add(self, first: int, losses: Sequence[float]) -> None:
        for step, loss in enumerate(losses, first):
            self.sum += loss
            self.count += 1
            if self.count == self.stride:
                self.steps.append(step)
                self.sums.append(self.sum)
                self.sum, self.count = 0.0, 0
                if len(self.steps) == LOSS_POINTS:
                    self.steps = self.steps[1::2]
                    self.sums = [a + b for a, b in zip(self.sums[::2], self.sums[1::2], strict=True)]
                    self.stride *= 2
        self.step = first + len(losses) - 1

    def points(self) -> list[tuple[int, float]]:
        """Step and mean loss of each point; the losses since the last point are a point as well."""
        found = [(step, total / self.stride) for step, total in zip(self.steps, self.sums, strict=True)]
        return [*found, (self.step, self.sum / self.count)] if self.count else found


@dataclass
class _Memory:
    """Points (step, seconds, bytes of each of MEMORY_KINDS): the maximum of `stride` samples, at the last of them."""

    points: list[list[Any]] = field(default_factory=list)
    stride: int = 1
    pending: list[Any] | None = None
    count: int = 0

    def add(self, point: list[Any]) -> None:
        self.pending = point if self.pending is None else _most(self.pending, point)
        self.count += 1
        if self.count == self.stride:
            self.points.append(self.pending)
            self.pending, self.count = None, 0
            if len(self.points) == MEMORY_POINTS:
                self.points = [_most(a, b) for a, b in zip(self.points[::2], self.points[1::2], strict=True)]
                self.stride *= 2

    def all(self) -> list[list[Any]]:
        return self.points if self.pending is None else [*self.points, self.pending]


class Curves:
    """Keeps the curves of a training: at most 4,000 points of losses and 2,000 of memory, however long it takes.

    When there are that many, neighbours are merged into one point: the mean of losses, the maximum of memory, so that
    no peak is lost. The same losses in the same order give the same points, even if the curves were restored from a
    `state` in between. `clock` measures the seconds of memory samples, which start with the curves.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._losses = _Losses()
        self._validation: list[list[Any]] = []
        self._memory = _Memory()

    def add_losses(self, first: int, losses: Sequence[float]) -> None:
        """Add the training losses, at least one, of consecutive steps from number `first` (from 1) on.

        Each step once.
        """
        self._losses.add(first, losses)

    def add_validation(self, step: int, loss: float) -> None:
        """Add the validation loss of the weights after `step`."""
        self._validation.append([step, loss])

    def add_memory(self, step: int, sample: MemorySample) -> None:
        """Add the memory in use now, after `step`."""
        self._memory.add([step, self._clock() - self._began, *(getattr(sample, kind) for kind in MEMORY_KINDS)])

    def state(self) -> dict[str, Any]:
        """Return the whole state as plain values, which later changes of these curves do not affect."""
        losses, memory = self._losses, self._memory
        return {
            "seconds": self._clock() - self._began,
            "losses": [list(losses.steps), list(losses.sums), losses.stride, losses.step, losses.sum, losses.count],
            "validation": [list(point) for point in self._validation],
            "memory": [[list(p) for p in memory.points], memory.stride, memory.pending, memory.count],
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], clock: Callable[[], float] = time.monotonic) -> "Curves":
        """Return the curves with this `state`; their seconds continue from it. Any error for what is no state."""
        _require_state(state)
        curves = cls(clock)
        curves._began -= state["seconds"]
        steps, sums, *rest = state["losses"]
        points, *of_memory = state["memory"]
        curves._losses = _Losses(list(steps), list(sums), *rest)
        curves._validation = [list(point) for point in state["validation"]]
        curves._memory = _Memory([list(point) for point in points], *of_memory)
        return curves

    def csv(self) -> bytes:
        """Return one value a row: `kind,step,seconds,value`.

        `train_loss`: the mean of the steps since the row before. `validation_loss`: the loss after that step. Neither
        has a time, so that equal trainings give equal rows. `rss_bytes`, `allocated_bytes`, `reserved_bytes`,
        `driver_used_bytes`: the maximum since the row before, with the `seconds` of training so far; an unknown value
        has no row.
        """
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(HEADER)
        writer.writerows(("train_loss", step, "", repr(loss)) for step, loss in self._losses.points())
        writer.writerows(("validation_loss", step, "", repr(loss)) for step, loss in self._validation)
        for place, kind in enumerate(MEMORY_KINDS, start=2):
            known = (point for point in self._memory.all() if point[place] is not None)
            writer.writerows((kind, point[0], f"{point[1]:.3f}", point[place]) for point in known)
        return stream.getvalue().encode("ascii")

    def png(self) -> bytes:
        """Return the curves as a picture: losses over steps, memory over minutes. UserError without matplotlib."""
        from vpoc.plots.render import matplotlib_of_its_own, to_bytes  # noqa: PLC0415

        with matplotlib_of_its_own(Path(tempfile.gettempdir())):
            from matplotlib.figure import Figure  # noqa: PLC0415

            figure = Figure(figsize=(12.2, 4.6), dpi=120, layout="constrained")
            left, right = figure.subplots(1, 2)
            self._draw_losses(left)
            self._draw_memory(right)
            return to_bytes(figure, "png", "Losses and memory of a training")

    def _draw_losses(self, axes: "Axes") -> None:
        points = self._losses.points()
        name = "training" if self._losses.stride == 1 else f"training, mean of {self._losses.stride} steps"
        _line(axes, [step for step, _ in points], [loss for _, loss in points], TRAINING, name, lw=0.9)
        steps, losses = [p[0] for p in self._validation], [p[1] for p in self._validation]
        _line(axes, steps, losses, VALIDATION, "validation", marker="o", ms=4, lw=1.6)
        _frame(axes, "step", "log-loss")

    def _draw_memory(self, axes: "Axes") -> None:
        points = self._memory.all()
        for place, (colour, name) in enumerate(MEMORY_LINES.values(), start=2):
            known = [point for point in points if point[place] is not None]
            _line(axes, [p[1] / 60 for p in known], [p[place] / GIB for p in known], colour, name, lw=1.4)
        _frame(axes, "minutes", "GiB")
        axes.set_ylim(bottom=0)


def _require_state(state: dict[str, Any]) -> None:
    """Raise an error, of any kind, unless the state has the numbers of curves."""
    steps, sums, stride, step, total, count = state["losses"]
    points, memory_stride, pending, samples = state["memory"]
    points = points if pending is None else [*points, pending]
    if any(len(point) != 2 + len(MEMORY_KINDS) for point in points):
        raise ValueError("memory of other kinds")
    of_points = [number for point in points for number in (*point[:2], *(one for one in point[2:] if one is not None))]
    pairs = [number for pair in state["validation"] for number in pair]
    numbers = [state["seconds"], *steps, *sums, stride, step, total, count, *pairs, *of_points, memory_stride, samples]
    if not all(isinstance(number, int | float) for number in numbers):
        raise ValueError("not a number")


def _most(a: list[Any], b: list[Any]) -> list[Any]:
    larger = [max((v for v in pair if v is not None), default=None) for pair in zip(a[2:], b[2:], strict=True)]
    return [*b[:2], *larger]


def _line(axes: "Axes", x: list[Any], y: list[float], colour: str, name: str, **style: Any) -> None:
    if not x:
        return
    # Leave out infinity, which would stretch the axis without limit; mark a single point, because its line is
    # invisible.
    values = [value if math.isfinite(value) else math.nan for value in y]
    alone = {"marker": "o", "ms": 4} if len(x) == 1 else {}
    axes.plot(x, values, color=colour, label=name, **{**alone, **style})


def _frame(axes: "Axes", x: str, y: str) -> None:
    axes.set_xlabel(x, color=INK_COLOUR)
    axes.set_ylabel(y, color=INK_COLOUR)
    axes.grid(color=GRID_COLOUR, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.lines:
        # Above the axes: to search the best place inside takes seconds on a busy machine, and warns of it.
        axes.legend(frameon=False, fontsize=8, ncols=3, loc="lower left", bbox_to_anchor=(0.0, 1.0))
