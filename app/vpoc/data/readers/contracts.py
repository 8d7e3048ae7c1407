"""Reduces a file with several contracts at the same time to one at a time: the one that trades most in a session."""

import re
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from vpoc.arrays import Ints
from vpoc.data.exchange.sessions import session_dates
from vpoc.data.readers.lean import MONTHS
from vpoc.data.readers.vendor import VendorBars
from vpoc.errors import UserError

OUTRIGHT = re.compile(rf"(?P<root>[A-Z0-9]{{1,4}}?)(?P<month>[{MONTHS}])(?P<year>\d{{1,2}}|\d{{4}})")
SPREAD = re.compile(r"[-: ]")
"""Characters in symbols of calendar spreads (ESZ3-ESH4), butterflies and user-defined strategies, not of outrights."""


@dataclass(frozen=True)
class OneContract:
    """Bars of one contract at a time.

    `spread_rows`: rows of calendar spreads and other strategies that were left out.
    `other_rows`: rows of contracts that were left out because another one traded more.
    `symbols`: the contracts kept, in order of time; empty for a file without symbols.
    `smaller_kept`: a line for each session in which the kept contract traded less than another one.
    """

    bars: VendorBars
    spread_rows: int
    other_rows: int
    symbols: tuple[str, ...]
    smaller_kept: tuple[str, ...] = ()


def one_contract(bars: VendorBars) -> OneContract:
    """Keep the contract that trades most in each session, and with it the rolls from one contract to the next.

    That is the usual rule of continuous series; of equal contracts the one that expires first is kept. It never returns
    to an earlier expiry: a session in which that keeps a smaller contract is named. A file that has one contract at a
    time already is unchanged. UserError when symbols are no contracts of one root, so that --symbol must choose.
    """
    symbol = bars.frame["symbol"]
    if symbol.null_count():
        return OneContract(bars, 0, 0, ())
    names = symbol.unique(maintain_order=True).to_list()
    outright = [name for name in names if not SPREAD.search(name)]
    if len(names) == 1:
        return OneContract(bars, 0, 0, tuple(names))
    if not outright:
        raise UserError(f"{bars.path}: spreads only ({', '.join(names[:4])}); give the bars of contracts")
    frame = bars.frame if len(outright) == len(names) else bars.frame.filter(symbol.is_in(outright))
    spreads = bars.frame.height - frame.height
    bars = replace(bars, frame=frame)
    parts = _parts(bars, outright)
    if not _at_the_same_time(frame):
        return OneContract(bars, spreads, 0, tuple(outright))
    front, smaller = _front(bars, parts)
    kept = frame.filter(front)
    order = kept.sort("ts")["symbol"].unique(maintain_order=True).to_list()
    return OneContract(replace(bars, frame=kept), spreads, frame.height - kept.height, tuple(order), smaller)


def _at_the_same_time(frame: pl.DataFrame) -> bool:
    """Return whether the rows of two symbols interleave; a series that rolls changes its symbol only once for each."""
    by_time = frame.select("ts", code=pl.col("symbol").rank("dense")).sort("ts", "code")
    changes = by_time["code"].diff().fill_null(0) != 0
    if ((by_time["ts"].diff().fill_null(1) == 0) & changes).any():
        return True
    return int(changes.sum()) > frame["symbol"].n_unique() - 1


def _front(bars: VendorBars, parts: dict[str, tuple[int, str]]) -> tuple[pl.Series, tuple[str, ...]]:
    """Return flags [rows] of the contract kept in each session, and the sessions where another one is larger."""
    date = _session_dates(bars.frame["ts"].to_numpy())
    traded = (
        pl.DataFrame({"date": date, "symbol": bars.frame["symbol"], "volume": bars.frame["volume"]})
        .group_by("date", "symbol")
        .agg(pl.col("volume").sum())
    )
    chosen: dict[int, str] = {}
    smaller: list[str] = []
    last = 0
    for (day,), session in traded.sort("date").group_by("date", maintain_order=True):
        volumes = dict(zip(session["symbol"].to_list(), session["volume"].to_list(), strict=True))
        expiry = {name: _expiry(parts[name], int(str(day))) for name in volumes}
        later = [name for name in volumes if expiry[name] >= last] or list(volumes)
        front = min(later, key=lambda name: (-volumes[name], expiry[name]))
        chosen[int(str(day))], last = front, expiry[front]
        largest = max(volumes, key=lambda name: volumes[name])
        if volumes[largest] > volumes[front]:
            smaller.append(
                f"{np.datetime64(int(str(day)), 'D')}: {front} was kept, with {volumes[front]:,} contracts, and not "
                f"{largest} with {volumes[largest]:,}: a series never goes back to an earlier expiry"
            )
    fronts = pl.DataFrame({"date": list(chosen), "front": list(chosen.values())})
    rows = pl.DataFrame({"date": date, "symbol": bars.frame["symbol"]}).join(fronts, on="date", maintain_order="left")
    return rows["symbol"] == rows["front"], tuple(smaller)


def _session_dates(ts: Ints) -> Ints:
    order = np.argsort(ts, kind="stable")
    date = np.empty_like(ts)
    date[order] = session_dates(ts[order])
    return date


def _parts(bars: VendorBars, names: list[str]) -> dict[str, tuple[int, str]]:
    """Return month (from 1) and digits of the year of each contract; UserError unless all are contracts of one root."""
    found = {name: OUTRIGHT.fullmatch(name) for name in names}
    roots = {match["root"] for match in found.values() if match}
    if None in found.values() or len(roots) > 1:
        second = int((bars.frame["symbol"] != names[0]).arg_max() or 0)
        shown = ", ".join(names[:4])
        raise UserError(f"{bars.where(second)}: several symbols in one file ({shown}); choose one with --symbol")
    return {name: (MONTHS.index(match["month"]) + 1, match["year"]) for name, match in found.items() if match}


def _expiry(part: tuple[int, str], day: int) -> int:
    """Return the month of expiry, counted from year 0, of a contract that trades on `day` (since 1970-01-01)."""
    month, digits = part
    now = int(str(np.datetime64(day, "D"))[:4])
    cycle: int = 10 ** len(digits)
    year = now + (int(digits) - now) % cycle
    return year * 12 + month
