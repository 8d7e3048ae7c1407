"""The market of the rows: the symbol, the step of its prices, and the dates of the rows; stored in a model."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vpoc.arrays import Ints
from vpoc.data.columns import TICK
from vpoc.data.exchange.sessions import day

if TYPE_CHECKING:
    # Not imported at run time, because stored features need no profiles.
    from vpoc.features.session_facts import SessionFacts

ROOTED = re.compile(r"(?P<root>[A-Z0-9]{1,4}?)([FGHJKMNQUVXZ]\d{1,4}|\.[a-z]\.\d+|=F|!|\d!)?")


@dataclass(frozen=True)
class Market:
    """The market of the rows.

    `symbol`: root of the contracts, empty when the file names none.
    `tick`: step of the prices, points.
    `first`, `last`: trade dates between which sessions give rows, such as 2024-01-02; session rows without a known
    outcome are left out. Empty if unknown.
    """

    symbol: str = ""
    tick: float = TICK
    first: str = ""
    last: str = ""

    def holds(self, dates: Ints) -> list[bool]:
        """Return the flags of the trade dates [n], days since 1970, between `first` and `last`."""
        if not self.first:
            return [False] * len(dates)
        first, last = (int(np.datetime64(date, "D").astype(np.int64)) for date in (self.first, self.last))
        inside: list[bool] = ((dates >= first) & (dates <= last)).tolist()
        return inside


UNKNOWN_MARKET = Market()


def market_of(symbols: Sequence[str], days: "SessionFacts", dates: Ints) -> Market:
    """Return the market of a file with `symbols` and `days`, whose rows are of the trade dates `dates`, in order."""
    prices = np.concatenate([days.open, days.high, days.low, days.close])
    first, last = (day(dates[0]), day(dates[-1])) if len(dates) else ("", "")
    return Market(symbol_of(symbols), max(int(np.gcd.reduce(prices)), 1) * TICK, first, last)


def symbol_of(symbols: Sequence[str]) -> str:
    """Return the root of the contracts `symbols`: ES for ESZ3 and ESH4; empty if there is none, or more than one."""
    found = {match["root"] if (match := ROOTED.fullmatch(name)) else name for name in symbols if name}
    return found.pop() if len(found) == 1 else ""
