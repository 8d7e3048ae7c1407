"""Reads minutes of futures in QuantConnect Lean's format: zip files of one CSV for each contract and day.

Source: github.com/QuantConnect/Lean, Data/future/readme.md (entries `YYYYMMDD_symbol_minute_trade_YYYYMM.csv`, lines of
milliseconds since midnight, open, high, low, close, volume; prices in points) and Data/market-hours (the data of CME
futures are in UTC).
"""

import hashlib
import io
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from vpoc.data.columns import PRICES
from vpoc.data.readers.parquet import MOST_ROWS
from vpoc.data.readers.raw import RawBars
from vpoc.data.readers.stamps import Written, require_seconds
from vpoc.data.rules import ROW_ADVICE
from vpoc.data.text_table import Table, numbers, volumes
from vpoc.errors import UserError, from_os_error
from vpoc.files import read_regular

ENTRY = re.compile(r"(?:.*/)?(?P<day>\d{8})_(?P<root>[a-z0-9]+)_minute_trade_(?P<expiry>\d{6})(?:\d{2})?\.csv")
OTHER = re.compile(r"(?:.*/)?\d{8}_[a-z0-9]+_minute_(?:quote|openinterest)_\d{6,8}\.csv")
MONTHS = "FGHJKMNQUVXZ"
FIELDS = ("ms", *PRICES, "volume")
DAY_MS = 86_400_000
DAY_MINUTES = 1440
LARGEST_ENTRY = 2**20
"""An entry larger than this is not one of Lean, whatever its name."""


def read_lean(path: Path) -> RawBars:
    """Read one zip file of Lean, or all in a folder.

    UserError, with entry and line, for content that is not as documented.
    """
    digest = hashlib.sha256()
    days, rows = list[pl.DataFrame](), 0
    for entry in _entries(path, digest):
        days.append(_day(path, *entry))
        rows += days[-1].height
        if rows > MOST_ROWS:
            raise UserError(f"{path}: has more rows than the {MOST_ROWS:,} that are read: divide it by years")
    if not days:
        raise UserError(
            f"{path}: no entries such as 20131007_es_minute_trade_201312.csv in it; give a zip file of minute trades "
            "of Lean, or a folder of them"
        )
    frame = pl.concat(days)
    seconds = frame["seconds"].to_numpy()
    raw = RawBars(
        path=path,
        sha256=digest.hexdigest(),
        format="lean",
        frame=frame.drop("seconds"),
        stamps=Written(seconds, utc=True, zone="UTC"),
        documented="start",
    )
    require_seconds(seconds, lambda row: f"{raw.where(row)}: a stamp is")
    return raw


def _entries(path: Path, digest: "hashlib._Hash") -> Iterator[tuple[str, np.datetime64, str, bytes]]:
    """Name, day, symbol and content of each entry with trades, by day."""
    try:
        files = sorted(path.glob("*.zip")) if path.is_dir() else [path]
    except OSError as error:
        raise from_os_error(error, path) from error
    for file in files:
        try:
            content = read_regular(file)
            digest.update(content)
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                for info in archive.infolist():
                    entry = ENTRY.fullmatch(info.filename)
                    if entry is None:
                        _require_other(file, info, alone=file == path)
                        continue
                    if info.file_size > LARGEST_ENTRY:
                        raise UserError(f"{file}: {info.filename} is too large for the minutes of a day")
                    yield info.filename, _date(file, entry), _symbol(file, entry), archive.read(info)
        except OSError as error:
            raise from_os_error(error, file) from error
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
            raise UserError(f"{file}: the zip file is cut short or damaged ({error}); copy it again") from error


def _require_other(file: Path, info: zipfile.ZipInfo, *, alone: bool) -> None:
    """Raise UserError for an entry of a kind that Lean does not write; quotes and open interest are skipped."""
    if alone and not info.is_dir() and OTHER.fullmatch(info.filename) is None:
        raise UserError(
            f"{file}: {info.filename[:80]!r} in it is not the minutes of a contract, such as "
            "20131007_es_minute_trade_201312.csv; unpack the file, and give what is in it"
        )


def _date(file: Path, entry: "re.Match[str]") -> np.datetime64:
    day = entry["day"]
    try:
        return np.datetime64(f"{day[:4]}-{day[4:6]}-{day[6:]}", "D")
    except ValueError as error:
        raise UserError(f"{file}: {entry[0]}: {day} is not a date") from error


def _symbol(file: Path, entry: "re.Match[str]") -> str:
    year, month = int(entry["expiry"][:4]), int(entry["expiry"][4:])
    if not 1 <= month <= 12:
        raise UserError(f"{file}: {entry[0]}: {entry['expiry']} is not a month")
    return f"{entry['root'].upper()}{MONTHS[month - 1]}{year % 10}"


def _day(path: Path, name: str, day: np.datetime64, symbol: str, content: bytes) -> pl.DataFrame:
    """Return the bars of one entry."""
    where = f"{path}, {name}"
    text = _decoded(where, content)
    lines = text.count("\n") + (not text.endswith("\n"))
    if lines > DAY_MINUTES:
        # A row that is repeated takes next to no space in a zip file, and two hundred bytes in memory.
        raise UserError(f"{where}: has {lines:,} rows, and a day has {DAY_MINUTES:,} minutes; make the file again")
    if text.count(",") != (len(FIELDS) - 1) * lines:
        number = next((n for n, line in enumerate(text.splitlines(), 1) if line.count(",") != len(FIELDS) - 1), 1)
        raise UserError(f"{where}, line {number}: not milliseconds, open, high, low, close, volume; copy it again")
    try:
        frame = pl.read_csv(io.BytesIO(text.encode()), has_header=False, schema=dict.fromkeys(FIELDS, pl.String))
    except pl.exceptions.PolarsError as error:
        raise UserError(f"{where}: not a well-formed CSV file ({str(error).splitlines()[0]})") from error
    table = Table(Path(where), frame, header_lines=0)
    ms = numbers(table, "ms")
    outside = (ms < 0) | (ms >= DAY_MS)
    if outside.any():
        row = int(np.flatnonzero(outside)[0])
        raise UserError(f"{table.line(row)}: ms is {frame['ms'][row]!r}, not milliseconds of a day; {ROW_ADVICE}")
    midnight = day.astype("datetime64[s]").astype(np.int64)
    return pl.DataFrame(
        {
            "line": np.arange(1, frame.height + 1),
            "seconds": midnight + ms.astype(np.int64) // 1000,
            **{price: numbers(table, price) for price in PRICES},
            "volume": volumes(table),
        }
    ).with_columns(symbol=pl.lit(symbol), entry=pl.lit(name))


def _decoded(where: str, content: bytes) -> str:
    try:
        text = content.decode("ascii").replace("\r\n", "\n").rstrip("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not text; copy the file again") from error
    if not text or "\0" in text or '"' in text:
        raise UserError(f"{where}: {'no rows' if not text else 'not plain CSV'}; copy the file again")
    return text
