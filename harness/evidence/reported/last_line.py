"""Reads the end of a log."""

import os
from pathlib import Path

from harness.base.files.storage import open_regular
from harness.environments.executors.bounded_log import MAY_LACK_SOME

LAST_BYTES = 1 << 16
# The app's own errors begin with this.
APP_ERROR = "vpoc: "


def last_line(log: Path, prefix: str = "") -> str:
    """Return the last line that is not blank, from the last LAST_BYTES of a log; or why there is none.

    If lines begin with the prefix, the last one of these: the two outputs of a container are mixed in any order.
    """
    try:
        with open_regular(log) as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(size - LAST_BYTES, 0))
            lines = stream.read(LAST_BYTES).decode("utf-8", "replace").split("\n")
    except OSError:
        return "there is no log"
    nothing = "the log is empty" if size <= LAST_BYTES else "the log ends in blank lines"
    said = [line.strip() for line in reversed(lines) if line.strip() not in ("", MAY_LACK_SOME)]
    return next((line for line in said if line.startswith(prefix)), said[0] if said else nothing)
