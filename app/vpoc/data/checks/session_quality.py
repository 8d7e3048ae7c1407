"""Facts of the sessions of a file, for the data-quality table."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from vpoc.data.checks.findings import Findings
from vpoc.data.columns import TICK
from vpoc.data.exchange.calendar import FULL_CLOSE, roll_dates, rth_close
from vpoc.data.exchange.rolls import AUTO, roll_numbers
from vpoc.data.exchange.selection import FEWEST, SHORTEST_LOOKBACK, longest_lookback, require_enough, select_sessions
from vpoc.data.exchange.sessions import Sessions, day
from vpoc.errors import UserError

SESSION_COUNTS = (
    "sessions",
    "complete_rth_sessions",
    "sessions_without_rth",
    "missing_rth_bars",
    "sessions_with_rows",
    "longest_lookback",
    "sessions_after_a_gap",
)
SESSION_TABLES = ("missing_sessions", "half_days", "rolls", "missing_rth_by_session")


@dataclass(frozen=True)
class SessionQuality:
    """The facts of the sessions of a file.

    `facts`: by name, in order; None and empty tables when the bars cannot be split into sessions.
    `warnings`: one line for each.
    `too_few`: why training would find too few sessions; empty if it finds enough.
    """

    facts: dict[str, Any]
    warnings: list[str]
    too_few: str


def inspect_sessions(path: Path, found: Findings, rows: str, lookback: int) -> SessionQuality:
    """Return the facts of the sessions of the file at `path`, for training on `rows` after `lookback` sessions."""
    if found.halt or not found.sessions:
        return SessionQuality({**dict.fromkeys(SESSION_COUNTS), **{name: [] for name in SESSION_TABLES}}, [], "")
    sessions = Sessions.concatenate(found.sessions)
    traded = sessions.found > 0
    counted = sessions.take(traded)
    # A vendor's file without VIX gets its VIX in the merge.
    vix = np.concatenate(found.vix_closes)[traded]
    vix = np.zeros_like(vix) if found.tallies["null_vix"].rows == found.bars else vix
    select = partial(select_sessions, counted, roll_numbers(counted, found.symbols, AUTO), vix, rows=rows)
    giving, most = select(lookback=lookback), select(lookback=SHORTEST_LOOKBACK)
    longest = longest_lookback(counted, most, FEWEST[rows])
    too_few = ""
    try:
        require_enough(path, counted, giving, lookback, FEWEST[rows], longest)
    except UserError as error:
        too_few = str(error)
    missing = np.maximum(sessions.expected - sessions.found, 0)
    if sessions.in_progress or found.last < sessions.open_utc[-1]:
        missing[-1] = 0
    between = np.arange(int(sessions.date[0]), int(sessions.date[-1]))
    absent = between[(rth_close(between) > 0) & ~np.isin(between, sessions.date)]
    facts = {
        "sessions": len(sessions),
        "complete_rth_sessions": int(sessions.complete.sum()),
        "sessions_without_rth": int((~traded).sum()),
        "missing_rth_bars": int(missing[traded].sum()),
        "sessions_with_rows": len(giving.sessions),
        "longest_lookback": longest,
        "sessions_after_a_gap": giving.left_out["after_gap"],
        "missing_sessions": list(map(day, absent.tolist())),
        "half_days": list(map(day, sessions.date[traded & (sessions.close < FULL_CLOSE)].tolist())),
        "rolls": _rolls(found, sessions),
        "missing_rth_by_session": [
            {
                "trade_date": day(sessions.date[place]),
                "expected": int(sessions.expected[place]),
                "found": int(sessions.found[place]),
                "complete": bool(sessions.complete[place]),
            }
            for place in np.flatnonzero(missing > 0)
        ],
    }
    return SessionQuality(facts, [*_warnings(facts), *_mixed(counted), *_absent(counted)], too_few)


def _rolls(found: Findings, sessions: Sessions) -> list[dict[str, Any]]:
    """Return the sessions where the symbol changes or CME's calendar has a roll, and the price jump in points."""
    opens, closes = np.concatenate(found.opens), np.concatenate(found.closes)
    known = np.flatnonzero(sessions.contract >= 0)
    changed = known[1:][np.diff(sessions.contract[known]) != 0]
    before = dict(zip(known[1:].tolist(), known[:-1].tolist(), strict=True))
    calendar = roll_dates(int(sessions.date[0]), int(sessions.date[-1]))
    by_calendar = np.unique(np.searchsorted(sessions.date, calendar))
    return [
        {
            "trade_date": day(sessions.date[place]),
            "symbol_changes": place in changed,
            "calendar": place in by_calendar,
            "from": found.symbols[sessions.contract[before[place]]] if place in changed else None,
            "to": found.symbols[sessions.contract[place]] if place in changed else None,
            "jump_points": float(opens[place] - closes[place - 1]) * TICK if place else None,
        }
        for place in np.union1d(changed, by_calendar).tolist()
    ]


def _warnings(facts: Mapping[str, Any]) -> list[str]:
    warnings = []
    short, absent = facts["missing_rth_by_session"], facts["missing_sessions"]
    if short:
        lost = sum(not session["complete"] for session in short)
        warnings.append(
            f"{len(short)} session(s) miss bars of the regular hours; {lost} of them miss more than 5 %, and training "
            f"leaves them out{_of_longer_bars(short)}"
        )
    if absent:
        warnings.append(f"{len(absent)} session(s) of the calendar are not there; the first is {absent[0]}")
    return warnings


def _of_longer_bars(short: Sequence[Mapping[str, Any]]) -> str:
    """Return a clause on sessions that have as many bars as in a file of longer bars, if most of `short` are such."""
    ratios = Counter(one["expected"] / one["found"] for one in short if one["found"])
    longer, number = max(ratios.items(), key=itemgetter(1), default=(1.0, 0))
    if not longer.is_integer() or number < 2 or number <= len(short) / 2:
        return ""
    return f"; {number} of them have one of every {longer:.0f} bars: join only files of one bar length"


def _mixed(sessions: Sessions) -> list[str]:
    """Warn of sessions whose contract changes in regular hours: one profile of both would compare their prices."""
    dates = sessions.date[sessions.mixed]
    if not len(dates):
        return []
    return [
        f"in {len(dates)} session(s) the contract changes in regular hours, and training leaves them out; the first is "
        f"{day(dates[0])}"
    ]


def _absent(sessions: Sessions) -> list[str]:
    """Warn of sessions without bars before or after regular hours; the first and the last session may lack them."""
    night, evening = sessions.without_overnight, sessions.without_evening
    given = (
        (sessions.date[1:][night[1:]], "before 09:30", "on_vol_share and on_range_frac"),
        (sessions.date[:-1][evening[:-1]], "after regular hours", "VIX at 17:00, and on_vol_share of the session,"),
    )
    return [
        f"{len(dates)} session(s) have no bars {when}, so that {what} are missing; the first is {day(dates[0])}"
        for dates, when, what in given
        if len(dates)
    ]
