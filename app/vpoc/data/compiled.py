"""The rows of a merged CSV in its plain form by the compiled part, or None: they are then read as any CSV."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vpoc.data.bars import Bars, bar_seconds
from vpoc.data.columns import PRICES
from vpoc.kernel import address, cores, in_threads, library

KINDS = ("ts", *PRICES, "volume", "vix", "symbol")
"""In the order of csv.c."""
UNSOUND, RANGE = 1, 2
FEW = 1 << 20
"""Bytes that are not worth a thread."""
MOST_OF_A_SYMBOL = 64


@dataclass(frozen=True)
class Plain:
    """Bars of a file. `sound`: no rule of `vpoc.data.bars` is broken, no stamp repeated, and no price off the grid."""

    bars: Bars
    sound: bool


def read_plain(path: Path, content: bytes, header: Sequence[str]) -> Plain | None:
    """The bars in `content`, which has these columns and ends with a line; None where a single row is not plain."""
    read = library()
    if read is None:
        return None
    text = np.frombuffer(content, dtype=np.uint8)
    begin = content.index(b"\n") + 1
    symbol = _symbol(content, begin, header)
    if begin == len(content) or symbol is None:
        return None
    parts = min(cores(), (len(content) - begin) // FEW + 1)
    steps = [begin + (len(content) - begin) * part // parts for part in range(1, parts)]
    borders = sorted({begin, *(content.index(b"\n", step) + 1 for step in steps), len(content)})
    read.count_lines.restype = ctypes.c_int64
    counts = in_threads(lambda a, b: int(read.count_lines(address(text, a), ctypes.c_int64(b - a))), borders)
    before = dict(zip(borders, np.cumsum([0, *counts]).tolist(), strict=True))
    rows = before[len(content)]
    numbers, vix = np.empty((len(KINDS) - 2, rows), dtype=np.int64), np.empty(rows)
    off_grid = np.empty(rows, dtype=np.bool_)
    columns = (ctypes.c_void_p * len(KINDS))(
        *(row.ctypes.data for row in numbers), vix.ctypes.data, off_grid.ctypes.data
    )
    kinds = (ctypes.c_int32 * len(header))(*map(KINDS.index, header))

    def part(a: int, b: int) -> int | None:
        seen, count = ctypes.c_int32(), ctypes.c_int64(before[b] - before[a])
        words = kinds, ctypes.c_int32(len(header)), symbol, ctypes.c_int64(len(symbol))
        into = columns, ctypes.c_int64(before[a]), ctypes.byref(seen)
        failed = read.read_rows(address(text, a), address(text, b), count, *words, *into)
        return None if failed else int(seen.value)

    seen = in_threads(part, borders)
    flags = 0
    for flag in seen:
        if flag is None:
            return None
        flags |= flag
    arrays = dict(zip(KINDS, numbers, strict=False))
    ts = arrays["ts"]
    joints = np.array([before[border] for border in borders[1:-1]], dtype=np.int64)
    bars = Bars(
        path=path,
        sha256="",
        **arrays,
        vix=vix,
        off_grid=off_grid,
        contract=np.zeros(rows, dtype=np.int64),
        symbols=(symbol.decode(),) if "symbol" in header else (),
        bar_seconds=bar_seconds(ts) if flags & RANGE else 0,
        rows_in_file=rows,
    )
    return Plain(bars, not flags & UNSOUND and bool((ts[joints] > ts[joints - 1]).all()))


def _symbol(content: bytes, begin: int, header: Sequence[str]) -> bytes | None:
    """The symbol of the first row, empty without such a column; None unless it is plain."""
    if "symbol" not in header:
        return b""
    row = content[begin : content.index(b"\n", begin)].split(b",") if begin < len(content) else []
    symbol = row[header.index("symbol")] if len(row) == len(header) else b""
    plain = 0 < len(symbol) <= MOST_OF_A_SYMBOL and symbol.isalnum()
    return symbol if plain else None
