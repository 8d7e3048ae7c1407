"""Memory of the devices: allocated, filled, copied to and from, fragmented."""

from collections.abc import Iterator

import torch

from vpoc.gpu_memory.spare import spare_share
from vpoc.probes.host_memory import free_host_memory
from vpoc.probes.numbers import require_equal
from vpoc.probes.site import Site, Skipped

KB, MB, GB = 1 << 10, 1 << 20, 1 << 30
COPIES = (4 * KB, 64 * KB, MB + 4, 16 * MB, 256 * MB, GB)
"""Sizes in bytes; one of them is no round number."""
COPIES_AT_A_TIME = 4
"""Copies in host memory: the pattern, a pinned one, one read back, and one for comparing."""
FRAGMENT_BYTES = 64 * MB
LARGEST_ON_CPU = GB
FILLED_SHARE, LARGE_SHARE = 0.6, 0.45
"""Shares of free memory: together more than there is, but less once every second block was freed."""


def allocate(site: Site) -> str:
    """Tensors of many sizes, filled and read back."""
    sizes = [4 * KB, MB, 20 * MB, 256 * MB]
    for device in site.devices:
        for size in sizes:
            site.at(f"{_named(size)} on {device}")
            zeros, sevens = torch.zeros(size // 4, device=device), torch.full((size // 4,), 7.0, device=device)
            require_equal(zeros, torch.zeros(size // 4), f"zeros of {_named(size)}")
            require_equal(sevens, torch.full((size // 4,), 7.0), f"sevens of {_named(size)}")
    return f"{', '.join(map(_named, sizes))}, filled and read back"


def copy(site: Site, largest: str = str(GB)) -> str:
    """Copy a pattern of distinct words to the device, on it, and back, from pageable and from pinned memory."""
    done, left_out = [], []
    for device in site.devices:
        for size in (size for size in COPIES if size <= int(largest)):
            site.at(f"{_named(size)} to {device} and back")
            lacking = _lacking(size, device, site.spare)
            if lacking:
                left_out.append(f"{_named(size)} left out on {device}: {lacking}")
                continue
            pattern = torch.arange(size // 4, dtype=torch.int32).mul_(-1640531535)
            for way, back in _ways(pattern, device):
                require_equal(back, pattern, f"copy of {_named(size)} {way}")
            done.append(_named(size))
    if not done:
        raise Skipped("; ".join(left_out))
    return "; ".join([f"{', '.join(dict.fromkeys(done))} unchanged", *left_out])


def fragmented(site: Site, largest_on_cpu: str = str(LARGEST_ON_CPU)) -> str:
    """Fill much of the free memory with blocks, free every second one, then allocate one large piece."""
    said = []
    for device in site.devices:
        room = _room(device, site.spare)
        if device.type == "cpu":
            room = min(room // 2, int(largest_on_cpu))
        count, large = int(room * FILLED_SHARE) // FRAGMENT_BYTES, int(room * LARGE_SHARE)
        if count < 4:
            raise Skipped(f"only {_named(room)} of memory free on {device}, {_named(8 * FRAGMENT_BYTES)} are needed")
        site.at(f"{count} blocks of {_named(FRAGMENT_BYTES)} on {device}")
        blocks = {number: _block(number, device) for number in range(count)}
        for number in range(0, count, 2):
            del blocks[number]
        site.at(f"one piece of {_named(large)} after {count} blocks of {_named(FRAGMENT_BYTES)} on {device}")
        piece = torch.full((large // 4,), -1, dtype=torch.int32, device=device)
        for number, block in blocks.items():
            require_equal(
                block[:: FRAGMENT_BYTES // 64], torch.full((16,), number, dtype=torch.int32), f"block {number}"
            )
        ends = piece[:: max(piece.numel() // 1000, 1)]
        require_equal(ends, torch.full(ends.shape, -1, dtype=torch.int32), "the large piece")
        said.append(f"{_named(large)} in one piece after {count} blocks of {_named(FRAGMENT_BYTES)} on {device}")
    return "; ".join(said)


def _ways(pattern: torch.Tensor, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
    if device.type == "cpu":
        yield "in host memory", pattern.clone()
        return
    there = pattern.to(device)
    yield "from pageable memory", there.cpu()
    yield "on the device", there.clone().cpu()
    pinned = pattern.pin_memory()
    there = pinned.to(device, non_blocking=True)
    torch.cuda.synchronize(device)
    yield "from pinned memory", there.cpu()
    pinned.zero_()
    pinned.copy_(there, non_blocking=True)
    torch.cuda.synchronize(device)
    yield "to pinned memory", pinned


def _lacking(size: int, device: torch.device, spare: float | None) -> str:
    need, room = COPIES_AT_A_TIME * size, free_host_memory()
    if room < need:
        return f"{_named(room)} of host memory free, {_named(need)} needed"
    if device.type == "cuda" and (room := _room(device, spare)) < 3 * size:
        return f"{_named(room)} of its memory free, {_named(3 * size)} needed"
    return ""


def _room(device: torch.device, spare: float | None) -> int:
    """Bytes of free memory that may be used; of a GPU the share `spare` stays free for other users of the card."""
    if device.type == "cpu":
        return free_host_memory()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return max(int(free - spare_share(device, spare) * total), 0)


def _block(number: int, device: torch.device) -> torch.Tensor:
    return torch.full((FRAGMENT_BYTES // 4,), number, dtype=torch.int32, device=device)


def _named(size: int) -> str:
    for unit, name in ((GB, "GB"), (MB, "MB"), (KB, "KB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size} B"
