"""Findings about the blocks of a file: row counts with the line of the first row, and facts of each session."""

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from vpoc.arrays import Flags, Floats, Ints
from vpoc.data.bars import Bars, exact_duplicates
from vpoc.data.checks.plausibility import Plausibility
from vpoc.data.checks.session_blocks import Block
from vpoc.data.exchange.calendar import in_halts, outside_trading_hours
from vpoc.data.exchange.sessions import Sessions, new_york, split_sessions
from vpoc.data.rules import DROPPED, OFF_GRID, RULES, broken_rules
from vpoc.errors import UserError

STALE_SECONDS = 5 * 86_400
"""Age in seconds from which a VIX is stale: no weekend with holidays is longer."""


@dataclass
class Tally:
    """The number of rows with some property, and the line of the first."""

    rows: int = 0
    first_line: int = 0

    def add(self, lines: Ints) -> None:
        """Count the rows on these lines."""
        if len(lines):
            first = int(lines.min())
            self.first_line = min(self.first_line, first) if self.rows else first
            self.rows += len(lines)


@dataclass
class _LastVix:
    """The last VIX value so far, and since when it has not changed."""

    value: float = np.nan
    since: int = 0
    """Seconds since 1970 UTC."""

    def look(self, bars: Bars) -> tuple[Flags, Flags, Flags]:
        """Return flags [rows] of bars without VIX, of those of them after a known VIX, and of bars with a stale VIX.

        A VIX is stale when it is older than 5 days. It is as old as the last change of its value.
        """
        missing = np.isnan(bars.vix)
        known = np.flatnonzero(~missing)
        seen = np.ones_like(missing) if not np.isnan(self.value) else np.logical_or.accumulate(~missing)
        stale = np.zeros(len(bars), dtype=np.bool_)
        if len(known):
            values, ts = bars.vix[known], bars.ts[known]
            changed = np.concatenate([[values[0] != self.value], values[1:] != values[:-1]])
            since = np.maximum.accumulate(np.where(changed, ts, -(2**62)))
            since = np.where(since == -(2**62), self.since, since)
            stale[known] = ts - since > STALE_SECONDS
            self.value, self.since = float(values[-1]), int(since[-1])
        return missing, missing & seen, stale


@dataclass
class Findings:
    """Everything found in the blocks so far.

    `tallies`: by name, empty where nothing was counted; those of `broken_rules`, "unreadable", "outside_trading_hours",
    "shut_hours" (without halts), "null_vix", "vix_gaps" (no VIX, but one above) and "stale_vix". `rows`: all; `bars`:
    those that can be read.
    `first`, `last`: stamps, seconds since 1970 UTC. `nameless`: rows with an empty symbol, where the file has such a
    column. `halt`: why the bars cannot be parted into sessions. `sessions`: parts that follow each other; beside them
    for each session `opens` and `closes`, the first and last price in ticks, and `vix_closes`, the VIX at 17:00.
    `plausibility`: the gate.
    """

    tallies: dict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    unreadable_reason: str = ""
    rows: int = 0
    bars: int = 0
    first: int = 2**62
    last: int = -(2**62)
    bar_seconds: int = 0
    symbols: tuple[str, ...] = ()
    sessions: list[Sessions] = field(default_factory=list)
    opens: list[Ints] = field(default_factory=list)
    closes: list[Ints] = field(default_factory=list)
    vix_closes: list[Floats] = field(default_factory=list)
    halt: str = ""
    nameless: int = 0
    vix: _LastVix = field(default_factory=_LastVix)
    plausibility: Plausibility = field(default_factory=Plausibility)

    def add(self, block: Block) -> None:
        """Examine one more block."""
        self.rows += len(block.bars) + block.unreadable.height
        if block.unreadable.height and not self.tallies["unreadable"].rows:
            self.unreadable_reason = block.unreadable["reason"][int(block.unreadable["line"].arg_min() or 0)]
        self.tallies["unreadable"].add(block.unreadable["line"].to_numpy())
        self.tallies["late"].add(block.late)
        bars = block.bars
        if not len(bars):
            return
        self.bars += len(bars)
        self.first, self.last = min(self.first, int(bars.ts[0])), max(self.last, int(bars.ts[-1]))
        self.bar_seconds, self.symbols = bars.bar_seconds, bars.symbols
        if "" in bars.symbols:
            self.nameless += int((bars.contract == bars.symbols.index("")).sum())
        date, minute = new_york(bars.ts)
        broken = broken_rules(bars)
        for name, flags in broken.items():
            self.tallies[name].add(block.line[flags])
        unknown = outside_trading_hours(date, minute)
        self.tallies["outside_trading_hours"].add(block.line[unknown])
        self.tallies["shut_hours"].add(block.line[unknown & ~in_halts(date, minute)])
        missing, gaps, stale = self.vix.look(bars)
        self.tallies["null_vix"].add(block.line[missing])
        self.tallies["vix_gaps"].add(block.line[gaps])
        self.tallies["stale_vix"].add(block.line[stale])
        # The gate does not judge rows that are already wrong; those off the grid it judges as loading rounds them.
        dropped = [broken[rule.name] for rule in RULES if rule.fix == DROPPED and rule.name != OFF_GRID]
        wrong = np.logical_or.reduce(dropped)
        self.plausibility.add(bars.take(~wrong), block.line[~wrong])
        self._split(bars.take(~exact_duplicates(bars)), continues=not block.last)

    def _split(self, bars: Bars, *, continues: bool) -> None:
        if self.halt:
            return
        try:
            sessions = split_sessions(bars, continues=continues)
        except UserError as error:
            self.halt = str(error)
            return
        ends = np.append(sessions.first[1:], len(bars)) - 1
        self.sessions.append(sessions)
        self.opens.append(bars.open[sessions.first])
        self.closes.append(bars.close[ends])
        self.vix_closes.append(bars.vix[np.maximum(sessions.end, 1) - 1])
