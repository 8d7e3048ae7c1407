"""Synthetic ES and VIX minutes, computed in integers only, so that a seed gives the same bytes on every machine.

They have the shape of real data (24-hour sessions, busy open and close, a big closing bar, calm nights), but the walk
is fair: a model that finds an edge in them has found a leak.
"""

import io

import numpy as np
import polars as pl

from vpoc.arrays import Ints
from vpoc.data.columns import PRICES, STAMP_FORMAT
from vpoc.data.exchange.calendar import FIRST, LAST, rth_close
from vpoc.data.exchange.sessions import RTH_CLOSE, RTH_OPEN, ZONE
from vpoc.data.prng import Words, words

FIRST_TRADE_DATE = np.datetime64("2018-01-02")
BARS = 23 * 60
"""One-minute bars of a session, 18:00 to 17:00 New York."""
FAIR_PRICE = 16_000
"""Ticks; between sessions the walk is pulled back towards this price, so that prices stay positive."""
MINUTE_OF_DAY = (18 * 60 + np.arange(BARS)) % (24 * 60)
RTH = (MINUTE_OF_DAY >= RTH_OPEN) & (MINUTE_OF_DAY < RTH_CLOSE)


def synthetic_csv(sessions: int, seed: int) -> bytes:
    """Return a merged CSV with `sessions` sessions of 1380 bars, on dates of the calendar from 2018-01-02.

    Half days are full ones.

    If the calendar ends before, they begin earlier.
    """
    columns = _columns(sessions, seed)
    frame = pl.DataFrame(
        {
            "ts": _stamps(sessions),
            **{name: _two_decimals(pl.Series(columns[name] * 25)) for name in PRICES},
            "volume": columns["volume"],
            "vix": _two_decimals(pl.Series(columns["vix"])),
        }
    )
    first_quote = int(np.flatnonzero(RTH)[0])
    frame = frame.with_columns(pl.when(pl.int_range(pl.len()) >= first_quote).then("vix").alias("vix"))
    buffer = io.BytesIO()
    frame.write_csv(buffer)
    return buffer.getvalue()


def _columns(sessions: int, seed: int) -> dict[str, Ints]:
    parts: dict[str, list[Ints]] = {name: [] for name in (*PRICES, "volume", "vix")}
    price, vix = FAIR_PRICE, 1_800
    for session in range(sessions):
        first, second, third, fourth = words(seed, session, 4 * BARS).reshape(4, BARS)
        pace = 2 + int(third[0] % np.uint64(6))
        steps = np.where(RTH, _bits_set(first) + _bits_set(second) - 64, _bits_set(first & np.uint64(0xFFFF)) - 8)
        # Rounding towards zero on both sides keeps the walk fair.
        steps = np.sign(steps) * (np.abs(steps) * pace // 4)
        close = price - (price - FAIR_PRICE) // 64 + np.cumsum(steps)
        open_ = close - steps
        high = np.maximum(open_, close) + (third % np.uint64(4)).astype(np.int64)
        low = np.minimum(open_, close) - ((third >> np.uint64(8)) % np.uint64(4)).astype(np.int64)
        busy = np.where(RTH, 700 + 2_400 * (MINUTE_OF_DAY - 720 - 45) ** 2 // 195**2, 60)
        busy[np.flatnonzero(RTH)[-1]] *= 10
        noise = 128 + (fourth % np.uint64(256)).astype(np.int64)
        volume = busy * noise * (high - low + 4) // (256 * 8)
        quoted = vix + np.cumsum(np.where(RTH, _bits_set(fourth & np.uint64(0xFF)) - 4, 0)) - (vix - 1_800) // 16
        quoted = np.clip(quoted, 900, 8_000)
        price, vix = int(close[-1]), int(quoted[-1])
        for name, values in zip(parts, (open_, high, low, close, volume, quoted), strict=True):
            parts[name].append(values)
    return {name: np.concatenate(values) for name, values in parts.items()}


def _bits_set(value: Words) -> Ints:
    """How many bits of each word are 1 (a sum of coin tosses: binomial, near to normal)."""
    counts: Ints = pl.Series(value).bitwise_count_ones().cast(pl.Int64).to_numpy()
    return counts


def _stamps(sessions: int) -> pl.Series:
    days = np.arange(FIRST, LAST + 1).astype(np.int64)
    days = days[rth_close(days) > 0]
    begin = min(int(np.searchsorted(days, FIRST_TRADE_DATE.astype(np.int64))), len(days) - sessions)
    dates = pl.Series(days[begin : begin + sessions].astype("datetime64[D]").astype("datetime64[us]"))
    opens = (dates.dt.offset_by("-6h")).dt.replace_time_zone(ZONE).dt.convert_time_zone("UTC")
    seconds = opens.dt.epoch("s").to_numpy()[:, None] + 60 * np.arange(BARS)
    return pl.from_epoch(pl.Series(seconds.ravel()), time_unit="s").dt.to_string(STAMP_FORMAT)


def _two_decimals(hundredths: pl.Series) -> pl.Series:
    frame = pl.DataFrame({"n": hundredths})
    whole, part = pl.col("n") // 100, pl.col("n") % 100
    return frame.select(pl.format("{}.{}", whole, part.cast(pl.String).str.zfill(2)))["n"]
