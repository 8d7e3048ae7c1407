"""The memory of a training as torch and the driver report it; when they disagree; when to free some."""

import math
import os
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from vpoc.gpu_memory.amdgpu import Card, Owner, find_cards, memory_of, owners, sees_host_pids
from vpoc.gpu_memory.torch_memory import Allocator, TorchMemory
from vpoc.progress import rss_bytes

FULL_CARD = 0.95
"""Share of a card from which the driver reports it as full: the rest of 20 GiB would not hold one large gradient."""
LITTLE = 0.5
"""If torch holds less than this share of the used memory, something else fills the card."""
FRAGMENTED = 0.3
"""Unused share of torch's reserved memory from which it counts as fragmented; in steady training it is far below."""
LARGE_RESERVE = 0.5
"""Share of a card that torch must have reserved before defragmenting is worth its cost: below it, nobody lacks room."""
NEARLY_FULL = 0.9
"""Share of a card from which contexts, workspaces and communicators, which are outside torch's cache, may fail."""
WORTH = 0.1
"""Share of a card that must be unused in torch's cache: the next steps would take less back at once."""
RELEASE_EVERY_S = 30.0
"""Releasing memory waits for the device, and allocating it again is slow; once every half minute is not noticeable."""
VISIBILITY = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
"""Variables that hide or reorder devices: of ROCr, HIP, HIP again, and the OpenCL runtime that HIP shares."""
OWNERS_NAMED = 3


@dataclass(frozen=True)
class DeviceMemory:
    """One GPU of this process: the bytes torch holds, and the bytes all processes use by the driver."""

    device: str
    card: str | None
    torch: TorchMemory
    driver_used_bytes: int
    driver_total_bytes: int

    @property
    def fullness(self) -> float:
        """Used share of the card, from 0 to 1."""
        return self.driver_used_bytes / self.driver_total_bytes


@dataclass(frozen=True)
class MemorySample:
    """Memory at one moment. Torch's bytes are sums over this process's GPUs; None without a GPU.

    `driver_used_bytes` are those of the fullest of its GPUs, since one full card is enough to fail.
    """

    rss_bytes: int
    devices: tuple[DeviceMemory, ...]

    @property
    def allocated_bytes(self) -> int | None:
        """Bytes in tensors."""
        return sum(d.torch.allocated_bytes for d in self.devices) if self.devices else None

    @property
    def reserved_bytes(self) -> int | None:
        """Bytes that torch allocated from the driver."""
        return sum(d.torch.reserved_bytes for d in self.devices) if self.devices else None

    @property
    def fullest(self) -> DeviceMemory | None:
        """The GPU with the largest used share."""
        return max(self.devices, key=lambda d: d.fullness, default=None)

    @property
    def driver_used_bytes(self) -> int | None:
        """Bytes used on the fullest GPU, by any process."""
        return self.fullest.driver_used_bytes if self.fullest else None

    @property
    def fragmentation(self) -> float | None:
        """Share of torch's reserved memory that no tensor uses: 1 - allocated / reserved.

        None if nothing is reserved.
        """
        if not self.reserved_bytes:
            return None
        return 1 - (self.allocated_bytes or 0) / self.reserved_bytes


class MemoryMonitor:
    """Watches the memory of this process and of those of its `devices` that are GPUs.

    `skip_cleanup`: never release memory. `root` stands for `/`.
    """

    def __init__(
        self,
        devices: Sequence[torch.device],
        *,
        skip_cleanup: bool,
        root: Path = Path("/"),
        allocator: Allocator | None = None,
        clock: Callable[[], float] = time.monotonic,
        variables: Mapping[str, str] = os.environ,
    ) -> None:
        self._allocator = allocator or Allocator()
        self._skip_cleanup = skip_cleanup
        self._root = root
        self._clock = clock
        gpus = [device for device in devices if device.type == "cuda"]
        self._cards = matched_cards(gpus, find_cards(root) if gpus else (), self._allocator, variables)
        self._latest: MemorySample | None = None
        self._most_reserved: MemorySample | None = None
        self._peak_rss = 0
        self._peak_driver: int | None = None
        self._last_release = -math.inf

    def read(self) -> tuple[int, int]:
        """Return bytes allocated and reserved by torch, summed over the GPUs, as Progress.device_memory needs them."""
        held = [self._allocator.memory(device) for device in self._cards]
        return sum(memory.allocated_bytes for memory in held), sum(memory.reserved_bytes for memory in held)

    def sample(self) -> MemorySample:
        """Take a sample, and update the peaks. Takes well under a millisecond."""
        sample = MemorySample(rss_bytes(), tuple(self._look(device) for device in self._cards))
        self._latest = sample
        self._peak_rss = max(self._peak_rss, sample.rss_bytes)
        if sample.driver_used_bytes is not None:
            self._peak_driver = max(self._peak_driver or 0, sample.driver_used_bytes)
        if self._most_reserved is None or (sample.reserved_bytes or 0) >= (self._most_reserved.reserved_bytes or 0):
            self._most_reserved = sample
        return sample

    def peaks(self) -> dict[str, Any]:
        """Return `memory` of result.json. Torch's peaks are exact; the driver's peak is the highest sample.

        `fragmentation` is that of the sample with the most memory reserved, `owners` are the present ones. Without a
        GPU there are no owners and all but `peak_rss_bytes` is None.
        """
        last = self.sample()
        held = [device.torch for device in last.devices]
        return {
            "peak_allocated_bytes": sum(memory.peak_allocated_bytes for memory in held) if held else None,
            "peak_reserved_bytes": sum(memory.peak_reserved_bytes for memory in held) if held else None,
            "peak_driver_bytes": self._peak_driver,
            # Linux counts the peak in KiB, and it may lag some pages behind a sampled value.
            "peak_rss_bytes": max(self._peak_rss, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10),
            "fragmentation": self._most_reserved.fragmentation if self._most_reserved else None,
            "owners": [asdict(owner) for owner in owners(self._root)] if held else [],
        }

    def disconnect(self, sample: MemorySample) -> str | None:
        """Return one line if the driver reports a card as full and most of its memory is not torch's; None otherwise.

        It names the holders of the memory and this process, and says what to do.
        """
        for device in sorted(sample.devices, key=lambda d: d.fullness, reverse=True):
            if device.fullness >= FULL_CARD and device.torch.reserved_bytes < LITTLE * device.driver_used_bytes:
                on_card = [owner for owner in owners(self._root) if owner.card in (None, device.card)]
                return _disconnect_line(device, on_card, host=sees_host_pids(self._root))
        return None

    def release(self) -> None:
        """Release unused memory if that is worthwhile by the latest sample, at most every 30 s."""
        if self._skip_cleanup or self._latest is None or not any(map(_worth_releasing, self._latest.devices)):
            return
        now = self._clock()
        if now - self._last_release >= RELEASE_EVERY_S:
            self._last_release = now
            self._allocator.release()

    def _look(self, device: torch.device) -> DeviceMemory:
        card = self._cards[device]
        told = memory_of(card.folder) if card else None
        used, total = (told.used_bytes, told.total_bytes) if told else self._allocator.driver(device)
        return DeviceMemory(str(device), card.address if card else None, self._allocator.memory(device), used, total)


def _worth_releasing(device: DeviceMemory) -> bool:
    unused = device.torch.reserved_bytes - device.torch.allocated_bytes
    fragmented = unused > FRAGMENTED * device.torch.reserved_bytes
    large = device.torch.reserved_bytes > LARGE_RESERVE * device.driver_total_bytes
    return (fragmented and large) or (device.fullness >= NEARLY_FULL and unused >= WORTH * device.driver_total_bytes)


def matched_cards(
    gpus: Sequence[torch.device], cards: Sequence[Card], allocator: Allocator, variables: Mapping[str, str]
) -> dict[torch.device, Card | None]:
    """Return the card of each GPU; None if that is uncertain, in which case the runtime reports the memory instead."""
    by_address = {card.address: card for card in cards}
    accessible = {
        card.compute_node: card
        for card in cards
        if card.compute_node is not None and card.render_node and card.render_node.exists()
    }
    # Without addresses match by order, if nothing hides or reorders devices and all are there.
    in_order = len(accessible) == allocator.count() and not any(variables.get(name) for name in VISIBILITY)
    matched: dict[torch.device, Card | None] = {}
    for gpu in gpus:
        address = allocator.address(gpu)
        if address is not None:
            matched[gpu] = by_address.get(address)
        else:
            matched[gpu] = accessible[sorted(accessible)[gpu.index or 0]] if in_order else None
    return matched


def _disconnect_line(device: DeviceMemory, found: Sequence[Owner], *, host: bool) -> str:
    """Return the disagreement on `device` as one line; `found`: the owners on its card, `host`: pids are the host's."""
    # In a container the driver's list is complete, and what this process sees of itself is a part of it.
    listed = [owner for owner in found if owner.source == "kfd"] if not host else []
    listed = listed or list(found)
    numbered = not host and any(owner.source == "kfd" for owner in listed)
    pid = os.getpid()
    mine = sum(owner.bytes for owner in found if owner.pid == pid and (host or owner.source == "fdinfo"))
    others = max(0, sum(owner.bytes for owner in listed) - mine)
    unseen = max(0, device.driver_used_bytes - mine - others)
    names = [_named(owner, pid, numbered=numbered) for owner in listed[:OWNERS_NAMED]]
    if len(listed) > OWNERS_NAMED:
        names.append(f"{len(listed) - OWNERS_NAMED} more")
    strangers = [owner.pid for owner in listed if numbered or owner.pid != pid]
    if unseen > max(mine, others):
        remedy = (
            "most of it belongs to no process that can be seen from here: on the host, `sudo fuser -v /dev/kfd "
            "/dev/dri/render*` lists who has the GPU open; end those, or reboot when there are none"
        )
    elif others > mine:
        remedy = f"end pid {strangers[0]}{' of the host' if numbered else ''}, or train on another GPU"
    else:
        remedy = (
            "this process holds it outside torch's cache (workspaces, communicators, all of it with "
            "PYTORCH_NO_HIP_MEMORY_CACHING): unset that variable or use a smaller --micro-batch-size"
        )
    where = f"{device.device} ({device.card})" if device.card else device.device
    used = f"{_size(device.driver_used_bytes)} of {_size(device.driver_total_bytes)} ({device.fullness * 100:.0f} %)"
    this = f"pid {pid}" if host else f"pid {pid} in its container"
    return (
        f"{where}: the driver says {used} are used, torch holds {_size(device.torch.reserved_bytes)}; "
        f"held by {', '.join(names) or 'no visible process'}; this process is {this} and holds {_size(mine)}; {remedy}"
    )


def _named(owner: Owner, pid: int, *, numbered: bool) -> str:
    if numbered:
        return f"pid {owner.pid} of the host {_size(owner.bytes)}"
    words = ", ".join(filter(None, (owner.name, "this process" if owner.pid == pid else None)))
    return f"pid {owner.pid} ({words or 'no name'}) {_size(owner.bytes)}"


def _size(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
