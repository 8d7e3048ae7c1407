"""Reads the one-value files of /sys and /proc."""

import re
import stat
from functools import partial
from pathlib import Path

from harness.base.time_limits import BackgroundCall

# The root of the machine itself; every other root is a simulated host.
REAL_ROOT = Path("/")


def is_simulated(root: Path) -> bool:
    """Return whether a root stands for /sys, /proc and /dev of a simulated host."""
    return root.resolve() != REAL_ROOT


# Most bytes that are read: more than /proc/cpuinfo has for a thousand cores, and more than a C library has.
LARGEST = 4 << 20


class _Wait:
    """How long to wait for a file that may be endless, in seconds: longer than for a silent driver.

    In tests a FIFO takes the place of such a file.
    """

    seconds = 30.0
    # For each such file after the first one.
    AFTERWARDS = 0.1


def read_bytes(file: Path) -> bytes | None:
    """Return the first 4 MB of a file; None where it cannot be read.

    On a simulated host the file may be a FIFO or a device. If it does not end within half a minute, None is returned;
    the wait is shorter for all later files.
    """
    try:
        read = partial(_read, file)
        return read() if stat.S_ISREG(file.stat().st_mode) else BackgroundCall(read).result(_Wait.seconds)
    except TimeoutError:
        _Wait.seconds = _Wait.AFTERWARDS
        return None
    except OSError:
        return None


def _read(file: Path) -> bytes:
    with file.open("rb") as stream:
        return stream.read(LARGEST)


def read_text(file: Path) -> str | None:
    """Return the content from `read_bytes` as text, without white space around it."""
    content = read_bytes(file)
    return None if content is None else content.decode("utf-8", "replace").strip()


def read_number(file: Path, base: int = 10) -> int | None:
    """Return the number in a file; None where it cannot be read or is not a number."""
    try:
        return int(read_text(file) or "", base)
    except ValueError:
        return None


def read_properties(file: Path) -> dict[str, int]:
    """Return the numbers in a file with a name and a number on each line, as in the topology of KFD, by name."""
    lines = re.findall(r"^(\w+) (\d{1,20})$", read_text(file) or "", re.MULTILINE)
    return {name: int(number) for name, number in lines}


def entries(folder: Path) -> list[Path]:
    """Return the entries of a folder, sorted by name; an empty list where it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
