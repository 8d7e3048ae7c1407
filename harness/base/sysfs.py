"""Reading the one-value files of /sys and /proc."""

from pathlib import Path


def read_text(file: Path) -> str | None:
    """Return the content of a file, without white space around it; None where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
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
