"""Turn the samples of a run's GPUs into thinned curves. Pure."""

import re
from collections.abc import Callable, Sequence

from harness.evidence.gpus.gpu_sensors import GpuSensors, GpuSensorSample
from harness.report.model import GpuCurve

POINTS = 100
# Most GPUs in a chart, and most sensors of each; a chart of more is unreadable.
GPUS, NAMES = 8, 6
# Names that may be drawn: the plotting library interprets some characters as markup.
NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")
MB = 1e6


def gpu_curves(samples: Sequence[GpuSensorSample], started: float) -> tuple[GpuCurve, ...]:
    """Return a curve for each GPU of a run that began at `started`, in seconds since 1970."""
    numbers = sorted({one.gpu for sample in samples for one in sample.gpus})[:GPUS]
    return tuple(_curve(gpu, samples, started) for gpu in numbers)


def _curve(gpu: int, samples: Sequence[GpuSensorSample], started: float) -> GpuCurve:
    told = [(sample.wall - started, one) for sample in samples for one in sample.gpus if one.gpu == gpu]

    def values(read: Callable[[GpuSensors], float | None]) -> tuple[float | None, ...]:
        found = (read(one) for _, one in told)
        return tuple(None if value is None else round(value, 1) for value in found)

    def named(name: str, read: Callable[[GpuSensors], dict[str, float]]) -> tuple[float | None, ...]:
        return values(lambda one: read(one).get(name))

    def by_name(read: Callable[[GpuSensors], dict[str, float]]) -> dict[str, tuple[float | None, ...]]:
        names = {name for _, one in told for name in read(one) if NAME.fullmatch(name)}
        return {name: named(name, read) for name in sorted(names)[:NAMES]}

    return GpuCurve(
        gpu=gpu,
        seconds=tuple(round(seconds, 1) for seconds, _ in told),
        busy_percent=values(lambda one: one.busy_percent),
        power_watts=values(lambda one: one.power_watts),
        used_mb=values(lambda one: None if one.used_bytes is None else one.used_bytes / MB),
        celsius=by_name(lambda one: one.celsius),
        megahertz=by_name(lambda one: one.megahertz),
    )
