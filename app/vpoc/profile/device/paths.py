"""The paths: who owns the tensors, and how long they live.

`naive`: one session at a time, fresh tensors of its own width, `.item()` for every decision. `chunked`: fresh matrices
for every chunk of sessions, padded to the widest. `preallocated`: one set of matrices, large enough for the largest
chunk, reused. `pooled`: one set of matrices per size class (powers of two), made when first needed, reused.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch

from vpoc.arrays import Ints
from vpoc.data.bars import Bars
from vpoc.data.exchange.sessions import Sessions, ranges
from vpoc.profile.device.kernels import Matrices, add_bars, chunk_levels
from vpoc.profile.kernel_profiles import Spans
from vpoc.profile.levels import METHODS, Levels, area_target
from vpoc.profile.session_profiles import rth_spans

Room = Callable[[Spans], Matrices]
"""Returns the matrices for a chunk, with `volume` zeroed."""


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

    They are bitwise those of `session_levels`: int64 sums do not depend on their order. One `Levels` per `chunk_size`
    sessions, for every path; each session has at least one bar. Buffers live as long as the iterator. UserError when a
    session has a high more than half above its low, before anything is allocated on the device.
    """
    place, step = torch.device(device), METHODS[value_area]
    chunks = chunks_of(rth_spans(bars, sessions)[1], chunk_size)
    if path == "naive":
        return (_by_session(bars, chunk, place, placement, step) for chunk in chunks)
    return _by_chunk(bars, chunks, ROOMS[path](chunks, place), place, placement, step)


def _by_chunk(
    bars: Bars, chunks: list[Spans], room: Room, place: torch.device, placement: str, step: int
) -> Iterator[Levels]:
    for chunk in chunks:
        columns = torch.from_numpy(_columns(bars, chunk)).to(place)
        last = torch.from_numpy(chunk.width - 1).to(place)
        yield _levels(chunk_levels(room(chunk), columns, last, placement, step).cpu().numpy(), chunk)


def _levels(found: Ints, chunk: Spans) -> Levels:
    vpoc, vah, val, vpoc_volume, area_volume, volume = found
    return Levels(
        vpoc=chunk.base + vpoc,
        vah=chunk.base + vah,
        val=chunk.base + val,
        vpoc_volume=vpoc_volume,
        area_volume=area_volume,
        volume=volume,
    )


def chunks_of(spans: Spans, size: int) -> list[Spans]:
    """Return the same sessions, `size` at a time."""
    arrays = spans.start, spans.size, spans.base, spans.width
    return [Spans(*(array[at : at + size] for array in arrays)) for at in range(0, len(spans.start), size)]


def _columns(bars: Bars, spans: Spans) -> Ints:
    """Return [5, bars]: session (from 0); low, high, close in ticks above its `base`; and volume, of every bar."""
    rows = ranges(spans.start, spans.start + spans.size)
    session = np.repeat(np.arange(len(spans.start)), spans.size)
    base = spans.base[session]
    prices = (column[rows] - base for column in (bars.low, bars.high, bars.close))
    return np.stack([session, *prices, bars.volume[rows]])


def _shape(chunk: Spans) -> tuple[int, int]:
    """Return a row for each session, and one column more than the widest session has ticks."""
    return len(chunk.start), int(chunk.width.max()) + 1


def cells_of(chunk: Spans) -> int:
    """Return the number of cells in each matrix of a chunk."""
    return math.prod(_shape(chunk))


def _allocate(cells: int, place: torch.device) -> Matrices:
    """Return flat buffers for `cells` cells."""
    volume, below, keys = (torch.empty(cells, dtype=torch.int64, device=place) for _ in range(3))
    return Matrices(volume, below, keys, torch.empty(cells, dtype=torch.bool, device=place))


def _zeroed(flat: Matrices, chunk: Spans) -> Matrices:
    """Return the first cells of `flat` as matrices for `chunk`."""
    cells, shape = cells_of(chunk), _shape(chunk)
    volume, below, keys, mask = (part[:cells].view(shape) for part in (flat.volume, flat.below, flat.keys, flat.mask))
    return Matrices(volume.zero_(), below, keys, mask)


def _fresh(_chunks: list[Spans], place: torch.device) -> Room:
    return lambda chunk: _zeroed(_allocate(cells_of(chunk), place), chunk)


def _preallocated(chunks: list[Spans], place: torch.device) -> Room:
    flat = _allocate(max(map(cells_of, chunks), default=0), place)
    return lambda chunk: _zeroed(flat, chunk)


def _pooled(_chunks: list[Spans], place: torch.device) -> Room:
    pool: dict[int, Matrices] = {}

    def room(chunk: Spans) -> Matrices:
        size_class = (cells_of(chunk) - 1).bit_length()
        if size_class not in pool:
            pool[size_class] = _allocate(1 << size_class, place)
        return _zeroed(pool[size_class], chunk)

    return room


ROOMS = {"chunked": _fresh, "preallocated": _preallocated, "pooled": _pooled}
PATHS = ("naive", *ROOMS)


def _by_session(bars: Bars, chunk: Spans, place: torch.device, placement: str, step: int) -> Levels:
    sessions = [_session(bars, session, place, placement, step) for session in chunks_of(chunk, 1)]
    return _levels(np.array(list(zip(*sessions, strict=True)), dtype=np.int64), chunk)


def _session(bars: Bars, session: Spans, place: torch.device, placement: str, step: int) -> tuple[int, ...]:
    """Return the six numbers of `find_levels` for one session, decided on the host, one `.item()` at a time."""
    columns = torch.stack([torch.tensor(column, device=place) for column in _columns(bars, session)])
    differences = torch.zeros(_shape(session), dtype=torch.int64, device=place)
    add_bars(differences, columns, placement)
    volume = differences.cumsum(1)[0, :-1]
    last = len(volume) - 1
    peak = volume.max().item()
    tied = torch.nonzero(volume == peak)[:, 0]
    # The lowest of the nearest: a tie leaves at most one below the middle and one above.
    away = (2 * tied - last).abs()
    vpoc = int(tied[away == away.min()].min().item())
    total = volume.sum()
    target = int(area_target(total).item())
    bottom = top = vpoc
    held = int(peak)
    while held < target:
        above, under = min(top + step, last), max(bottom - step, 0)
        gain_above = int(volume[top + 1 : above + 1].sum().item()) if above > top else -1
        gain_under = int(volume[under:bottom].sum().item()) if under < bottom else -1
        if gain_above >= gain_under:
            top, held = above, held + gain_above
        else:
            bottom, held = under, held + gain_under
    return vpoc, top, bottom, int(peak), held, int(total.item())
