"""Levels of sessions with torch on any device, along the paths on which GPU stacks were seen to fail.

The levels are bitwise identical to those of `vpoc.profile.session_profiles.session_levels`: int64 sums do not depend on
their order.
Importing this package does not import torch; calling `device_levels` does.
"""

from collections.abc import Iterator

from vpoc.data.bars import Bars
from vpoc.data.exchange.sessions import Sessions
from vpoc.profile.levels import Levels

PATHS = ("naive", "chunked", "preallocated", "pooled")
"""`naive`: one session at a time, fresh tensors of its own width, `.item()` for every decision.
`chunked`: fresh matrices for every chunk of sessions, padded to the widest.
`preallocated`: one set of matrices, large enough for the largest chunk, reused.
`pooled`: one set of matrices per size class (powers of two), made when first needed, reused."""


def device_levels(
    bars: Bars,
    sessions: Sessions,
    path: str,
    device: str,
    chunk_size: int,
    value_area: str = "two_row",
    placement: str = "uniform",
) -> Iterator[Levels]:
    """Levels of the RTH profile of every session, computed on `device` (cpu, cuda) along `path`, one of `PATHS`.

    One `Levels` per `chunk_size` sessions, for every path; each session has at least one bar. `value_area` is two_row
    or one_row, `placement` uniform, typical, close or ticks (at the close). Buffers live as long as the iterator.
    ValueError on another path, value area or placement; UserError when a session has a high more than half above its
    low, before anything is allocated on the device.
    """
    from vpoc.profile.device.paths import levels_by_path  # noqa: PLC0415 - torch is imported only when used

    return levels_by_path(bars, sessions, path, device, chunk_size, value_area, placement)
