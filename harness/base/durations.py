"""How long something takes, in words."""

MINUTE, HOUR = 60, 3600


def span(seconds: float) -> str:
    """A time as people say it: `40 s`, `5 min`, `11.2 h`."""
    if seconds < MINUTE:
        return f"{max(0.0, seconds):.0f} s"
    return f"{seconds / MINUTE:.0f} min" if seconds < HOUR else f"{seconds / HOUR:.1f} h"
