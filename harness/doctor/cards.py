"""Reads the display controllers of the PCI bus from /sys."""

import os
import re
from pathlib import Path

from harness.base.sysfs import entries, read_number, read_text
from harness.doctor.machine import AMD, Card, Link
from harness.host.gpus.amdgpu import total_memory, used_memory

ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
DISPLAY_CLASS = 0x03
# The kernel reports this width if it does not know the width of a link.
UNKNOWN_LANES = 255


def read_cards(root: Path) -> tuple[Card, ...]:
    """Return every display controller, in the order of addresses."""
    # Unlike `resolve`, `realpath` takes links that lead in a circle, as somebody may have made on a simulated host.
    folders = (Path(os.path.realpath(entry)) for entry in entries(root / "sys/bus/pci/devices"))
    return tuple(_read_card(f) for f in folders if (read_number(f / "class", 16) or 0) >> 16 == DISPLAY_CLASS)


def _read_card(folder: Path) -> Card:
    vendor = read_number(folder / "vendor", 16) or 0
    edge = _edge(folder, vendor)
    port = edge.parent if ADDRESS.fullmatch(edge.parent.name) else None
    driver = folder / "driver"
    nodes = [node.name for node in entries(folder / "drm") if node.name.startswith("renderD")]
    return Card(
        address=folder.name,
        vendor=vendor,
        driver=driver.resolve().name if driver.exists() else None,
        link=_read_link(edge, port),
        bridges=sum(1 for parent in port.parents if ADDRESS.fullmatch(parent.name)) if port else 0,
        window=_first_window(folder),
        memory=total_memory(folder),
        memory_used=used_memory(folder),
        render_node=f"/dev/dri/{nodes[0]}" if nodes else None,
        root_port=next((one.name for one in reversed(folder.parents) if ADDRESS.fullmatch(one.name)), None),
    )


def _edge(folder: Path, vendor: int) -> Path:
    """Return the device at the slot: a Radeon card has a PCIe switch, and the GPU's own link only leads to it."""
    while vendor == AMD and ADDRESS.fullmatch(folder.parent.name) and read_number(folder.parent / "vendor", 16) == AMD:
        folder = folder.parent
    return folder


def _read_link(edge: Path, port: Path | None) -> Link | None:
    lanes, most = read_number(edge / "current_link_width"), read_number(edge / "max_link_width")
    if not lanes or not most or UNKNOWN_LANES in (lanes, most):
        return None
    return Link(
        lanes=lanes,
        most_lanes=most,
        speed=_speed(edge / "current_link_speed"),
        most_speed=_speed(edge / "max_link_speed"),
        slot_speed=_speed(port / "max_link_speed") if port else None,
    )


def _speed(file: Path) -> float | None:
    found = re.match(r"([\d.]+) GT/s", read_text(file) or "")
    return float(found[1]) if found else None


def _first_window(folder: Path) -> int | None:
    """Return the size in bytes of the first PCI resource, through which the processor accesses a Radeon's memory."""
    found = re.match(r"0x([0-9a-f]{1,16}) 0x([0-9a-f]{1,16}) ", read_text(folder / "resource") or "")
    start, end = (int(found[1], 16), int(found[2], 16)) if found else (0, 0)
    return end - start + 1 if end else None
