"""Network hosts that did not answer a moment ago: one attempt, of a minute or so, counts for all who need the host."""

import time

# Seconds until a host is tried again, as the network may be back.
RECENT_SECONDS = 600.0
_silent: dict[str, tuple[float, str]] = {}


def note_silent(host: str, said: str) -> None:
    """Note that a host did not answer. `said`: the error message."""
    _silent[host] = time.monotonic(), said


def said_of_silent(host: str) -> str | None:
    """Return the error message for a host that did not answer a moment ago; None where the host should be tried."""
    at, said = _silent.get(host, (0.0, ""))
    return said if said and time.monotonic() - at < RECENT_SECONDS else None


def forget_silent() -> None:
    """Try all hosts again."""
    _silent.clear()
