"""GPU memory as the driver reports it: how much of each card is used, and by which processes. Standard library only.

`root` stands for `/`. Unreadable values are left out, because looking at an unhealthy GPU must not end a training.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO of the kernel's include/linux/proc_ns.h: the namespace in which pids are those of the host."""
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
REGION = re.compile(r"drm-(resident|memory)-(vram\d*)")


@dataclass(frozen=True)
class Card:
    """A GPU that reports its memory: PCI address (`0000:03:00.0`), its folder in sysfs, its render node.

    `compute_node`: its number in the topology of the compute driver (KFD), which is the order of HIP's devices; None
    without one.
    """

    address: str
    folder: Path
    render_node: Path | None
    compute_node: int | None


@dataclass(frozen=True)
class CardMemory:
    """Bytes used by all processes, bytes in total, and how busy the card is in percent (None if unknown)."""

    used_bytes: int
    total_bytes: int
    busy_percent: int | None


@dataclass(frozen=True)
class Owner:
    """A process that holds `bytes` of the memory of `card` (PCI address; None: unknown).

    `kfd` counts compute memory and uses the host's pids; `fdinfo` counts memory used through a render node and uses the
    pids that this process sees. `name` is None if the pid does not belong to a visible process.
    """

    pid: int
    name: str | None
    bytes: int
    source: Literal["kfd", "fdinfo"]
    card: str | None


def find_cards(root: Path = Path("/")) -> tuple[Card, ...]:
    """Return the cards whose driver reports their memory in sysfs (amdgpu does), by PCI address."""
    numbers = {node.address: node.number for node in _compute_nodes(root)}
    found = []
    for folder in root.glob("sys/class/drm/card*/device"):
        # Other entries, such as card0-DP-1, are connectors.
        if re.fullmatch(r"card\d+", folder.parent.name) and memory_of(folder):
            nodes = sorted(folder.glob("drm/renderD*"))
            node = root / "dev/dri" / nodes[0].name if nodes else None
            address = folder.resolve().name
            found.append(Card(address, folder, node, numbers.get(address)))
    return tuple(sorted(found, key=lambda card: card.address))


def memory_of(folder: Path) -> CardMemory | None:
    """Return the memory of the card with this folder in sysfs; None when the card does not report it."""
    used, total = _number(folder / "mem_info_vram_used"), _number(folder / "mem_info_vram_total")
    if used is None or not total:
        return None
    return CardMemory(used, total, _number(folder / "gpu_busy_percent"))


def has_display(folder: Path) -> bool:
    """Return whether a connector of the card with this folder in sysfs has a screen attached, on or asleep."""
    return any(_text(file) == "connected" for file in folder.glob("drm/card[0-9]*/card[0-9]*-*/status"))


def sees_host_pids(root: Path = Path("/")) -> bool:
    """Return whether this process sees the host's pids; in most containers it does not."""
    try:
        return str((root / "proc/self/ns/pid").readlink()) == INITIAL_PID_NAMESPACE
    except OSError:
        return False


def owners(root: Path = Path("/")) -> tuple[Owner, ...]:
    """Return the processes that hold GPU memory, as far as this process may see them; the largest holders come first.

    If pids are the host's, a process that both sources know is reported once, by the source that saw more. Otherwise
    the sources use different pids, and the process is reported twice. Processes of other users are in `kfd` only,
    unless root asks.
    """
    host = sees_host_pids(root)
    found = [*_kfd_owners(root, named=host), *_drm_owners(root)]
    if host:
        held: dict[tuple[int, str], int] = defaultdict(int)
        for owner in found:
            held[owner.pid, owner.source] += owner.bytes
        found = [owner for owner in found if owner.source == _fuller(held, owner.pid)]
    return tuple(sorted(found, key=lambda owner: (-owner.bytes, owner.pid, owner.card or "")))


def _fuller(held: dict[tuple[int, str], int], pid: int) -> str:
    return "kfd" if held.get((pid, "kfd"), 0) >= held.get((pid, "fdinfo"), 0) else "fdinfo"


def _kfd_owners(root: Path, *, named: bool) -> Iterator[Owner]:
    """Yield the owners from kfd: `proc/<pid of the host>/vram_<gpu id>`, in bytes.

    The format is that of drivers/gpu/drm/amd/amdkfd/kfd_process.c.
    """
    cards = {node.gpu_id: node.address for node in _compute_nodes(root)}
    for file in root.glob("sys/class/kfd/kfd/proc/[0-9]*/vram_*"):
        held = _number(file)
        if held and file.parent.name.isdigit():
            pid = int(file.parent.name)
            name = _name(root, pid) if named else None
            yield Owner(pid, name, held, "kfd", cards.get(file.name.removeprefix("vram_")))


@dataclass(frozen=True)
class _ComputeNode:
    """A GPU in the topology of the compute driver: its number there, its KFD id, and its PCI address."""

    number: int
    gpu_id: str
    address: str


def _compute_nodes(root: Path) -> Iterator[_ComputeNode]:
    for node in root.glob("sys/class/kfd/kfd/topology/nodes/[0-9]*"):
        minor = re.search(r"^drm_render_minor (\d+)$", _text(node / "properties") or "", re.MULTILINE)
        gpu_id = _number(node / "gpu_id")
        device = root / f"sys/class/drm/renderD{minor[1]}/device" if minor else None
        if gpu_id and device and device.exists() and node.name.isdigit():
            yield _ComputeNode(int(node.name), str(gpu_id), device.resolve().name)


def _drm_owners(root: Path) -> Iterator[Owner]:
    """Yield the owners according to the kernel's Documentation/gpu/drm-usage-stats.rst.

    A client may have several descriptors, and processes.
    """
    clients: set[tuple[str, str]] = set()
    held: dict[tuple[int, str], int] = defaultdict(int)
    pids = [int(folder.name) for folder in root.glob("proc/[0-9]*") if folder.name.isdigit()]
    for pid in sorted(pids):
        for file in _listed(root / f"proc/{pid}/fdinfo"):
            facts = _facts(_text(file) or "")
            client = facts.get("drm-pdev", ""), facts.get("drm-client-id", "")
            if "drm-driver" in facts and client not in clients:
                # Without an identifier, two descriptors of one client cannot be distinguished from two clients.
                if client[1]:
                    clients.add(client)
                held[pid, client[0]] += _video_memory(facts)
    for (pid, card), used in held.items():
        if used:
            yield Owner(pid, _name(root, pid), used, "fdinfo", card or None)


def _facts(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines() if line.startswith("drm-"))
    return {key: value.strip() for key, _, value in pairs}


def _video_memory(facts: dict[str, str]) -> int:
    """Return the bytes in regions of video memory."""
    regions: dict[str, int] = {}
    # `drm-memory-` is the older name of `drm-resident-`; the latter sorts later here and wins if both are reported.
    for key in sorted(facts):
        found = REGION.fullmatch(key)
        number, _, unit = facts[key].partition(" ")
        if found and number.isdigit() and unit in UNITS:
            regions[found[2]] = int(number) * UNITS[unit]
    return sum(regions.values())


def _name(root: Path, pid: int) -> str | None:
    return _text(root / f"proc/{pid}/comm")


def _number(file: Path) -> int | None:
    text = _text(file)
    return int(text) if text and text.isdigit() else None


def _text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
