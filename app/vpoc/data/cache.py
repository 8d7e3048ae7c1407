"""The cache of parsed bars, a parquet file, so that the same file is not parsed twice."""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from vpoc import __version__
from vpoc.checksummed_parquet import DamagedError, read_checksummed, write_checksummed
from vpoc.data.bars import COLUMNS, Bars
from vpoc.data.columns import PRICES
from vpoc.data.load import load_bars
from vpoc.files import hash_ahead

BARS_KEY = "vpoc-bars"
BARS_FACTS = ("sha256", "symbols", "bar_seconds", "rows_in_file", "smaller_kept")


def at_once(work: Callable[[], None]) -> None:
    """Do `work`."""
    work()


def accept_all(_bars: Bars) -> object:
    """Require nothing."""


def load_cached(
    path: Path,
    cache: Path,
    digest: Future[str] | None = None,
    aside: Callable[[Callable[[], None]], None] = at_once,
    require: Callable[[Bars], object] = accept_all,
) -> Bars:
    """The bars of the merged CSV `path`, as `load_bars`: from `cache` when they were read from this very content.

    Otherwise `cache` is written, which `aside` may do while the bars are worked with. A cache that is torn, changed, of
    other data or of another version is not used. `digest`: SHA-256 of `path`, if it is being computed already.
    `require` raises where the bars are not to be used, and so not to be cached.
    """
    if cache.exists():
        # The file is hashed while the cache is read.
        digest = digest or hash_ahead(path)
        cached = _read(cache, path)
        if cached is not None and cached.sha256 == digest.result():
            return cached
    bars = load_bars(path)
    require(bars)
    aside(partial(_write, bars, cache))
    return bars


def _write(bars: Bars, cache: Path) -> None:
    frame = pl.DataFrame({name: _narrow(name, getattr(bars, name)) for name in COLUMNS})
    facts = {"fields": list(COLUMNS), "app_version": __version__, **{name: getattr(bars, name) for name in BARS_FACTS}}
    # A torn one is not used.
    write_checksummed(cache, frame, BARS_KEY, facts, compression="uncompressed", durable=False)


def _narrow(name: str, values: Any) -> pl.Series:
    """`values` in fewer bytes where they fit."""
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
    if (facts.pop("fields", None), facts.pop("app_version", "")) != (list(COLUMNS), __version__):
        return None
    if set(facts) != set(BARS_FACTS):
        return None
    kinds: dict[str, Any] = {"vix": np.float64, "off_grid": np.bool_}
    columns: dict[str, Any] = {
        name: frame[name].to_numpy().astype(kinds.get(name, np.int64), copy=False) for name in COLUMNS
    }
    return Bars(path=path, **columns, **facts_of_bars(facts))


def facts_of_bars(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of Bars that a cache has as JSON, with tuples where Bars has them."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()}
