"""The data-quality table of a merged CSV."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vpoc.data.bars import conflicting_duplicates, exact_duplicates, ohlc_violations, parse_bars, problems
from vpoc.data.enough import FEWEST, SHORTEST_WARM_UP, after_gap, sessions_with_rows, usable_sessions
from vpoc.data.sessions import Sessions, split_sessions
from vpoc.data.table import read_table
from vpoc.errors import UserError


@dataclass(frozen=True)
class Quality:
    """`facts`: the table, by name, in order. `errors`: one line for each thing that stops training."""

    facts: dict[str, Any]
    errors: list[str]


def inspect(path: Path, warm_up: int = SHORTEST_WARM_UP, rows: str = "bar") -> Quality:
    """Look at everything in a merged CSV that is to be trained on, with these `rows`, after `warm_up` sessions.

    UserError only when the file cannot be read as a table of bars.
    """
    table = read_table(path)
    bars = parse_bars(table)
    errors = [
        f"{table.line(problem.first_row)}: {problem.name} ({problem.rows} rows); {problem.advice}"
        for problem in problems(bars)
    ]
    sessions = split_sessions(bars.take(~exact_duplicates(bars)))
    usable = usable_sessions(sessions, rows)
    facts: dict[str, Any] = {
        "rows": len(bars),
        "first": _stamp(int(bars.ts[0])),
        "last": _stamp(int(bars.ts[-1])),
        "symbol": bars.symbol,
        "bar_seconds": bars.bar_seconds,
        **_sessions(sessions),
        "sessions_after_a_gap": after_gap(usable, warm_up),
        "exact_duplicates": int(exact_duplicates(bars).sum()),
        "conflicting_duplicates": int(conflicting_duplicates(bars).sum()),
        "zero_volume": int((bars.volume == 0).sum()),
        "off_grid": int(bars.off_grid.sum()),
        "ohlc_violations": int(ohlc_violations(bars).sum()),
        "null_vix": int(np.isnan(bars.vix).sum()),
    }
    try:
        sessions_with_rows(path, usable, warm_up, FEWEST[rows])
    except UserError as error:
        errors.append(str(error))
    return Quality(facts, errors)


def _sessions(sessions: Sessions) -> dict[str, int]:
    traded = sessions.stop > sessions.start
    missing = sessions.expected - (sessions.stop - sessions.start)[traded]
    return {
        "sessions": len(sessions),
        "complete_rth_sessions": int(sessions.complete.sum()),
        "sessions_without_rth": int((~traded).sum()),
        "missing_rth_bars": int(np.maximum(missing, 0).sum()),
    }


def _stamp(seconds: int) -> str:
    return f"{np.datetime64(seconds, 's')}Z"
