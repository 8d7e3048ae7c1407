"""Makes a picture of some sessions from bars."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vpoc.data.bars import Bars
from vpoc.data.exchange.sessions import Sessions, day, split_sessions
from vpoc.errors import UserError
from vpoc.plots.draw import draw_sessions
from vpoc.plots.study import Method, NakedLine, Study, naked_lines, study
from vpoc.plots.words import description, heading, session_numbers, symbol

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_SESSIONS = 60
"""With more sessions, each is too narrow to read."""


@dataclass(frozen=True)
class Picture:
    """A picture: the sessions, the naked levels across them, and the text above them."""

    studies: tuple[Study, ...]
    naked: tuple[NakedLine, ...]
    heading: str
    description: tuple[str, ...]

    def figure(self) -> "Figure":
        """Return the picture as a figure of matplotlib."""
        return draw_sessions(self.studies, self.naked, self.heading, self.description)


def make_picture(bars: Bars, dates: tuple[int, int] | None, method: Method) -> Picture:
    """Return the picture of the sessions of `dates`, or of the last complete session if it is None.

    `dates`: the first and last trade date, in days since 1970-01-01.
    UserError when there is none, or more than can be drawn.
    """
    sessions = split_sessions(bars)
    sessions = sessions.take(sessions.stop > sessions.start)
    drawn = _choose(bars, sessions, dates)
    studies = tuple(study(bars, sessions, which, method) for which in drawn)
    lines = [description(bars, method)]
    if len(studies) == 1:
        lines.append(session_numbers(studies[0]))
    names = dict.fromkeys(symbol(bars, int(sessions.start[which])) for which in drawn)
    return Picture(
        studies=studies,
        naked=naked_lines(bars, sessions, drawn, studies, method),
        heading=heading(", ".join(names), studies),
        description=tuple(lines),
    )


def _choose(bars: Bars, sessions: Sessions, dates: tuple[int, int] | None) -> Sequence[int]:
    if not len(sessions):
        raise UserError(f"{bars.path}: no bar lies in regular hours (09:30 to 16:00 New York); check the stamps")
    if dates is None:
        complete = np.flatnonzero(sessions.complete)
        if not len(complete):
            span = f"{day(sessions.date[0])} to {day(sessions.date[-1])}"
            raise UserError(f"{bars.path}: no session is complete; say which one to draw: --date, of {span}")
        return [int(complete[-1])]
    first, last = dates
    if last < first:
        raise UserError(f"--from {day(first)} is after --to {day(last)}; swap them")
    found: list[int] = np.flatnonzero((sessions.date >= first) & (sessions.date <= last)).tolist()
    if not found:
        raise UserError(f"{bars.path}: no session {_when(dates)}; {_nearest(sessions, dates)}")
    if len(found) > MOST_SESSIONS:
        raise UserError(f"{len(found)} sessions {_when(dates)} do not fit into a picture; draw {MOST_SESSIONS} at most")
    return found


def _when(dates: tuple[int, int]) -> str:
    first, last = map(day, dates)
    return f"on {first}" if first == last else f"from {first} to {last}"


def _nearest(sessions: Sessions, dates: tuple[int, int]) -> str:
    before = sessions.date[sessions.date < dates[0]][-1:]
    after = sessions.date[sessions.date > dates[1]][:1]
    return f"the nearest is that of {' and of '.join(day(int(date)) for date in (*before, *after))}"
