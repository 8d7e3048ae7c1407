"""Minutes of futures as QuantConnect Lean keeps them: zip files of one CSV for each contract and day.

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

from vpoc.arrays import Flags, Floats, Ints
from vpoc.data.columns import PRICES
from vpoc.data.readers.raw import RawBars
from vpoc.data.readers.stamps import Written, require_seconds
from vpoc.data.text_table import MAX_VOLUME
from vpoc.errors import UserError, from_os_error

ENTRY = re.compile(r"(?:.*/)?(?P<day>\d{8})_(?P<root>[a-z0-9]+)_minute_trade_(?P<expiry>\d{6})(?:\d{2})?\.csv")
OTHER = re.compile(r"(?:.*/)?\d{8}_[a-z0-9]+_minute_(?:quote|openinterest)_\d{6,8}\.csv")
MONTHS = "FGHJKMNQUVXZ"
FIELDS = ("ms", *PRICES, "volume")
DAY_MS = 86_400_000
LARGEST_ENTRY = 64 * 2**20
"""A day has 1,440 minutes; an entry larger than this is not one of Lean, whatever its name."""


def read_lean(path: Path) -> RawBars:
    """Read one zip file of Lean, or all in a folder; UserError, with entry and line, on what is not as documented."""
    digest = hashlib.sha256()
    frames: list[pl.DataFrame] = []
    names: list[str] = []
    for name, day, symbol, content in _entries(path, digest):
        frames.append(_day(f"{path}, {name}", day, symbol, content).with_columns(entry=pl.lit(len(names))))
        names.append(name)
    if not frames:
        raise UserError(
            f"{path}: no entries such as 20131007_es_minute_trade_201312.csv in it; give a zip file of minute trades "
            "of Lean, or a folder of them"
        )
    frame = pl.concat(frames)
    entries = frame["entry"].to_numpy()
    lines = frame["line"].to_numpy()

    def where(row: int) -> str:
        return f"{path}, {names[entries[row]]}, line {lines[row]}"

    seconds = frame["seconds"].to_numpy()
    require_seconds(seconds, lambda row: f"{where(row)}: a stamp is")
    return RawBars(
        path=path,
        sha256=digest.hexdigest(),
        format="lean",
        lines=lines,
        stamps=Written(seconds, utc=True, zone="UTC"),
        prices={name: frame[name].to_numpy() for name in PRICES},
        volume=frame["volume"].to_numpy(),
        symbol=frame["symbol"],
        documented="start",
        where=where,
        entries=pl.Series(names).gather(frame["entry"]),
    )


def _entries(path: Path, digest: "hashlib._Hash") -> Iterator[tuple[str, np.datetime64, str, bytes]]:
    """Name, day, symbol and content of each entry with trades, by day."""
    try:
        files = sorted(path.glob("*.zip")) if path.is_dir() else [path]
    except OSError as error:
        raise from_os_error(error, path) from error
    for file in files:
        try:
            digest.update(file.read_bytes())
            with zipfile.ZipFile(file) as archive:
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
    """UserError on an entry of no kind that Lean writes; quotes and open interest are passed over."""
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
        raise UserError(f"{file}: {entry[0]}: {day} is no date") from error


def _symbol(file: Path, entry: "re.Match[str]") -> str:
    year, month = int(entry["expiry"][:4]), int(entry["expiry"][4:])
    if not 1 <= month <= 12:
        raise UserError(f"{file}: {entry[0]}: {entry['expiry']} is no month")
    return f"{entry['root'].upper()}{MONTHS[month - 1]}{year % 10}"


def _day(where: str, day: np.datetime64, symbol: str, content: bytes) -> pl.DataFrame:
    """The bars of one entry."""
    text = _decoded(where, content)
    lines = text.count("\n") + (not text.endswith("\n"))
    if text.count(",") != (len(FIELDS) - 1) * lines:
        number = next((n for n, line in enumerate(text.splitlines(), 1) if line.count(",") != len(FIELDS) - 1), 1)
        raise UserError(f"{where}, line {number}: not milliseconds, open, high, low, close, volume; copy it again")
    try:
        frame = pl.read_csv(io.BytesIO(text.encode()), has_header=False, schema=dict.fromkeys(FIELDS, pl.String))
    except pl.exceptions.PolarsError as error:
        raise UserError(f"{where}: not a well-formed CSV file ({str(error).splitlines()[0]})") from error
    values: dict[str, Floats] = {}
    for name in FIELDS:
        values[name] = frame[name].str.strip_chars().cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()
        _refuse(where, frame, name, ~np.isfinite(values[name]), "not a number")
    _refuse(where, frame, "ms", (values["ms"] < 0) | (values["ms"] >= DAY_MS), "not milliseconds of a day")
    whole = values["volume"] == np.rint(values["volume"])
    _refuse(where, frame, "volume", ~whole, "not a whole number")
    _refuse(where, frame, "volume", (values["volume"] < 0) | (values["volume"] > MAX_VOLUME), "not a volume")
    since: Ints = values["ms"].astype(np.int64) // 1000
    return pl.DataFrame(
        {
            "line": np.arange(1, frame.height + 1),
            "seconds": since + day.astype("datetime64[s]").astype(np.int64),
            **{name: values[name] for name in PRICES},
            "volume": values["volume"].astype(np.int64),
        }
    ).with_columns(symbol=pl.lit(symbol))


def _decoded(where: str, content: bytes) -> str:
    try:
        text = content.decode("ascii").replace("\r\n", "\n").rstrip("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not text; copy the file again") from error
    if not text or "\0" in text or '"' in text:
        raise UserError(f"{where}: {'no rows' if not text else 'not plain CSV'}; copy the file again")
    return text


def _refuse(where: str, frame: pl.DataFrame, name: str, wrong: Flags, what: str) -> None:
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise UserError(f"{where}, line {row + 1}: {name} is {frame[name][row]!r}, {what}; correct or remove the row")
