"""Reads memory, load, power, clocks and temperature of every AMD GPU from sysfs. `root` may be a fake tree."""

import re
from dataclasses import dataclass
from pathlib import Path

from harness.base.sysfs import read_number, read_text
from harness.host.gpus.amdgpu import product_name, total_memory, used_memory

AMD = "0x1002"
BUSY_PERCENT = 99
# Share of the power limit below which a GPU does not compute: one that computes draws most of its limit, an idle one a
# twentieth to a tenth.
LITTLE_POWER = 1 / 3


@dataclass(frozen=True)
class GpuSample:
    """One GPU, by its PCI address; None for values that the driver does not report. Temperatures, clocks by name."""

    card: str
    name: str
    used_bytes: int | None
    total_bytes: int | None
    busy_percent: int | None
    power_watts: float | None
    power_limit_watts: float | None
    celsius: dict[str, float]
    megahertz: dict[str, float]

    @property
    def idle_at_full_load(self) -> str | None:
        """A note that the GPU reports full load but draws little power, so that it only waits; None otherwise."""
        watts, limit = self.power_watts, self.power_limit_watts
        busy = self.busy_percent is not None and self.busy_percent >= BUSY_PERCENT
        if not busy or watts is None or not limit or watts >= LITTLE_POWER * limit:
            return None
        return f"GPU {self.card} is {self.busy_percent} % busy at {watts:.0f} W of {limit:.0f} W"


def sample_gpus(root: Path) -> tuple[GpuSample, ...]:
    """Return a sample of every AMD GPU, in the order of PCI addresses."""
    folders = (folder for folder in root.glob("sys/class/drm/card*/device") if _is_gpu(folder))
    return tuple(sorted((sample_gpu(folder) for folder in folders), key=lambda sample: sample.card))


def _is_gpu(folder: Path) -> bool:
    # card0-DP-1 is a connector.
    return re.fullmatch(r"card\d+", folder.parent.name) is not None and read_text(folder / "vendor") == AMD


def sample_gpu(folder: Path) -> GpuSample:
    """Return a sample of one GPU, from its own folder in sysfs."""
    sensors = next(iter(sorted(folder.glob("hwmon/hwmon*"))), folder / "hwmon")
    power = read_number(sensors / "power1_average")
    # Newer GPUs report only the power that they draw at this moment.
    watts = read_number(sensors / "power1_input") if power is None else power
    limit = read_number(sensors / "power1_cap")
    return GpuSample(
        card=folder.resolve().name,
        name=product_name(folder) or "AMD GPU",
        used_bytes=used_memory(folder),
        total_bytes=total_memory(folder),
        busy_percent=read_number(folder / "gpu_busy_percent"),
        power_watts=None if watts is None else watts / 1e6,
        power_limit_watts=None if limit is None else limit / 1e6,
        celsius=_named(sensors, "temp*_input", 1e3),
        # As in gpu/amdgpu/thermal of the kernel's docs: freq1 is the clock of the shaders, freq2 that of the memory, in
        # hertz.
        megahertz=_named(sensors, "freq*_input", 1e6),
    )


def _named(sensors: Path, pattern: str, unit: float) -> dict[str, float]:
    found = sorted(sensors.glob(pattern))
    return {_label(file): value / unit for file in found if (value := read_number(file)) is not None}


def _label(file: Path) -> str:
    name = file.name.removesuffix("_input")
    return read_text(file.with_name(f"{name}_label")) or name
