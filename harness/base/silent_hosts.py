"""Hosts of the network that did not answer a moment ago: one try, of a minute or so, decides for all who need them."""

import time

# After so long one is tried again: the network may be back.
RECENT_SECONDS = 600.0
_silent: dict[str, tuple[float, str]] = {}


def note_silent(host: str, said: str) -> None:
    """Note that a host did not answer; `said` is what was said of it."""
    _silent[host] = time.monotonic(), said


def said_of_silent(host: str) -> str | None:
    """Return what was said of a host that did not answer a moment ago; None where it is to be tried."""
    at, said = _silent.get(host, (0.0, ""))
    return said if said and time.monotonic() - at < RECENT_SECONDS else None


def forget_silent() -> None:
    """Try all hosts again."""
    _silent.clear()
