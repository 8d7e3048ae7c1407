"""Finds the GPUs with a screen attached, from the kernel's DRM connectors. `root` may be a fake tree."""

from collections.abc import Iterable
from pathlib import Path

from harness.base.sysfs import read_text
from harness.host.facts import GpuFacts
from harness.host.gpus.amdgpu import device_folder

CONNECTED, DISCONNECTED = "connected", "disconnected"
# A connector to which nothing can be attached: it writes a picture into memory. Since Linux 6.8 amdgpu has one for each
# card, and its status is always `unknown`.
WRITEBACK = "Writeback-"


def connected_displays(gpu: GpuFacts, root: Path) -> tuple[str, ...]:
    """Return the connectors of a GPU with a screen attached, such as `DP-1`, whether it is on or asleep."""
    return tuple(name for name, status in _connectors(gpu, root) if status == CONNECTED)


def why_a_screen_may_be_lost(gpu: GpuFacts, root: Path) -> str | None:
    """Return in words why a screen may be attached to a GPU; None where every connector says that there is none.

    A connector whose status cannot be read, or is `unknown`, may have a screen.
    """
    if screens := connected_displays(gpu, root):
        return f"a screen is attached to it ({', '.join(screens)})"
    folder = device_folder(gpu, root)
    if folder is None or not any(folder.glob("drm/card[0-9]*")):
        return "the driver does not show what connectors it has"
    if unknown := [f"{name} {status}" for name, status in _connectors(gpu, root) if status != DISCONNECTED]:
        return f"a screen may be attached to it ({', '.join(unknown)})"
    return None


def headless_first(gpus: Iterable[GpuFacts]) -> tuple[int, ...]:
    """Return the indexes of GPUs, those without a screen first: a GPU that hangs should not take a screen with it."""
    return tuple(gpu.index for gpu in sorted(gpus, key=lambda gpu: (bool(gpu.displays), gpu.index)))


def _connectors(gpu: GpuFacts, root: Path) -> list[tuple[str, str]]:
    """Return the name and the status of each connector to which a screen can be attached."""
    folder = device_folder(gpu, root)
    places = sorted(folder.glob("drm/card[0-9]*/card[0-9]*-*")) if folder else []
    named = ((place.name.partition("-")[2], place) for place in places)
    return [(name, _status(place)) for name, place in named if not name.startswith(WRITEBACK)]


def _status(connector: Path) -> str:
    return read_text(connector / "status") or "unknown"
