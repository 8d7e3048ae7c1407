"""Numbers and names in the sentences of a report. Words in backquotes are names or commands."""

import math
import time
from collections.abc import Sequence

from harness.base.wording import listed, some_of

# Longest list of names that is written out in full.
LISTED = 3


def names(given: Sequence[str]) -> str:
    """Return names in backquotes; of a long list, the first few and the number of the others."""
    shown = [f"`{name}`" for name in given]
    return some_of(shown, LISTED) if len(shown) > LISTED else listed(shown)


def utc(seconds: float) -> str:
    """Return a time, given in seconds since 1970, in UTC to the minute."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def at_least(rate: float) -> str:
    """Return a lower bound in percent, rounded down."""
    return f"{math.floor(rate * 100 + 1e-9)} %"


def at_most(rate: float) -> str:
    """Return an upper bound in percent, rounded up."""
    return f"{math.ceil(rate * 100 - 1e-9)} %"


def share(rate: float) -> str:
    """Return a confidence or a threshold in percent."""
    return f"{rate * 100:g} %"
