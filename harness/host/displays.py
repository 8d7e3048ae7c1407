"""Which GPUs have a screen attached, as the kernel's DRM connectors tell it. `root` can be a fake tree."""

from collections.abc import Iterable
from pathlib import Path

from harness.host.amdgpu import device_folder
from harness.host.facts import GpuFacts

CONNECTED = "connected"


def connected_displays(gpu: GpuFacts, root: Path = Path("/")) -> tuple[str, ...]:
    """Return the connectors of a GPU with a screen attached, such as `DP-1`, whether it is on or asleep."""
    folder = device_folder(gpu, root)
    connectors = sorted(folder.glob("drm/card[0-9]*/card[0-9]*-*")) if folder else []
    return tuple(place.name.partition("-")[2] for place in connectors if _status(place) == CONNECTED)


def headless_first(gpus: Iterable[GpuFacts]) -> tuple[int, ...]:
    """Return the indexes of GPUs in the order in which to use them: one that hangs should not take a screen with it."""
    return tuple(gpu.index for gpu in sorted(gpus, key=lambda gpu: (bool(gpu.displays), gpu.index)))


def _status(connector: Path) -> str:
    try:
        return (connector / "status").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"
