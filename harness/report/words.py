"""Numbers and names in sentences. Words in backquotes are names or commands."""

import math
import time
from collections.abc import Sequence

# Longer lists of names are cut.
LISTED = 3


def names(given: Sequence[str]) -> str:
    """Return names in backquotes; of many, the first few and the number of the others."""
    shown = [f"`{name}`" for name in given[:LISTED]]
    more = len(given) - len(shown)
    if more:
        return f"{', '.join(shown)} and {more} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def utc(seconds: float) -> str:
    """Return a time, given in seconds since 1970, to the minute."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def at_least(rate: float) -> str:
    """Return a lower bound in percent, never rounded up."""
    return f"{math.floor(rate * 100 + 1e-9)} %"


def share(rate: float) -> str:
    """Return a confidence or a threshold in percent."""
    return f"{rate * 100:g} %"
