"""GPU memory as the driver tells it: how much of each card is used, and by which processes. Standard library only.

`root` stands for `/`. What cannot be read is left out: to look at an unhealthy GPU must not end a training.
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
    """A GPU that says how much memory it has: PCI address (`0000:03:00.0`), its folder in sysfs, its render node.

    `compute_node`: its number in the topology of the compute driver (KFD), in whose order HIP counts; None without one.
    """

    address: str
    folder: Path
    render_node: Path | None
    compute_node: int | None


@dataclass(frozen=True)
class CardMemory:
    """Bytes of memory used, by whomever, and there are; how busy the card is, in percent (None: it does not say)."""

    used_bytes: int
    total_bytes: int
    busy_percent: int | None


@dataclass(frozen=True)
class Owner:
    """A process that holds `bytes` of the memory of `card` (PCI address, None: not known which).

    `kfd` counts compute memory and numbers processes as the host does, `fdinfo` counts what goes through a render node
    and numbers them as this process sees them. `name` is None where the number says nothing about a process in sight.
    """

    pid: int
    name: str | None
    bytes: int
    source: Literal["kfd", "fdinfo"]
    card: str | None


def find_cards(root: Path = Path("/")) -> tuple[Card, ...]:
    """The cards whose driver tells their memory in sysfs (amdgpu does), by PCI address."""
    numbers = {node.address: node.number for node in _compute_nodes(root)}
    found = []
    for folder in root.glob("sys/class/drm/card*/device"):
        # card0-DP-1 is a connector.
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
    """Return whether this process numbers processes as the host does; in most containers it does not."""
    try:
        return str((root / "proc/self/ns/pid").readlink()) == INITIAL_PID_NAMESPACE
    except OSError:
        return False


def owners(root: Path = Path("/")) -> tuple[Owner, ...]:
    """Who holds GPU memory, as far as this process may see it; those that hold most come first.

    Where pids are the host's, a process that both sources know is reported once, by the source that saw more. Elsewhere
    the two number it differently, and it is reported twice. Processes of other users are in `kfd` only, unless root
    asks.
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
    """By drivers/gpu/drm/amd/amdkfd/kfd_process.c: `proc/<pid of the host>/vram_<gpu id>`, in bytes."""
    cards = {node.gpu_id: node.address for node in _compute_nodes(root)}
    for file in root.glob("sys/class/kfd/kfd/proc/[0-9]*/vram_*"):
        held = _number(file)
        if held and file.parent.name.isdigit():
            pid = int(file.parent.name)
            name = _name(root, pid) if named else None
            yield Owner(pid, name, held, "kfd", cards.get(file.name.removeprefix("vram_")))


@dataclass(frozen=True)
class _ComputeNode:
    """A GPU in the topology of the compute driver: its number there, KFD's id of it, and its PCI address."""

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
    """By Documentation/gpu/drm-usage-stats.rst of the kernel. A client may have several descriptors, and processes."""
    clients: set[tuple[str, str]] = set()
    held: dict[tuple[int, str], int] = defaultdict(int)
    pids = [int(folder.name) for folder in root.glob("proc/[0-9]*") if folder.name.isdigit()]
    for pid in sorted(pids):
        for file in _listed(root / f"proc/{pid}/fdinfo"):
            facts = _facts(_text(file) or "")
            client = facts.get("drm-pdev", ""), facts.get("drm-client-id", "")
            if "drm-driver" in facts and client not in clients:
                # Without an identifier nothing tells two descriptors of one client from two clients.
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
    """Bytes in regions of video memory."""
    regions: dict[str, int] = {}
    # `drm-memory-` is the older name of `drm-resident-`, which comes later here and counts where both are reported.
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
