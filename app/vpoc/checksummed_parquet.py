"""Parquet files that contain their own SHA-256, so that a damaged file is refused before anything is read from it."""

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
"""Finds the digest in the metadata. It is the digest of the file with zeros in its own place."""
TAIL = 1 << 16
"""The metadata begin within this many bytes of the end; only column names and types follow them."""
HASHED_AT_A_TIME = 1 << 20
LARGE, MOST_VALUES_A_BYTE = 16_000_000, 16
"""Most values for each byte of a file with so many values; features have less than one.

A column of one value takes next to no space in a file of any number of rows, and as much memory as any other.
"""


class DamagedError(Exception):
    """The file was not written by `write_checksummed`, or was changed since."""


def write_checksummed(
    path: Path, frame: pl.DataFrame, key: str, facts: dict[str, Any], compression: Any = "zstd", *, durable: bool = True
) -> None:
    """Write `frame` to `path` as parquet; the metadata get `facts`, plain JSON values, as JSON under `key`.

    For `durable`, see `open_atomic`.
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
    """A stream that passes on everything written to it, and keeps its SHA-256 and its last bytes."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.digest = hashlib.sha256()
        self.size = 0
        self.tail = b""
        self.failed: OSError | None = None
        self._stream = stream

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, content: Any) -> int:
        """Write all of `content`; keep an error, because polars reports it in other words."""
        self.digest.update(content)
        try:
            self._stream.write(content)
        except OSError as error:
            self.failed = error
            raise
        self.size += len(content)
        self.tail = (self.tail + bytes(content[-TAIL:]))[-TAIL:]
        return len(content)


def read_checksummed(content: bytes, key: str, *, arrays: bool = False) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Return the frame and the facts that `write_checksummed` was given. `arrays`: columns may hold arrays.

    Raises:
        DamagedError: when a single byte differs, the file is of another kind, it has far more values than bytes, or
            values of any size, such as lists and texts.
    """
    match = _found(content)
    if match is None:
        raise DamagedError
    digest = hashlib.sha256(content[: match.start(1)])
    digest.update(BLANK)
    digest.update(memoryview(content)[match.end(1) :])
    if digest.hexdigest().encode() != match[1]:
        raise DamagedError
    facts = _facts(io.BytesIO(content), key)
    kinds = pl.read_parquet_schema(io.BytesIO(content)).values()
    if not arrays and not all(map(is_of_one_size, kinds)):
        raise DamagedError
    rows = pl.scan_parquet(io.BytesIO(content)).select(pl.len()).collect().item()
    if rows * len(kinds) > max(LARGE, MOST_VALUES_A_BYTE * len(content)):
        raise DamagedError
    return pl.read_parquet(io.BytesIO(content)), facts


def is_of_one_size(kind: pl.DataType) -> bool:
    """Return whether every value of a kind takes as much memory as any other: no list or text."""
    return kind.is_numeric() or kind.is_temporal() or kind == pl.Boolean


def names_digest(path: Path) -> bool:
    """Return whether `write_checksummed` wrote the file `path`, which may have been damaged since."""
    with path.open("rb") as stream:
        stream.seek(max(stream.seek(0, io.SEEK_END) - TAIL, 0))
        return _found(stream.read()) is not None


def checksummed_facts(path: Path, key: str) -> dict[str, Any]:
    """Return the facts that `write_checksummed` was given for the file `path`, read with little memory.

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
        return _facts(stream, key)


def _facts(stream: IO[bytes], key: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(pl.read_parquet_metadata(stream).get(key, "{}"))
    if facts.pop("file_sha256", None) is None:
        raise DamagedError
    return facts


def _found(content: bytes) -> re.Match[bytes] | None:
    # Search from the last such key, because the metadata are at the end.
    return DIGEST.search(content, max(content.rfind(b'"file_sha256"'), 0))
