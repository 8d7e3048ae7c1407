"""Words for numbers and names in sentences."""

from collections.abc import Iterable

UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def many(count: int, singular: str, plural: str | None = None) -> str:
    """Return a number with its noun: `1 run`, `3 runs`."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def listed(names: Iterable[object]) -> str:
    """Return names as a list in a sentence: `a, b and c`; an empty text for none."""
    words = list(map(str, names))
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def some_of(names: Iterable[object], most: int) -> str:
    """Return at most `most` names as a list, and the number of the others: `a, b and 3 more`."""
    words = list(map(str, names))
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return f"{', '.join(words[:most])}{more}"


def download_in_words(gb: float) -> str:
    """Return the size of a download, `2.2 GB`; if nothing has to be downloaded, also why."""
    return f"{gb:.1f} GB" if gb else "nothing (all of it is on this machine)"


def percent(share: float) -> str:
    """Return a share as a percentage: `33 %`."""
    return f"{share * 100:.0f} %"


def size_in_words(size: float) -> str:
    """Return a size in bytes in a suitable unit: `2.6 GB`, `147 kB`."""
    unit, each = next((one for one in UNITS if size >= one[1]), UNITS[-1])
    return f"{size / each:.1f}".removesuffix(".0") + f" {unit}"
