"""Reads the end of a log."""

import os
import re
from pathlib import Path

from harness.base.files.storage import open_regular
from harness.base.text import one_line, safe_text
from harness.environments.executors.bounded_log import MAY_LACK_SOME

LAST_BYTES = 1 << 16
# The app's own errors begin with this.
APP_ERROR = "vpoc: "
# Lines that torch adds below the message of each HIP error, whatever the error is.
ADVICE = (
    "HIP kernel errors might be asynchronously reported",
    "CUDA kernel errors might be asynchronously reported",
    "For debugging consider passing ",
    "Compile with `TORCH_USE_",
    "Device-side assertion tracking was not enabled",
    "Search for `hipError",
    "Search for `cudaError",
)
# torchrun puts this before a line of a rank.
RANK = re.compile(r"^\[rank\d+\]:\s*")
# The longest of its errors have some 500 characters.
LONGEST = 1000


def last_line(log: Path, prefix: str = "", *, quoted: bool = True) -> str:
    """Return what a program says last, in the last LAST_BYTES of its log; or why there is nothing.

    Where lines begin with the prefix, the last of these, without it: what a container writes to its two outputs comes
    in any order.
    """
    try:
        with open_regular(log) as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(size - LAST_BYTES, 0))
            lines = stream.read(LAST_BYTES).decode("utf-8", "replace").split("\n")
    except OSError:
        return "there is no log"
    nothing = "the log is empty" if size <= LAST_BYTES else "the log ends in blank lines"
    stripped = [line.strip() for line in reversed(lines)]
    said = [line for line in stripped if line not in ("", MAY_LACK_SOME)]
    said = [line for line in said if not RANK.sub("", line).startswith(ADVICE)] or said
    line = next((line for line in said if line.startswith(prefix)), said[0] if said else None)
    if line is None:
        return nothing
    words = line.removeprefix(prefix)
    return safe_text(words, LONGEST) if quoted else one_line(words)[:LONGEST]
