"""The gate for data that is possible but not plausible: one table of rules for `merge`, `check` and `train`.

Impossible data (`vpoc.data.rules`) can be seen in one row. Here a row, or a session, is compared with those around it
and with the same time on other days, by medians, so that wrong rows do not affect what they are compared with.
"""

from dataclasses import dataclass, field

import numpy as np

from vpoc.arrays import Flags, Floats, Ints
from vpoc.data.bars import Bars
from vpoc.data.checks.bad_prints import NEIGHBOURS, Print, bad_prints_of
from vpoc.data.checks.months import Month, Months
from vpoc.data.checks.plausibility_rules import PLAUSIBILITY_RULE, PLAUSIBILITY_RULES, VIX_HIGH, VIX_LOW, Implausible
from vpoc.data.columns import TICK
from vpoc.data.exchange.sessions import RTH_CLOSE, RTH_OPEN, Sessions, split_sessions
from vpoc.errors import UserError

PRICE_VIX_SHARE = 0.05
HIGHEST_PRICE = 60_000
"""Points.

The S&P 500 in cents has been above this since the contract exists, and no contract with this tick reaches it in points.
"""
STEP = 2
"""Largest factor between two bars: no stock index has doubled or halved from one bar to the next."""
VOLUME_STEP = 20
"""Largest factor between neighbouring sessions: a roll changes a contract's volume by less than 10 in a day."""
MOST_VOLUME = 30_000_000
"""Contracts in a session; the record of ES is below 7 million."""
FEWEST_BARS = 20
"""Fewest bars of a session whose volume or prices are judged."""
FEWEST_FALLS = 0.05
"""Smallest share of steps from bar to bar at which volume falls; it is near a half unless volume is cumulative."""
SWAPPED_ERRORS = 4
"""Standard errors by which steps whose close meets the open before must outnumber steps whose open meets the close
before, for open and close to be taken as swapped; in sound data the former are fewer."""
STEPS, MINUTE = 60, 60
"""Number of steps from bar to bar that are judged together; and a minute in seconds."""
FEWEST_SESSIONS = 3
MOST_EVENINGS = 0.7


@dataclass
class _Sum:
    """The findings of a rule so far: their `count`, the place of the first, and how it showed there."""

    count: int = 0
    ts: int = 0
    line: int = 0
    shown: str = ""

    def add(self, count: int, ts: int, line: int, shown: str) -> None:
        if not self.count:
            self.ts, self.line, self.shown = ts, line, shown
        self.count += count


@dataclass
class Plausibility:
    """The gate for a file, given in blocks in order of time, or at once; in either case it judges month by month."""

    sums: dict[str, _Sum] = field(default_factory=dict)
    prints: list[Print] = field(default_factory=list)
    rows: int = 0
    with_vix: int = 0
    volume: float = 0.0
    """Mean volume of a bar in the regular hours of the session that was judged last."""
    price: int = 0
    """Last close, in ticks."""
    evenings: list[Ints] = field(default_factory=list)
    firsts: list[Ints] = field(default_factory=list)
    first: tuple[int, int] = (0, 0)
    step: int = 0
    months: Months = field(default_factory=lambda: Months(NEIGHBOURS))

    def add(self, bars: Bars, line: Ints | None = None) -> None:
        """Examine a block; `line` [rows]: the line of each bar in its file."""
        if not len(bars):
            return
        line = np.zeros(len(bars), dtype=np.int64) if line is None else line
        if not self.rows:
            self.first, self.step = (int(bars.ts[0]), int(line[0])), bars.bar_seconds
        self.rows += len(bars)
        self._vix(bars, line)
        for month in self.months.add(bars, line):
            self._judge(month)

    def _judge(self, month: Month) -> None:
        prints = bad_prints_of(month)
        bars, line = month.alone
        # After a bad print at the end of the previous month, the price steps back here.
        last = [one.row for one in (*self.prints[-1:], *prints)]
        self._price(bars, line, np.array(last, dtype=np.int64) - month.row)
        self.prints += prints
        try:
            sessions = split_sessions(bars)
        except UserError:
            # Bars that cannot be split into sessions are refused where they are split.
            return
        if bars.bar_seconds:
            self._volume(bars, line, sessions)
            self._steps(bars, line)
            self._stamps(bars, sessions)

    def found(self) -> list[Implausible]:
        """Return all rules that the blocks break; call this after the last block."""
        for month in self.months.rest():
            self._judge(month)
        self._end_stamps()
        sums = dict(self.sums)
        if "vix_is_price" in sums and sums["vix_is_price"].count >= PRICE_VIX_SHARE * self.with_vix:
            sums.pop("vix_range", None)
        else:
            sums.pop("vix_is_price", None)
        broken = [
            Implausible(rule, found.count, found.ts, found.line, found.shown)
            for rule in PLAUSIBILITY_RULES
            if (found := sums.get(rule.name)) is not None
        ]
        rule = PLAUSIBILITY_RULE["bad_print"]
        for gross in (True, False):
            prints = [one for one in self.prints if one.gross is gross]
            if prints:
                more = f" ({len(prints)} such bars)" if len(prints) > 1 else ""
                one = prints[0]
                broken.append(Implausible(rule, len(prints), one.ts, one.line, one.shown + more, gross))
        return broken

    def _found(self, name: str, flags: Flags, bars: Bars, line: Ints, shown: str) -> None:
        if flags.any():
            row = int(flags.argmax())
            text = shown.format(vix=bars.vix[row], close=bars.close[row] * TICK)
            self._add(name, int(np.count_nonzero(flags)), bars, line, row, text)

    def _add(self, name: str, count: int, bars: Bars, line: Ints, row: int, shown: str) -> None:
        self.sums.setdefault(name, _Sum()).add(count, int(bars.ts[row]), int(line[row]), shown)

    def _vix(self, bars: Bars, line: Ints) -> None:
        vix = bars.vix
        self.with_vix += int(np.count_nonzero(~np.isnan(vix)))
        outside = vix_out_of_range(vix)
        if not outside.any():
            return
        self._found("vix_range", outside, bars, line, "{vix:g}")
        close = bars.close * TICK
        near = outside & (np.abs(vix - close) <= 0.01 * np.abs(close))
        self._found("vix_is_price", near, bars, line, "VIX {vix:g} at a close of {close:g}")

    def _price(self, bars: Bars, line: Ints, prints: Ints) -> None:
        """Find impossible prices, and large steps of the price, except at `prints`, from which it steps back."""
        close = bars.close
        before = np.empty_like(close)
        before[1:], before[0] = close[:-1], self.price or close[0]
        self.price = int(close[-1])
        jump = (close > STEP * before) | (STEP * close < before)
        if jump.any():
            near = np.isin(np.arange(len(close)), np.concatenate([prints, prints + 1]))
            shown = "the close is {close:g}, and was " + f"{before[int((jump & ~near).argmax())] * TICK:g} before"
            self._found("price_scale", jump & ~near, bars, line, shown)
        if close[:: max(len(close) // 1024, 1)].min() > HIGHEST_PRICE / TICK:
            self._found("price_scale", np.ones(1, dtype=np.bool_), bars, line, "{close:g} points")

    def _volume(self, bars: Bars, line: Ints, sessions: Sessions) -> None:
        """Find regular hours without volume, and compare the mean of a bar with that of the session before."""
        total = np.concatenate([[0], np.cumsum(bars.volume)])
        judged = np.flatnonzero((sessions.found >= np.minimum(FEWEST_BARS, sessions.expected)) & (sessions.found > 0))
        for place in judged.tolist():
            start, stop = int(sessions.start[place]), int(sessions.stop[place])
            volume = float(total[stop] - total[start]) / (stop - start)
            times = max(volume, 1.0) / max(self.volume or volume, 1.0)
            shown = []
            if not 1 / VOLUME_STEP < times < VOLUME_STEP:
                shown.append(f"{volume:,.0f} contracts a bar in this session, {self.volume:,.0f} in the one before")
            elif not volume:
                shown.append("no contracts in the regular hours of a session, as if the volume were in another column")
            if total[stop] - total[start] > MOST_VOLUME:
                shown.append(f"{total[stop] - total[start]:,} contracts in the regular hours of a session")
            for one in shown:
                self._add("volume_scale", 1, bars, line, start, one)
            self.volume = volume

    def _steps(self, bars: Bars, line: Ints) -> None:
        """Judge steps from bar to bar: whether volume never falls, and whether closes meet the opens before."""
        # For bars of a minute and less, every fourth step is enough.
        stride = 4 if bars.bar_seconds <= MINUTE else 1
        place = np.arange(1, len(bars), stride)
        if len(place) < FEWEST_BARS:
            return
        borders = np.arange(0, max(len(place) - STEPS // 2, 1), STEPS)
        next_to = bars.ts[place] - bars.ts[place - 1] == bars.bar_seconds
        step = bars.volume[place] - bars.volume[place - 1]
        falls, rises = _counts((step < 0) & next_to, borders), _counts((step > 0) & next_to, borders)
        adding = (falls + rises >= FEWEST_BARS) & (falls < FEWEST_FALLS * (falls + rises))
        apart = np.abs(bars.open[place] - bars.close[place - 1])
        crossed = np.abs(bars.close[place] - bars.open[place - 1])
        against, along = _counts((apart > crossed) & next_to, borders), _counts((apart < crossed) & next_to, borders)
        swapped = (against + along >= FEWEST_BARS) & (against - along > SWAPPED_ERRORS * np.sqrt(against + along))
        for name, flags, shown in (
            ("cumulative_volume", adding, "it hardly ever falls"),
            ("open_close_swapped", swapped, "each close continues the open of the bar before"),
        ):
            if flags.any():
                first = int(place[borders[int(flags.argmax())]]) - 1
                self._add(name, int(np.count_nonzero(flags)), bars, line, first, f"from here on {shown}")

    def _stamps(self, bars: Bars, sessions: Sessions) -> None:
        """Note when evenings begin, and when regular hours begin in sessions that also have a bar at their end."""
        row = np.minimum(sessions.first, len(bars) - 1)
        evening = bars.ts[row] - (sessions.open_utc - (RTH_OPEN + 6 * 60) * 60)
        self.evenings.append(evening[(evening >= 0) & (evening < 3600)])
        alone = (sessions.first == sessions.start) & (sessions.found > 0)
        since = bars.ts[np.minimum(sessions.start, len(bars) - 1)] - sessions.open_utc
        at_close = bars.ts[np.minimum(sessions.stop, len(bars) - 1)] == sessions.close_utc
        self.firsts.append(np.where(at_close, since, 0)[alone & (sessions.close == RTH_CLOSE)])

    def _end_stamps(self) -> None:
        evenings, firsts = (
            np.concatenate([np.zeros(0, dtype=np.int64), *found]) for found in (self.evenings, self.firsts)
        )
        for found, shown in (
            (evenings, "the first bar after the daily break is never at 18:00 New York"),
            (firsts, "regular hours begin one bar after 09:30 and have a bar at 16:00"),
        ):
            if len(found) >= FEWEST_SESSIONS and found.min() > 0 and np.mean(found == self.step) >= MOST_EVENINGS:
                self.sums["end_stamps"] = _Sum(len(found), *self.first, shown)


def _counts(flags: Flags, borders: Ints) -> Ints:
    """Return the number of `flags` [steps] that are set in each part; the parts begin at `borders`."""
    count: Ints = np.add.reduceat(flags, borders, dtype=np.int64)
    return count


def vix_out_of_range(vix: Floats) -> Flags:
    """Return flags [rows] of the values that are above zero, but outside 5 to 200."""
    outside: Flags = ((vix < VIX_LOW) & (vix > 0)) | (vix > VIX_HIGH)
    return outside
