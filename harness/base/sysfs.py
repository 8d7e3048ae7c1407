"""Reading the one-value files of /sys and /proc."""

from pathlib import Path

# The machine itself. Every other root is a simulated host.
REAL_ROOT = Path("/")


def is_simulated(root: Path) -> bool:
    """Return whether a root stands for /sys, /proc and /dev, in place of the machine's own."""
    return root.resolve() != REAL_ROOT


# In characters, more than /proc/cpuinfo has of a thousand cores.
LARGEST = 4 << 20


def read_text(file: Path) -> str | None:
    """Return the content of a file, the first 4 MB, without white space around it; None where it cannot be read."""
    try:
        with file.open(encoding="utf-8", errors="replace") as stream:
            return stream.read(LARGEST).strip()
    except OSError:
        return None


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
