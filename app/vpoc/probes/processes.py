"""Ends every process of a session (setsid), and verifies that they have ended."""

import contextlib
import os
import signal
import time
from pathlib import Path

POLL_S = 0.02


def members(session: int) -> dict[int, str]:
    """Return the running processes of `session`, by pid, with their state (R, S, D, T, ...); zombies count as ended."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        # The second field, the program's name, may contain blanks and brackets.
        state, _, _, session_id = stat.rpartition(")")[2].split()[:4]
        if int(session_id) == session and state not in ("Z", "X"):
            found[int(entry.name)] = state
    return found


def end_session(session: int, term_s: float, kill_s: float) -> dict[int, str]:
    """End all processes of `session`: TERM, up to `term_s` seconds, KILL, up to `kill_s` seconds.

    Returns those that still exist, with their state; empty when all are gone.
    """
    left = members(session)
    for signum, seconds in ((signal.SIGTERM, term_s), (signal.SIGKILL, kill_s)):
        until = time.monotonic() + seconds
        told: set[int] = set()
        while left and time.monotonic() < until:
            # Listed again each time, because a process that is being ended may start another.
            for pid in left.keys() - told:
                send(pid, signum)
            told |= left.keys()
            time.sleep(POLL_S)
            left = members(session)
    return left


def send(pid: int, signum: int) -> None:
    """Send a signal to a process that may just have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)
