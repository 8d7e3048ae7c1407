"""Numbers with their nouns."""


def many(count: int, singular: str, plural: str | None = None) -> str:
    """Return a number with its noun."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"
