"""Reads the driver's files about one AMD GPU. `root` may be a fake tree."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from harness.base.sysfs import read_number, read_text
from harness.base.time_limits import ANSWER_SECONDS, BackgroundCall
from harness.host.facts import GpuFacts

Value = TypeVar("Value")

# Firmware of the blocks that computing depends on: scheduler, shader and copy engines, power; not of video and
# displays.
FIRMWARE = ("imu", "me", "mec", "mec2", "mes", "mes_kiq", "pfp", "rlc", "sdma", "sdma2", "smc", "sos")


def device_folder(gpu: GpuFacts, root: Path) -> Path | None:
    """Return the GPU's own folder in sysfs; None where the driver gave the GPU no render node."""
    return root / "sys/class/drm" / Path(gpu.render_node).name / "device" if gpu.render_node else None


def used_memory(folder: Path) -> int | None:
    """Return the bytes of device memory that any process uses, from a GPU's own folder in sysfs."""
    return read_number(folder / "mem_info_vram_used")


def total_memory(folder: Path) -> int | None:
    """Return the bytes of device memory that a GPU has, from its own folder in sysfs."""
    return read_number(folder / "mem_info_vram_total")


def product_name(folder: Path) -> str | None:
    """Return the product name of a card, which few cards have, from a GPU's own folder in sysfs."""
    return read_text(folder / "product_name")


def firmware(folder: Path) -> dict[str, str]:
    """Return the firmware versions by block, such as 0x00000083, from a GPU's own folder in sysfs."""
    found = ((block, read_text(folder / f"fw_version/{block}_fw_version")) for block in FIRMWARE)
    return {block: version for block, version in found if version}


def memory_in_use(gpu: GpuFacts, root: Path) -> int | None:
    """Return the bytes of device memory in use; None where the driver does not report them, or not in time."""
    folder = device_folder(gpu, root)
    return _in_time(partial(used_memory, folder)) if folder else None


def pci_address(gpu: GpuFacts, root: Path) -> str | None:
    """Return the GPU's address such as `0000:03:00.0`, which the kernel log and AMD's tools use."""
    folder = device_folder(gpu, root)
    told = _in_time(partial(read_text, folder / "uevent")) if folder else None
    found = re.search(r"^PCI_SLOT_NAME=(\S+)$", told or "", re.MULTILINE)
    return found[1].lower() if found else None


def _in_time(read: Callable[[], Value | None]) -> Value | None:
    """Return the value that is read; None where an unhealthy driver does not answer in time."""
    try:
        return BackgroundCall(read).result(ANSWER_SECONDS)
    except TimeoutError:
        return None
