"""Durations and dates in words."""

import time

MINUTE, HOUR, DAY = 60, 3600, 86400
# Longest time that an option accepts.
LONGEST_SECONDS = 1000 * DAY


def span(seconds: float) -> str:
    """Return a duration in words: `40 s`, `5 min`, `11.2 h`."""
    if seconds < MINUTE:
        return f"{max(0.0, seconds):.0f} s"
    return f"{seconds / MINUTE:.0f} min" if seconds < HOUR else f"{seconds / HOUR:.1f} h"


def day_of(at: float) -> str:
    """Return the local date of a time in seconds since 1970: `2026-11-25`."""
    return time.strftime("%Y-%m-%d", time.localtime(at))


def when(at: float) -> str:
    """Return the local date and time, to the minute: `2026-11-25 17:05`."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
