"""Profiles computed by the compiled kernel; if it is absent, numpy computes them elsewhere."""

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from vpoc.arrays import Flags, Floats, Ints
from vpoc.data.bars import Bars
from vpoc.kernel import address, cores, in_threads, library
from vpoc.profile.levels import METHODS, Levels

KERNEL_FACTS = (
    "low",
    "high",
    "vpoc",
    "vpoc_volume",
    "vah",
    "val",
    "area_volume",
    "volume",
    "moved",
    "lower",
    "upper",
    "hvn",
    "lvn",
    "tpoc",
    "single",
    "tail_hi",
    "tail_lo",
    "poor_hi",
    "poor_lo",
    "signed",
    "signed_at",
    "volume_at",
)
"""The facts in the order of profiles.c."""
KernelFacts = dict[str, Ints]
"""By these names, [profiles] each, prices in ticks from the base of the session."""
PLACEMENT_CODES = {"uniform": 0, "close": 1, "ticks": 1, "typical": 2}
KERNEL_COLUMNS = ("ts", "open", "high", "low", "close", "volume")
FEW = 10_000
"""Number of bars below which another thread does not pay."""


@dataclass(frozen=True)
class Spans:
    """Bars of sessions: the rows from `start` on, `size` of them; every array is [sessions].

    Their range is the `width` ticks from `base`. `open_utc`: when RTH begins; without it only the levels are computed,
    and the columns `ts` and `open` of the bars are not needed.
    """

    start: Ints
    size: Ints
    base: Ints
    width: Ints
    open_utc: Ints | None = None


def present() -> bool:
    """Return whether there is a compiled kernel; without one, nothing else here may be called."""
    return library() is not None


def kernel_levels(bars: Bars, spans: Spans, placement: str, method: str) -> Levels:
    """Return the levels of the profile of each session."""
    facts = _described(bars, spans, placement, method, None)
    prices = {name: spans.base + facts[name] for name in ("vpoc", "vah", "val")}
    return Levels(**prices, **{name: facts[name] for name in ("vpoc_volume", "area_volume", "volume")})


def describe_profiles(bars: Bars, spans: Spans, placement: str, method: str) -> tuple[KernelFacts, Ints]:
    """Facts of one profile for each session, and its histogram [sessions, columns], which ends with zeros."""
    histogram = np.zeros((len(spans.start), int(spans.width.max()) + 1), dtype=np.int64)
    return _described(bars, spans, placement, method, histogram), histogram


def develop_profiles(
    bars: Bars, spans: Spans, touched: Ints, placement: str, method: str
) -> tuple[KernelFacts, Floats]:
    """Facts of one profile for each bar, of the bars of its session up to it, and the sums of `logs_of` [bars].

    `touched` [bars]: the number of ticks on which each bar puts volume.
    """
    first = np.cumsum(spans.size) - spans.size
    count = int(spans.size.sum())
    facts, logs = np.empty((len(KERNEL_FACTS), count), dtype=np.int64), np.empty(count)
    sizes = np.add.reduceat(touched, first)
    call = _Call(bars, spans, placement)

    def part(begin: int, end: int) -> None:
        cells = np.empty(int(sizes[begin:end].sum()))
        call("profile_cells", begin, end, address(cells))
        # The logarithm is numpy's, so that the last bit is the same with and without the library.
        cells *= np.log(cells)
        row = int(first[begin])
        into = address(facts, row), _int(count)
        call("profiles", begin, end, _int(METHODS[method]), address(cells), address(logs, row), None, _int(0), *into)

    in_threads(part, call.borders)
    return dict(zip(KERNEL_FACTS, facts, strict=True)), logs


def naked_at_bars(size: Ints, low: Ints, high: Ints, price: Ints, level: Ints, age: Ints, alive: Flags) -> Ints:
    """Return the result of `vpoc.features.look_back.naked`, [5, bars], for levels untouched by the session so far.

    `low`, `high`: of RTH so far, and `price`, [bars]; `size` [sessions]: the number of bars of each; the others
    [sessions, levels].
    """
    found = np.empty((5, len(price)), dtype=np.int64)
    first = np.cumsum(size) - size
    arrays = [np.ascontiguousarray(array, dtype=np.int64) for array in (size, low, high, price, level, age)]
    living = np.ascontiguousarray(alive, dtype=np.uint8)
    reach = level.shape[1]

    def part(begin: int, end: int) -> None:
        row = int(first[begin])
        per_session = [address(array, begin * reach) for array in (*arrays[4:], living)]
        per_bar = [address(array, row) for array in arrays[1:4]]
        into = address(found, row), _int(len(price))
        _function("naked_levels")(
            _int(end - begin), address(arrays[0], begin), *per_bar, _int(reach), *per_session, *into
        )

    in_threads(part, _borders(size))
    return found


def _described(bars: Bars, spans: Spans, placement: str, method: str, histogram: Ints | None) -> KernelFacts:
    count, widest = len(spans.start), 0 if histogram is None else histogram.shape[1]
    facts = np.empty((len(KERNEL_FACTS), count), dtype=np.int64)
    call = _Call(bars, spans, placement)

    def part(begin: int, end: int) -> None:
        counts = None if histogram is None else address(histogram, begin * widest)
        into = counts, _int(widest), address(facts, begin), _int(count)
        call("profiles", begin, end, _int(METHODS[method]), None, None, *into)

    in_threads(part, call.borders)
    return dict(zip(KERNEL_FACTS, facts, strict=True))


class _Call:
    """Calls functions of the library for a range of sessions; `borders`: how the sessions are divided among threads."""

    def __init__(self, bars: Bars, spans: Spans, placement: str) -> None:
        names = KERNEL_COLUMNS[2:] if spans.open_utc is None else KERNEL_COLUMNS
        self._columns = {name: np.ascontiguousarray(getattr(bars, name), dtype=np.int64) for name in names}
        pointers = [self._columns[name].ctypes.data if name in names else None for name in KERNEL_COLUMNS]
        self._bars = (ctypes.c_void_p * len(KERNEL_COLUMNS))(*pointers)
        opens = np.zeros_like(spans.base) if spans.open_utc is None else spans.open_utc
        arrays = spans.start, spans.size, opens, spans.base, spans.width
        self._spans = [np.ascontiguousarray(array, dtype=np.int64) for array in arrays]
        self._placement = _int(PLACEMENT_CODES[placement])
        self.borders = _borders(spans.size)

    def __call__(self, name: str, begin: int, end: int, *words: Any) -> None:
        spans = [address(array, begin) for array in self._spans]
        if _function(name)(self._bars, _int(end - begin), *spans, self._placement, *words):
            raise ValueError(f"{name}: no memory, or a price outside the range of its session")


def _borders(size: Ints) -> list[int]:
    """Return the first session of each thread's part, and the end; `size` [sessions]: the number of bars of each."""
    total = int(size.sum())
    threads = max(min(cores(), total // FEW), 1)
    middle = np.searchsorted(np.cumsum(size), np.arange(1, threads) * (total // threads))
    borders: list[int] = np.unique([0, *middle, len(size)]).tolist()
    return borders


def _function(name: str) -> Any:
    return getattr(library(), name)


def _int(value: int) -> ctypes.c_int64:
    return ctypes.c_int64(value)
