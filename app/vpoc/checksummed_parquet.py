"""Parquet files that know their own SHA-256, so that a damaged one is refused before anything is read from it."""

import hashlib
import io
import json
import re
from pathlib import Path
from typing import IO, Any

import polars as pl

from vpoc.files import open_atomic

BLANK = b"0" * 64
DIGEST = re.compile(rb'"file_sha256": "([0-9a-f]{64})"')
"""In the metadata; the digest is that of the file with zeros in its place."""
TAIL = 1 << 16
"""The metadata lie within so many bytes of the end; behind them are only the columns' names and types."""
HASHED_AT_A_TIME = 1 << 20


class DamagedError(Exception):
    """Not a file that `write_checksummed` wrote, or one that was changed since."""


def write_checksummed(
    path: Path, frame: pl.DataFrame, key: str, facts: dict[str, Any], compression: Any = "zstd", *, durable: bool = True
) -> None:
    """Write `frame` to `path` as parquet with `facts`, plain JSON values, in its metadata as JSON under `key`.

    As `open_atomic`, which says what `durable` is.
    """
    document = {"file_sha256": BLANK.decode(), **facts}
    with open_atomic(path, durable=durable) as stream:
        sink = _Sink(stream)
        try:
            frame.write_parquet(sink, compression=compression, statistics=False, metadata={key: json.dumps(document)})  # type: ignore[arg-type]
        except Exception as error:
            raise sink.failed or error from None
        match = _found(sink.tail)
        if match is None or match[1] != BLANK:
            raise ValueError("the metadata are not written as they were given")
        stream.seek(sink.size - len(sink.tail) + match.start(1))
        stream.write(sink.digest.hexdigest().encode())


class _Sink(io.RawIOBase):
    """Passes on what is written to it, and remembers its SHA-256 and its end."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.digest = hashlib.sha256()
        self.size = 0
        self.tail = b""
        self.failed: OSError | None = None
        self._stream = stream

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, content: Any) -> int:
        """Write all of `content`; an error is remembered, since polars reports it in other words."""
        self.digest.update(content)
        try:
            self._stream.write(content)
        except OSError as error:
            self.failed = error
            raise
        self.size += len(content)
        self.tail = (self.tail + bytes(content[-TAIL:]))[-TAIL:]
        return len(content)


def read_checksummed(content: bytes, key: str) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Return what `write_checksummed` was given.

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


def checksummed_facts(path: Path, key: str) -> dict[str, Any]:
    """The facts that `write_checksummed` was given for the file `path`, of which little is in memory at a time.

    Raises:
        DamagedError: as `read_checksummed`.
    """
    with path.open("rb") as stream:
        size = stream.seek(0, io.SEEK_END)
        before = max(size - TAIL, 0)
        stream.seek(before)
        tail = stream.read()
        match = _found(tail)
        if match is None:
            raise DamagedError
        digest = hashlib.sha256()
        stream.seek(0)
        left = before
        while left and (block := stream.read(min(left, HASHED_AT_A_TIME))):
            digest.update(block)
            left -= len(block)
        digest.update(tail[: match.start(1)] + BLANK + tail[match.end(1) :])
        if digest.hexdigest().encode() != match[1]:
            raise DamagedError
        stream.seek(0)
        facts: dict[str, Any] = json.loads(pl.read_parquet_metadata(stream).get(key, "{}"))
    if facts.pop("file_sha256", None) is None:
        raise DamagedError
    return facts


def _found(content: bytes) -> re.Match[bytes] | None:
    # The metadata stand at the end.
    return DIGEST.search(content, max(content.rfind(b'"file_sha256"'), 0))
