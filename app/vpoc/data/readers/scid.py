"""Reads Sierra Chart's intraday files (.scid): a header of 56 bytes, then records of 40.

Source: Sierra Chart, "Intraday Data File Format" (doc/IntradayDataFileFormat.html): DateTime in microseconds since
1899-12-30 UTC, the start of the record's time; Open, High, Low, Close as 32-bit floats; NumTrades, TotalVolume,
BidVolume, AskVolume. A record of a single trade has 0, or one of two huge negative numbers, for Open; its High and Low
are then the ask and the bid, and Close is the price of the trade.
"""

import hashlib
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from vpoc.arrays import Flags, Floats, Ints
from vpoc.data.columns import PRICES
from vpoc.data.readers.raw import RawBars
from vpoc.data.readers.stamps import Written, require_seconds
from vpoc.errors import UserError, from_os_error

SCID_MAGIC = b"SCID"
SCID_HEADER = struct.Struct("<4sIIHHI36s")
RECORD = np.dtype(
    [
        ("time", "<i8"),
        *[(name, "<f4") for name in PRICES],
        *[(name, "<u4") for name in ("trades", "volume", "bid_volume", "ask_volume")],
    ]
)
SCID_EPOCH = 2_209_161_600
"""Seconds from 1899-12-30 to 1970-01-01."""
SINGLE_TRADE = 0.0
SUB_TRADE = -1e37
"""The first and last parts of an unbundled trade have an Open below this."""
HUNDREDS = 25.0
"""Prices that are all multiples of 25 points are counts of hundredths, because the contract's tick is 0.25."""
FEWEST_PRICES = 20


def read_scid(path: Path) -> RawBars:
    """Read a .scid file; UserError, with the record, for content that is not as documented.

    An incomplete last record is left out and counted.
    """
    content = _content(path)
    size = len(content)
    if size < SCID_HEADER.size:
        raise UserError(f"{path}: a Sierra Chart file of {size} bytes has no whole header; copy it again")
    magic, header_size, record_size, _, _, _, _ = SCID_HEADER.unpack(content[: SCID_HEADER.size].tobytes())
    if magic != SCID_MAGIC or header_size != SCID_HEADER.size or record_size != RECORD.itemsize:
        raise UserError(
            f"{path}: the header says {header_size} and {record_size} bytes for header and records, not "
            f"{SCID_HEADER.size} and {RECORD.itemsize}; copy the file again"
        )
    rows, rest = divmod(size - SCID_HEADER.size, RECORD.itemsize)
    if rows == 0:
        raise UserError(f"{path}: there is a header but no records; give a file with bars")
    records = np.frombuffer(content, dtype=RECORD, count=rows, offset=SCID_HEADER.size)
    seconds: Ints = records["time"] // 1_000_000 - SCID_EPOCH
    require_seconds(seconds, lambda row: f"{path}, record {row + 1}: the stamp is")
    trade = (records["open"] == SINGLE_TRADE) | (records["open"] < SUB_TRADE)
    prices, hundredths = _prices(path, records, trade)
    counts = {"unended_last_record": 1} if rest else {}
    if hundredths:
        counts["prices_divided_by_100"] = rows
    return RawBars(
        path=path,
        sha256=hashlib.sha256(content.data).hexdigest(),
        format="sierra-scid",
        frame=pl.DataFrame({"line": np.arange(1, rows + 1), **prices, "volume": records["volume"].astype(np.int64)}),
        stamps=Written(seconds, utc=True, zone="UTC"),
        documented="start",
        trades=_single(path, records, trade),
        unit="record",
        counts=counts,
    )


def _content(path: Path) -> npt.NDArray[np.uint8]:
    try:
        # Not mapped into memory, because its hash stands for what was read, and the file may change meanwhile.
        return np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        raise from_os_error(error, path) from error


def _single(path: Path, records: npt.NDArray[np.void], trade: Flags) -> bool:
    """Return whether the records are single trades; without bid and ask, these have one trade at one price.

    UserError if trades and bars are mixed.
    """
    if trade.all():
        return True
    if trade.any():
        row = int(np.flatnonzero(trade != trade[0])[0])
        raise UserError(
            f"{path}, record {row + 1}: single trades and bars in one file; set one Intraday Data Storage Time Unit in "
            "Sierra Chart and download the data again"
        )
    one = (records["trades"] == 1) & (records["high"] == records["low"])
    return bool(one.all()) and len(np.unique(records["time"] // 1_000_000 % 60)) > 2


def _prices(path: Path, records: npt.NDArray[np.void], trade: Flags) -> tuple[dict[str, Floats], bool]:
    """Return the prices in points, and whether the file counts them in hundredths."""
    with np.errstate(invalid="ignore"):
        close = records["close"].astype(np.float64)
        prices = {name: np.where(trade, close, records[name].astype(np.float64)) for name in PRICES}
    for name, values in prices.items():
        if not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values))[0])
            raise UserError(f"{path}, record {row + 1}: {name} is {values[row]}, not a price; copy the file again")
    distinct = np.unique(close)
    if len(distinct) >= FEWEST_PRICES and (distinct % HUNDREDS == 0).all():
        return {name: values / 100 for name, values in prices.items()}, True
    return prices, False
