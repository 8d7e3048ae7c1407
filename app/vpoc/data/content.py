"""The content of a merged CSV, its SHA-256, and its bars where the compiled part can read them.

This can begin while polars, which none of it needs, is still imported.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from vpoc.data.columns import OPTIONAL, REQUIRED
from vpoc.data.compiled import Plain, read_plain
from vpoc.files import ahead, read_bytes, sha256

LARGE_BYTES = 1 << 28
"""A file of more is read in blocks where the caller can work with them."""


@dataclass(frozen=True)
class Content:
    """What a file holds. `plain`: its bars, where every row is plain; only without them is `content` kept."""

    sha256: str
    plain: Plain | None
    content: bytes = b""


def read_content(path: Path) -> Content:
    """What `path` holds; UserError when it cannot be read or is empty."""
    content = read_bytes(path)
    with ThreadPoolExecutor(1) as pool:
        digest = pool.submit(sha256, content)
        plain = plain_bars(path, content)
    return Content(digest.result(), plain, b"" if plain else content)


def content_ahead(path: Path) -> Future[Content] | None:
    """`read_content` of `path`, which a thread does meanwhile; None for a large file."""
    try:
        if path.stat().st_size > LARGE_BYTES:
            return None
    except OSError:
        # Reading says it in one line.
        pass
    return ahead(read_content, path)


def plain_header(content: bytes) -> list[str] | None:
    """The columns of a merged CSV that ends with a line; None when they are others, or it does not."""
    header = content[: content.find(b"\n") + 1].decode("utf-8", "replace").rstrip("\r\n").split(",")
    known = set(REQUIRED) <= set(header) <= {*REQUIRED, *OPTIONAL} and len(set(header)) == len(header)
    return header if known and content.endswith(b"\n") else None


def plain_bars(path: Path, content: bytes) -> Plain | None:
    """The bars in the `content` of `path` by the compiled part; None where a single row is not plain."""
    header = plain_header(content)
    return read_plain(path, content, header) if header else None
