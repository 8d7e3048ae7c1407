"""Makes URLs safe to show."""

from urllib.parse import urlsplit, urlunsplit


def without_credentials(url: str) -> str:
    """Return a URL without the name and password in it."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
