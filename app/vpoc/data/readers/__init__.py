"""Readers of vendors' files. A file's format is recognised by its content, never by its name."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from vpoc.data.readers import parquet, scid
from vpoc.data.readers.delimited import read_delimited
from vpoc.data.readers.lean import read_lean
from vpoc.data.readers.raw import RawBars, finish
from vpoc.data.readers.vendor import VendorBars
from vpoc.errors import UserError, from_os_error

ZIP = (b"PK\x03\x04", b"PK\x05\x06")
GZIP = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")
"""First bytes of gzip, and of zstd, in which Databento delivers."""


def read_vendor(
    path: Path,
    *,
    zone: str | None = None,
    stamp_side: str | None = None,
    columns: Mapping[str, str] | None = None,
    symbol: str | None = None,
    dates: str | None = None,
) -> VendorBars:
    """Return the bars of a file of any known format.

    `zone`, `stamp_side` ("start" or "end"): what the user says about the stamps, if the file does not.
    `columns`: the user's column names -> stamp, open, high, low, close, volume, symbol.
    `symbol`: keep only the rows of this symbol.
    `dates`: "month-first" or "day-first", if dates can be read in both ways.

    UserError in one line, with the line of the file if there is one, for everything that is not understood.
    """
    raw = _read(path, columns, symbol, dates)
    return finish(raw if symbol is None else _only(raw, symbol), zone, stamp_side)


def _read(path: Path, columns: Mapping[str, str] | None, symbol: str | None, dates: str | None) -> RawBars:
    magic = _magic(path)
    if path.is_dir() or magic in ZIP:
        return read_lean(path)
    if magic == scid.SCID_MAGIC:
        return scid.read_scid(path)
    if magic == parquet.PARQUET_MAGIC:
        return parquet.read_parquet(path, columns)
    return read_delimited(path, columns, symbol, dates)


def _magic(path: Path) -> bytes:
    """Return the first four bytes of a file; empty for a folder with zip files, which is Lean's format."""
    try:
        if path.is_dir() and any(path.glob("*.zip")):
            return b""
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise from_os_error(error, path) from error
    if not magic:
        raise UserError(f"{path}: the file is empty; give a file with bars")
    if magic.startswith(GZIP):
        raise UserError(f"{path}: the file is compressed; unpack it, and give what is in it")
    return magic


def _only(raw: RawBars, symbol: str) -> RawBars:
    """Return the rows of one symbol; a file without symbols is refused, unless its format always has one instrument."""
    if "symbol" not in raw.frame.columns:
        if raw.format == "yfinance":
            return raw
        raise UserError(f"{raw.path}: the file has no symbols, so --symbol {symbol} finds nothing; leave it out")
    symbols = raw.frame["symbol"]
    kept = symbols == symbol
    if not kept.any():
        there = ", ".join(symbols.unique(maintain_order=True).head(6).to_list())
        raise UserError(f"{raw.path}: no rows of {symbol}; there are: {there}")
    return replace(
        raw,
        frame=raw.frame.filter(kept),
        stamps=replace(raw.stamps, seconds=raw.stamps.seconds[kept.to_numpy()]),
        counts={**raw.counts, "rows_of_other_symbols": int((~kept).sum())},
    )
