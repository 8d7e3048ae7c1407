"""Rows about memory: the monitor against the memory held, and the micro-batch search up to a real out-of-memory."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu_evidence.arrays import Arrays, feature_count
from benchmarks.gpu_evidence.finding import Finding, Kit, finding_or_differs
from benchmarks.gpu_evidence.training import fit, options_of, weights_of
from vpoc.gpu_memory.monitor import MemoryMonitor
from vpoc.gpu_memory.spare import SPARE
from vpoc.models.by_name import input_shape
from vpoc.probes.site import Site
from vpoc.training.batch_size import fits, largest_that_fits
from vpoc.training.model_file.artefact import weights_sha256

PIECE_BYTES = 1 << 30
PIECE_BYTES_ON_CPU = 1 << 28
SLACK_BYTES = 64 << 20
"""Further bytes that the driver may count: pages, and the allocator's rounding."""
ROOM_BYTES = 3 << 30
"""Bytes that are left for the search, beside those that the search must spare."""
ROOM_BYTES_ON_CPU, SPARE_ON_CPU = 3 << 28, 1 << 30
LARGEST = 1 << 17
"""The number of samples that is asked for, far more than fit into memory."""
STEPS_AFTER = 5


def monitored(site: Site, _kit: Kit) -> Finding:
    """Allocate a known amount of memory, which the monitor and the driver must report."""
    device = site.devices[0]
    monitor = MemoryMonitor([device], skip_cleanup=False)
    if device.type == "cuda":
        # The first kernel of a kind loads code, which takes memory as well.
        torch.ones(1, dtype=torch.uint8, device=device)
        torch.cuda.synchronize(device)
    before = monitor.sample()
    if device.type == "cpu":
        held: Any = np.ones(PIECE_BYTES_ON_CPU, dtype=np.uint8)
        grown, size = monitor.sample().rss_bytes - before.rss_bytes, held.nbytes
        right = abs(grown - size) <= SLACK_BYTES
        return finding_or_differs(
            right, f"{size >> 20} MiB taken, {grown >> 20} MiB seen as resident memory", {"taken": size, "seen": grown}
        )
    held = torch.ones(PIECE_BYTES, dtype=torch.uint8, device=device)
    torch.cuda.synchronize(device)
    after = monitor.sample()
    grown = (after.driver_used_bytes or 0) - (before.driver_used_bytes or 0)
    by_torch = (after.allocated_bytes or 0) - (before.allocated_bytes or 0)
    free, total = torch.cuda.mem_get_info(device)
    runtime = abs((after.driver_used_bytes or 0) - (total - free))
    numbers = {"taken": held.nbytes, "driver": grown, "torch": by_torch, "driver_against_runtime": runtime}
    right = by_torch == held.nbytes and abs(grown - held.nbytes) <= SLACK_BYTES
    # The compute driver of amdgpu does not count memory of graphics, but its files do, so HIP has no limit here.
    right = right and (torch.version.hip is not None or runtime <= SLACK_BYTES)
    card = after.devices[0].card or "no card of amdgpu; the runtime was asked"
    text = f"{held.nbytes >> 20} MiB taken: torch {by_torch >> 20}, driver {grown >> 20} MiB more ({card})"
    return finding_or_differs(right, f"{text}; driver and runtime {runtime >> 20} MiB apart", numbers)


def micro_batch(site: Site, kit: Kit, kind: str) -> Finding:
    """Search for the largest micro-batch up to a real out-of-memory, then train with it."""
    device = site.devices[0]
    training = fit(Arrays(kit.arrays), kind, site.folder, 1, options_of(kind, site.device))
    strategy, options = training.trainer.strategy, training.options
    shape = input_shape(kind, feature_count())
    before = weights_sha256(weights_of(training))
    tried: dict[int, bool] = {}

    def asked(size: int) -> bool:
        site.at(f"micro-batch of {size}")
        tried[size] = fits(strategy, options, size, shape)
        return tried[size]

    with _little_memory(device):
        largest = largest_that_fits(asked, LARGEST)
        unchanged = weights_sha256(weights_of(training)) == before
        if device.type == "cpu":
            # On a GPU the search itself spares some memory; on a CPU this limit does.
            limit_memory(SPARE_ON_CPU)
        site.at(f"{STEPS_AFTER} steps with a micro-batch of {largest}")
        left = _train(strategy, device, largest, shape)
    refused = sorted(size for size, enough in tried.items() if not enough)
    numbers = {"largest": largest, "tries": len(tried), "refused": len(refused), "free_bytes_after": left}
    text = (
        f"{largest} of {LARGEST} samples fit; {len(refused)} of {len(tried)} tries ran out of memory and left the "
        f"weights {'as they were' if unchanged else 'changed'}; then {STEPS_AFTER} steps"
    )
    if device.type == "cuda":
        spare = int(SPARE * torch.cuda.mem_get_info(device)[1])
        right = bool(refused) and unchanged and left >= spare // 2
        return finding_or_differs(
            right, f"{text}, after which {left >> 20} of the {spare >> 20} MiB spared were free", numbers
        )
    return finding_or_differs(bool(refused) and unchanged, text, numbers)


def _train(strategy: Any, device: torch.device, size: int, shape: tuple[int, ...]) -> int:
    """Make steps with Adam, and return the least memory that was free after a step, in bytes (0 on a CPU)."""
    adam = torch.optim.Adam(strategy.forward.parameters())
    left = []
    for _ in range(STEPS_AFTER):
        adam.zero_grad(set_to_none=True)
        strategy.forward(torch.zeros(size, *shape, device=device)).sum().backward()
        adam.step()
        left.append(torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0)
    return min(left)


def limit_memory(more: int) -> None:
    """Let this process allocate at most `more` bytes beyond what it has now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE") + more, hard))


@contextmanager
def _little_memory(device: torch.device) -> Iterator[None]:
    """Leave this process little of the device's memory."""
    if device.type == "cpu":
        before = resource.getrlimit(resource.RLIMIT_AS)
        limit_memory(ROOM_BYTES_ON_CPU)
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)
        return
    free, total = torch.cuda.mem_get_info(device)
    ballast = torch.empty(max(free - int(SPARE * total) - ROOM_BYTES, 0), dtype=torch.uint8, device=device)
    yield
    del ballast
