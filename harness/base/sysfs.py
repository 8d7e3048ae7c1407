"""Reading the one-value files of /sys and /proc."""

import os
from pathlib import Path

# In characters, more than /proc/cpuinfo has of a thousand cores.
LARGEST = 4 << 20


def read_text(file: Path) -> str | None:
    """Return the content of a file, the first 4 MB, without white space around it; None where it cannot be read."""
    try:
        with open(file, encoding="utf-8", errors="replace", opener=_opened) as stream:
            return stream.read(LARGEST).strip()
    except OSError:
        return None


def _opened(file: str, flags: int) -> int:
    # On a simulated host of somebody else it may be a FIFO.
    return os.open(file, flags | os.O_NONBLOCK)


def read_number(file: Path, base: int = 10) -> int | None:
    """The number a file holds; None where it cannot be read or is none."""
    try:
        return int(read_text(file) or "", base)
    except ValueError:
        return None


def entries(folder: Path) -> list[Path]:
    """Return the entries of a folder, by name; none where it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
