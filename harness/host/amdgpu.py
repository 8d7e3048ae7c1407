"""What the driver's files tell of one AMD GPU. `root` can be a fake tree."""

import re
from functools import partial
from pathlib import Path

from harness.base.sysfs import read_text
from harness.base.time_limits import ANSWER_SECONDS, Look
from harness.host.facts import GpuFacts


def device_folder(gpu: GpuFacts, root: Path = Path("/")) -> Path | None:
    """The GPU's own folder in sysfs; None where the driver gave it no render node."""
    return root / "sys/class/drm" / Path(gpu.render_node).name / "device" if gpu.render_node else None


def memory_in_use(gpu: GpuFacts, root: Path = Path("/")) -> int | None:
    """Bytes of device memory in use, by whomever; None where the driver does not tell."""
    told = _text(gpu, "mem_info_vram_used", root)
    return int(told) if told.isdigit() else None


def pci_address(gpu: GpuFacts, root: Path = Path("/")) -> str | None:
    """Its address such as `0000:03:00.0`, by which the kernel log and AMD's tools name it."""
    found = re.search(r"^PCI_SLOT_NAME=(\S+)$", _text(gpu, "uevent", root), re.MULTILINE)
    return found[1].lower() if found else None


def _text(gpu: GpuFacts, name: str, root: Path) -> str:
    """Return what a file says; nothing where it cannot be read, or an unhealthy driver does not answer in time."""
    folder = device_folder(gpu, root)
    if folder is None:
        return ""
    try:
        return Look(partial(read_text, folder / name)).result(ANSWER_SECONDS) or ""
    except TimeoutError:
        return ""
