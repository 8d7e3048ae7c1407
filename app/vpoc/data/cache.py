"""The cache of parsed bars, a parquet file, which avoids parsing the same file twice."""

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from vpoc.checksummed_parquet import DamagedError, read_checksummed, write_checksummed
from vpoc.data.bars import COLUMNS, DAY_SECONDS, MAX_TICKS, Bars
from vpoc.data.columns import PRICES
from vpoc.data.rules import first_problem
from vpoc.files import hash_in_thread, is_own
from vpoc.source import features_source

BARS_KEY = "vpoc-bars"
BARS_FACTS = {"sha256": str, "symbols": list, "bar_seconds": int, "rows_in_file": int, "smaller_kept": list}
"""The facts of Bars besides the columns, and their types in JSON."""


def write_bars(cache: Path, bars: Bars) -> None:
    """Write `bars` to the file `cache`."""
    frame = pl.DataFrame({name: _narrow(name, getattr(bars, name)) for name in COLUMNS})
    facts = {"fields": list(COLUMNS), "source": features_source(), **{name: getattr(bars, name) for name in BARS_FACTS}}
    # Not durable, because a torn cache is ignored.
    write_checksummed(cache, frame, BARS_KEY, facts, compression="uncompressed", durable=False)


def cached_bars(cache: Path, data: Path, digest: Future[str] | None) -> Bars | None:
    """Return what `write_bars` was given for the content of `data`.

    None when `cache` is not there, or torn, changed, of other data or other source, or of another user: it cannot be
    compared with the data. `digest`: SHA-256 of `data`, if it is being computed already.
    """
    if not is_own(cache):
        return None
    # The file is hashed in a thread while the cache is read.
    digest = digest or hash_in_thread(data)
    found = _read(cache, data)
    return found if found is not None and found.sha256 == digest.result() else None


def _narrow(name: str, values: Any) -> pl.Series:
    """Return `values` with fewer bytes each, if they fit."""
    kinds: dict[str, Any] = {
        "ts": np.uint32,
        "volume": np.uint32,
        "contract": np.uint8,
        **dict.fromkeys(PRICES, np.int32),
    }
    kind = kinds.get(name)
    if kind is None or values.min(initial=0) < np.iinfo(kind).min or values.max(initial=0) > np.iinfo(kind).max:
        return pl.Series(name, values)
    return pl.Series(name, values.astype(kind))


def _read(cache: Path, path: Path) -> Bars | None:
    try:
        frame, facts = read_checksummed(cache.read_bytes(), BARS_KEY)
    except (OSError, DamagedError):
        return None
    if (facts.pop("fields", None), facts.pop("source", "")) != (list(COLUMNS), features_source()):
        return None
    # A correct hash proves nothing: anyone who makes a file can also compute its hash.
    if {name: type(fact) for name, fact in facts.items()} != BARS_FACTS or frame.columns != list(COLUMNS):
        return None
    if not frame.height or any(column.null_count() or column.dtype.is_nested() for column in frame):
        return None
    columns: dict[str, Any] = {name: frame[name].to_numpy() for name in COLUMNS}
    if any(array.dtype.kind not in {"vix": "f", "off_grid": "b"}.get(name, "iu") for name, array in columns.items()):
        return None
    columns |= {name: array.astype(np.int64, copy=False) for name, array in columns.items() if array.dtype.kind in "iu"}
    bars = Bars(path=path, **columns, **facts_of_bars(facts))
    return bars if _can_be(bars) else None


def _can_be(bars: Bars) -> bool:
    """Return whether reading a file can give such bars."""
    return (
        first_problem(bars) is None
        and 0 <= bars.bar_seconds <= DAY_SECONDS
        and int(bars.high.max()) < MAX_TICKS
        and int(bars.volume.min()) >= 0
        and 0 <= int(bars.contract.min()) <= int(bars.contract.max()) < max(len(bars.symbols), 1)
    )


def facts_of_bars(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of Bars from the cache's JSON, with lists turned back into tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()}
