"""The rules that bars must obey, in one table, which reading for training, `vpoc check` and `check --fix` use.

A line that cannot be read at all is not judged here: `vpoc.data.merged_csv` says what is wrong with it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from vpoc.arrays import Flags
from vpoc.data.bars import Bars, conflicting_duplicates, exact_duplicates, ohlc_violations
from vpoc.data.columns import TICK

DROPPED, CHANGED, MOVED = "dropped", "changed", "moved"
"""Actions of `vpoc check --fix` on a row."""
MAX_OFF_GRID_SHARE = 0.001
OFF_GRID = "off_grid"
INVENTED_RANGE = 2
"""Ticks; some vendors fill minutes without trades with bars of one contract and this range."""
FEWEST_INVENTED = 3
FEWEST_FLAT = 5
"""Bars in a row; shorter runs also occur in a quiet night."""
SYMBOL_MISSING = "the symbol is empty, but not in every row; fill it in or remove the column"
ROW_ADVICE = "correct or remove the row"


@dataclass(frozen=True)
class Rule:
    """A rule for rows of bars.

    `name`: the name under which rows that break it are counted.
    `problem`: what is wrong with them, in words.
    `advice`: what the user can do; training refuses a file with such rows. A rule without advice causes only a warning.
    `broken`: returns flags [rows] of the rows that break it; None if that depends on more than the bars of a block.
    `fix`: what `check --fix` does to such a row; None: nothing, or something that depends on other rows.
    `of_trades`: whether it also applies to files with a row per trade.
    """

    name: str
    problem: str
    advice: str = ""
    broken: Callable[[Bars], Flags] | None = None
    fix: str | None = None
    of_trades: bool = True


def not_positive(bars: Bars) -> Flags:
    """Return flags [rows] of the bars with a price that is not above zero."""
    return (bars.low <= 0) | (bars.open <= 0) | (bars.close <= 0) | (bars.high <= 0)


def backwards(bars: Bars) -> Flags:
    """Return flags [rows] of the bars, in the order of the file, that begin before the one above."""
    late = np.zeros(len(bars), dtype=np.bool_)
    late[1:] = bars.ts[1:] < bars.ts[:-1]
    return late


def invented_fills(bars: Bars) -> Flags:
    """Return flags [rows] of the bars in a run of at least 3 with one contract and a range of 2 ticks."""
    return _in_runs((bars.volume == 1) & (bars.high - bars.low == INVENTED_RANGE), FEWEST_INVENTED)


def flat_repeats(bars: Bars) -> Flags:
    """Return flags [rows] of bars without a range that repeat price and volume of the bar before, 5 or more in turn."""
    flat = (bars.high == bars.low) & (bars.open == bars.close) & (bars.open == bars.low)
    same = np.zeros(len(bars), dtype=np.bool_)
    same[1:] = flat[1:] & flat[:-1] & (bars.close[1:] == bars.close[:-1]) & (bars.volume[1:] == bars.volume[:-1])
    same[1:] &= bars.ts[1:] != bars.ts[:-1]
    return _in_runs(same, FEWEST_FLAT - 1)


RULES = (
    Rule("not_positive", "a price is not above zero", ROW_ADVICE, not_positive, DROPPED),
    Rule("late", "the stamp is before that of the line above", "sort the file by ts", backwards),
    # A file with a row per trade has as many rows with the same stamp as there were trades in that second.
    Rule(
        "conflicting_duplicates",
        "the same stamp with other values",
        "keep one of the rows",
        conflicting_duplicates,
        of_trades=False,
    ),
    Rule(
        "ohlc_violations",
        "open or close is outside low..high",
        "correct or remove the row, and check that the columns are not swapped",
        ohlc_violations,
        DROPPED,
    ),
    Rule(
        "vix_not_positive",
        "vix is not above zero",
        "correct the row, or leave the cell empty",
        lambda bars: bars.vix <= 0,
        CHANGED,
    ),
    Rule(
        OFF_GRID,
        f"a price is not a multiple of {TICK}",
        "use unadjusted prices of one ES contract (no calendar spreads, no ratio adjustment)",
        lambda bars: bars.off_grid,
        DROPPED,
    ),
    # Trades of one second may be equal.
    Rule(
        "exact_duplicates",
        "rows repeat the one before; loading drops them",
        broken=exact_duplicates,
        of_trades=False,
    ),
    Rule("zero_volume", "bars have no volume", broken=lambda bars: bars.volume == 0),
    Rule(
        "invented_fills",
        "bars in a row have a volume of 1 and a range of 2 ticks, as if a vendor had invented them",
        broken=invented_fills,
        of_trades=False,
    ),
    Rule(
        "flat_repeats",
        "bars in a row repeat one price and volume, as if a vendor had invented them",
        broken=flat_repeats,
        of_trades=False,
    ),
    Rule("shut_hours", "bars begin when the market is not known to be open"),
    Rule("stale_vix", "rows have a VIX that has not changed for more than 5 days"),
)
"""In the order of reporting. Prices off the grid stop training only above a certain share of the rows."""
RULE = {rule.name: rule for rule in RULES}


def broken_rules(bars: Bars) -> Mapping[str, Flags]:
    """Return, by the rule's name, flags [rows] of `bars` that break it, for rules that rows themselves show."""
    none = np.zeros(len(bars), dtype=np.bool_)
    return {
        rule.name: rule.broken(bars) if rule.of_trades or bars.bar_seconds else none
        for rule in RULES
        if rule.broken is not None
    }


@dataclass(frozen=True)
class Problem:
    """A broken rule that stops training: the number of rows that break it, and the first of them (from 0)."""

    rule: Rule
    rows: int
    first_row: int

    def at(self, where: str) -> str:
        """Return the error message; `where` names the place of the first row."""
        return f"{where}: {self.rule.problem} ({self.rows} rows); {self.rule.advice}"


def first_problem(bars: Bars) -> Problem | None:
    """Return the first rule that stops training and is broken by `bars`, except the one on prices off the grid."""
    for rule in RULES:
        if rule.advice and rule.name != OFF_GRID and rule.broken and (rule.of_trades or bars.bar_seconds):
            found = _problem(rule, rule.broken(bars))
            if found is not None:
                return found
    return None


def grid_problem(off_grid: Flags) -> Problem | None:
    """Return the problem of a file in which more than 0.1 % of the rows have a price `off_grid` [rows]; else None."""
    if np.count_nonzero(off_grid) <= MAX_OFF_GRID_SHARE * len(off_grid):
        return None
    return _problem(RULE[OFF_GRID], off_grid)


def _problem(rule: Rule, broken: Flags) -> Problem | None:
    return Problem(rule, int(broken.sum()), int(np.flatnonzero(broken)[0])) if broken.any() else None


def _in_runs(flags: Flags, fewest: int) -> Flags:
    """Return flags [rows] of the rows in a run of at least `fewest` rows with the flag."""
    borders = np.flatnonzero(np.diff(flags, prepend=~flags[:1], append=~flags[-1:]))
    lengths = np.diff(borders)
    return flags & np.repeat(lengths >= fewest, lengths)
