"""Samples the sensors of a run's GPUs while it runs."""

import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from harness.base.time_limits import BackgroundCall
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.gpus.gpu_sensors import GpuSensors, GpuSensorSample, SensorLog
from harness.host.facts import GpuFacts
from harness.host.gpus.amdgpu import device_folder
from harness.host.gpus.gpu_state import GpuSample, sample_gpu

# Least load of a GPU that computes, in percent: a GPU that only drives a display shows a little load, too.
COMPUTING_PERCENT = 10
# Samples that are remembered, one a second.
MOST_REMEMBERED = 900


class SensorWatch:
    """Writes what the driver reports about the `gpus` of a run into the run folder.

    Only GPUs of the run are read, because reading an idle one may wake it. While the driver does not answer there is a
    gap. `root` holds the driver's files.
    """

    def __init__(self, folder: RunFolder, gpus: Iterable[GpuFacts], root: Path = Path("/")) -> None:
        self._folders = {gpu.index: place for gpu in gpus if (place := device_folder(gpu, root))}
        self._log = SensorLog(folder)
        self._look: BackgroundCall[tuple[GpuSensorSample, bool]] | None = None
        # When each sample was taken, on the monotonic clock, and whether a GPU computed.
        self._computed: deque[tuple[float, bool]] = deque(maxlen=MOST_REMEMBERED)

    def look(self) -> None:
        """Keep the last sample, and begin another one in the background, so that a slow driver delays nothing here."""
        if not self._folders or (self._look and not self._look.done):
            return
        self._keep()
        self._look = BackgroundCall(self._sample)

    def computes(self, seconds: float) -> bool:
        """Return whether a GPU of the run computed in at least half of the samples of the last `seconds`."""
        since = time.monotonic() - seconds
        seen = [computed for at, computed in self._computed if at >= since]
        return bool(seen) and sum(seen) >= len(seen) / 2

    def close(self) -> None:
        """Keep the last sample if it is there, and take no more."""
        if self._look and self._look.done:
            self._keep()
        self._log.close()

    def _keep(self) -> None:
        # Values that could not be read leave a gap, too.
        with suppress(OSError):
            if self._look is None:
                return
            sample, computing = self._look.result(0)
            self._computed.append((sample.monotonic, computing))
            # For a GPU of another vendor, or one that fell off the bus, nothing is reported.
            if any(map(_tells_something, sample.gpus)):
                self._log.add(sample)

    def _sample(self) -> tuple[GpuSensorSample, bool]:
        told = {index: sample_gpu(folder) for index, folder in self._folders.items()}
        sample = GpuSensorSample(
            wall=round(time.time(), 2),
            monotonic=round(time.monotonic(), 2),
            gpus=tuple(_sensors(index, one) for index, one in told.items()),
        )
        return sample, any(map(_computes, told.values()))


def _computes(one: GpuSample) -> bool:
    """Return whether a GPU computes; one that reports full load although it idles only waits for something."""
    return (one.busy_percent or 0) >= COMPUTING_PERCENT and one.idle_at_full_load is None


def _tells_something(one: GpuSensors) -> bool:
    return any(value not in (None, {}) for value in one.model_dump(exclude={"gpu"}).values())


def _sensors(index: int, told: GpuSample) -> GpuSensors:
    return GpuSensors(
        gpu=index,
        busy_percent=told.busy_percent,
        power_watts=told.power_watts,
        celsius=told.celsius,
        megahertz=told.megahertz,
        used_bytes=told.used_bytes,
    )
