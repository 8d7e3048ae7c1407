"""Reading the one-value files of /sys and /proc."""

import stat
from functools import partial
from pathlib import Path

from harness.base.time_limits import Look

# The machine itself. Every other root is a simulated host.
REAL_ROOT = Path("/")


def is_simulated(root: Path) -> bool:
    """Return whether a root stands for /sys, /proc and /dev, in place of the machine's own."""
    return root.resolve() != REAL_ROOT


# More than /proc/cpuinfo has of a thousand cores, or a C library.
LARGEST = 4 << 20


class _Wait:
    """How long a file is waited for that may have no end: longer than anybody waits for a driver that is silent.

    Tests have a FIFO stand for one.
    """

    seconds = 30.0
    # For each after the first one that had none.
    AFTERWARDS = 0.1


def read_bytes(file: Path) -> bytes | None:
    """Return the content of a file, the first 4 MB; None where it cannot be read.

    On a simulated host it may be a FIFO or a device: of that, too, where it does not end. The first such one is waited
    for half a minute.
    """
    try:
        read = partial(_read, file)
        return read() if stat.S_ISREG(file.stat().st_mode) else Look(read).result(_Wait.seconds)
    except TimeoutError:
        _Wait.seconds = _Wait.AFTERWARDS
        return None
    except OSError:
        return None


def _read(file: Path) -> bytes:
    with file.open("rb") as stream:
        return stream.read(LARGEST)


def read_text(file: Path) -> str | None:
    """Return what `read_bytes` does as text, without white space around it."""
    content = read_bytes(file)
    return None if content is None else content.decode("utf-8", "replace").strip()


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
