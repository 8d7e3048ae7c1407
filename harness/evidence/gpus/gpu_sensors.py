"""Power, temperatures, clocks and memory of a run's GPUs while it ran: a file of bounded size, a line a sample."""

import os
from collections.abc import Iterator
from contextlib import suppress

from pydantic import Field, FiniteFloat, ValidationError

from harness.base.files.json_files import File, Versioned
from harness.base.files.untrusted_file import NotAFileError
from harness.base.files.untrusted_tree import UntrustedTree
from harness.evidence.files.run_folder import RunFolder

# Most lines of the file: an hour with one sample a second. Of a night, every eighth sample or so remains. With two GPUs
# the file has two megabytes.
MOST_LINES = 4096
LARGEST_BYTES = 16 << 20
# Most sensors or clocks of a GPU, and most GPUs of a run; drivers have fewer of each.
MOST_NAMES, MOST_GPUS = 32, 64


class GpuSensors(File):
    """The sensors of one GPU, as the driver reports them; values that it does not report are null or missing."""

    gpu: int = Field(description="its index on the host")
    busy_percent: int | None
    power_watts: FiniteFloat | None
    celsius: dict[str, FiniteFloat] = Field(
        max_length=MOST_NAMES, description="temperatures by sensor: edge, junction, mem"
    )
    megahertz: dict[str, FiniteFloat] = Field(
        max_length=MOST_NAMES, description="clocks: sclk of the shaders, mclk of the memory"
    )
    used_bytes: int | None = Field(description="of its memory, by any process")


class GpuSensorSample(Versioned):
    """One sample of the GPUs of a run."""

    wall: FiniteFloat = Field(description="seconds since 1970")
    monotonic: FiniteFloat = Field(description="seconds of the kernel's clock, by which it stamps its log")
    gpus: tuple[GpuSensors, ...] = Field(max_length=MOST_GPUS)


class SensorLog:
    """Writes the samples of a run to the run folder, in at most `most` lines.

    When there are more, every second line is dropped, and from then on half as many samples are kept. A failed write
    does not fail the run.
    """

    def __init__(self, folder: RunFolder, most: int = MOST_LINES) -> None:
        self._file = folder.named(RunFolder.GPU_SENSORS)
        self._most = most
        self._lines: list[bytes] = []
        self._every, self._seen = 1, 0
        self._descriptor: int | None = None

    def add(self, sample: GpuSensorSample) -> None:
        """Add a sample, or skip it if there are too many."""
        self._seen += 1
        if (self._seen - 1) % self._every:
            return
        self._lines.append(sample.model_dump_json(by_alias=True).encode() + b"\n")
        # A full disk is reported where the record is written.
        with suppress(OSError):
            if len(self._lines) > self._most:
                self._thin_out()
            else:
                os.write(self._open(), self._lines[-1])

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        if self._descriptor is None:
            # O_EXCL, because a process of the run may have made something else of this name: opening a FIFO would
            # block.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(self._file, flags, 0o644)
        return self._descriptor

    def _thin_out(self) -> None:
        self._lines = self._lines[::2]
        self._every *= 2
        os.ftruncate(self._open(), 0)
        os.write(self._open(), b"".join(self._lines))


def read_sensors(folder: RunFolder, most: int = MOST_LINES) -> Iterator[GpuSensorSample]:
    """Yield the samples of a run in order, of more than `most` evenly spaced ones up to the last.

    Damaged lines are skipped, and lines after the first MOST_LINES ignored. Without a file there are no samples.
    """
    with suppress(FileNotFoundError, NotAFileError):
        content = UntrustedTree(folder.path).read(RunFolder.GPU_SENSORS, LARGEST_BYTES)
        # After the last newline is nothing, or a line that a crash cut off.
        lines = content[: content.rfind(b"\n") + 1].split(b"\n", MOST_LINES)[:MOST_LINES]
        told = [line for line in lines if line]
        every = max(1, -(-len(told) // most))
        # Counted from the end, because the last sample comes right before a hang or a crash.
        for line in told[(len(told) - 1) % every :: every]:
            with suppress(ValidationError):
                yield GpuSensorSample.parse(line)
