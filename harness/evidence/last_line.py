"""The end of a log."""

import os
from pathlib import Path

LAST_BYTES = 1 << 16


def last_line(log: Path) -> str:
    """Return the last line of a log that says something, from its last LAST_BYTES; or words for why there is none."""
    try:
        with log.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(size - LAST_BYTES, 0))
            lines = stream.read(LAST_BYTES).decode("utf-8", "replace").split("\n")
    except OSError:
        return "there is no log"
    nothing = "the log is empty" if size <= LAST_BYTES else "the log ends in blank lines"
    return next((line.strip() for line in reversed(lines) if line.strip()), nothing)
