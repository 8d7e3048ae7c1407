"""Rows about the volume profile on a device: every path against the CPU's exact levels, and against copy speed."""

import time
from dataclasses import fields
from typing import Any

import numpy as np
import torch

from benchmarks.gpu_evidence.arrays import Arrays, RthSessions
from benchmarks.gpu_evidence.finding import Finding, Kit, finding_or_differs
from vpoc.data.bars import Bars
from vpoc.probes.site import Site
from vpoc.profile.device.paths import PATHS, cells_of, chunks_of, device_levels
from vpoc.profile.facts import concatenated
from vpoc.profile.levels import Levels
from vpoc.profile.session_profiles import rth_spans

PLACEMENTS = ("uniform", "typical", "close")
AREAS = ("two_row", "one_row")
CHUNK = 64
NAIVE_SESSIONS = 24
"""Sessions for the naive path, which waits for the device at every step of the value area; more show nothing new."""
COPY_BYTES = 1 << 28
COPIES = 10
CELL_BYTES = 16 * 8 + 2
"""Bytes that `chunk_levels` moves at least for each cell of its matrices: 16 passes of int64, 2 of bool."""


def path(site: Site, kit: Kit, name: str) -> Finding:
    """Compute the levels of all sessions on a path, with every placement and value area, and compare them."""
    arrays, compared = Arrays(kit.arrays), 0
    bars, sessions = arrays.bars(), arrays.sessions()
    for placement in PLACEMENTS:
        for area in AREAS:
            site.at(f"{name}, {placement}, {area}")
            found = _levels(site, bars, sessions, name, placement, area)
            wrong = _differences(found, arrays.levels(placement, area))
            compared += len(found.vpoc)
            if wrong:
                finding_or_differs(False, f"{placement}, {area}: {wrong}", {"profiles": compared})
    return Finding(f"{compared} profiles, all six numbers of each exactly those of the CPU", {"profiles": compared})


def speed(site: Site, kit: Kit) -> Finding:
    """Measure sessions per second of every path, and the bytes that it must move relative to a copy's."""
    arrays, device = Arrays(kit.arrays), site.devices[0]
    bars, sessions = arrays.bars(), arrays.sessions()
    cells = sum(map(cells_of, chunks_of(rth_spans(bars, sessions)[1], CHUNK)))  # type: ignore[arg-type]
    site.at("copying")
    numbers: dict[str, Any] = {"copy_bytes_per_second": _copy_speed(device)}
    for name in PATHS:
        site.at(name)
        _levels(site, bars, sessions, name, "uniform", "two_row")
        began = time.perf_counter()
        found = _levels(site, bars, sessions, name, "uniform", "two_row")
        seconds = time.perf_counter() - began
        wrong = _differences(found, arrays.levels("uniform", "two_row"))
        if wrong:
            finding_or_differs(False, f"{name}: {wrong}", numbers)
        numbers[f"{name}_sessions_per_second"] = len(found.vpoc) / seconds
        # The naive path uses matrices of another size, so its bytes are not known.
        if name != "naive":
            numbers[f"{name}_share_of_copy"] = cells * CELL_BYTES / seconds / numbers["copy_bytes_per_second"]
    rates = ", ".join(f"{name} {numbers[f'{name}_sessions_per_second']:.3g}" for name in PATHS)
    return Finding(
        f"sessions per second: {rates}; a copy moves {numbers['copy_bytes_per_second'] / 1e9:.3g} GB/s", numbers
    )


def _levels(site: Site, bars: Bars, sessions: Any, name: str, placement: str, area: str) -> Levels:
    if name == "naive":
        sessions = RthSessions(sessions.start[:NAIVE_SESSIONS], sessions.stop[:NAIVE_SESSIONS])
    parts = device_levels(bars, sessions, name, str(site.devices[0]), CHUNK, area, placement)
    return concatenated(list(parts))


def _differences(found: Levels, expected: Levels) -> str | None:
    """Return the first differing numbers as text, or None; `found` may have only the first sessions."""
    for number in fields(Levels):
        got, right = getattr(found, number.name), getattr(expected, number.name)[: len(found.vpoc)]
        other = np.flatnonzero(got != right)
        if len(other):
            at = int(other[0])
            return (
                f"{number.name} of {len(other)} of {len(got)} profiles, of the first {got[at]} instead of {right[at]}"
            )
    return None


def _copy_speed(device: torch.device) -> float:
    """Return the bytes per second that copies on the device read and write."""
    source = torch.zeros(COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    wait(device)
    began = time.perf_counter()
    for _ in range(COPIES):
        target.copy_(source)
    wait(device)
    return 2 * COPIES * COPY_BYTES / (time.perf_counter() - began)


def wait(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
