"""Parquet files that know their own SHA-256, so that a damaged one is refused before anything is read from it."""

import hashlib
import io
import json
import re
from typing import Any

import polars as pl

BLANK = b"0" * 64
SEAL = re.compile(rb'"file_sha256": "([0-9a-f]{64})"')
"""In the metadata; the digest is that of the file with zeros in its place."""


class DamagedError(Exception):
    """Not a file that `seal` made, or one that was changed since."""


def seal(frame: pl.DataFrame, key: str, facts: dict[str, Any], compression: str = "zstd") -> bytes:
    """`frame` as parquet with `facts`, plain JSON values, in its metadata as JSON under `key`."""
    buffer = io.BytesIO()
    document = {"file_sha256": BLANK.decode(), **facts}
    frame.write_parquet(buffer, compression=compression, statistics=False, metadata={key: json.dumps(document)})  # type: ignore[arg-type]
    content = buffer.getvalue()
    match = _found(content)
    if match is None or match[1] != BLANK:
        raise ValueError("the metadata are not written as they were given")
    return content[: match.start(1)] + hashlib.sha256(content).hexdigest().encode() + content[match.end(1) :]


def unseal(content: bytes, key: str) -> tuple[pl.DataFrame, dict[str, Any]]:
    """What `seal` was given.

    Raises:
        DamagedError: when a single byte is another, or it is another file.
    """
    match = _found(content)
    if match is None:
        raise DamagedError
    digest = hashlib.sha256(content[: match.start(1)])
    digest.update(BLANK)
    digest.update(memoryview(content)[match.end(1) :])
    if digest.hexdigest().encode() != match[1]:
        raise DamagedError
    facts = json.loads(pl.read_parquet_metadata(io.BytesIO(content)).get(key, "{}"))
    if facts.pop("file_sha256", None) is None:
        raise DamagedError
    return pl.read_parquet(io.BytesIO(content)), facts


def _found(content: bytes) -> re.Match[bytes] | None:
    # The metadata stand at the end.
    return SEAL.search(content, max(content.rfind(b'"file_sha256"'), 0))
