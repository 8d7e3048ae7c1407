"""Tests of Parquet files that contain their own SHA-256 and are written either as a whole or not at all."""

import hashlib
import resource
from contextlib import contextmanager

import numpy as np
import polars as pl
import pytest

from vpoc import checksummed_parquet
from vpoc.checksummed_parquet import BLANK, DamagedError, read_checksummed, write_checksummed
from vpoc.errors import UserError

FACTS = {"symbols": ["ESH4"], "many": "x" * 5000, "none": None}


@pytest.fixture
def frame():
    rng = np.random.default_rng(3)
    return pl.DataFrame({f"column {place}": rng.random(50_000) for place in range(60)})


@contextmanager
def no_file_larger_than(size):
    """Make every write beyond `size` bytes of a file fail, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("compression", ["lz4", "uncompressed"])
def test_what_is_written_is_read(tmp_path, frame, compression, durable):
    path = tmp_path / "new" / "a.parquet"
    write_checksummed(path, frame, "key", FACTS, compression, durable=durable)
    content = path.read_bytes()
    found, facts = read_checksummed(content, "key")
    assert found.equals(frame)
    assert facts == FACTS
    digest = pl.read_parquet_metadata(path)["key"].split('"')[3].encode()
    assert content.count(digest) == 1
    assert hashlib.sha256(content.replace(digest, BLANK)).hexdigest().encode() == digest
    assert [file.name for file in path.parent.iterdir()] == ["a.parquet"]


@pytest.mark.parametrize("size", [0, 100_000, 5_000_000])
def test_a_full_disk_is_one_line_and_leaves_what_was_there(tmp_path, frame, size):
    path = tmp_path / "a.parquet"
    write_checksummed(path, frame.head(10), "key", FACTS)
    before = path.read_bytes()
    with no_file_larger_than(size), pytest.raises(UserError) as caught:
        write_checksummed(path, frame, "key", FACTS, "uncompressed")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_another_file_is_refused(frame):
    for content in (b"", b"PAR1", b'"file_sha256": "' + BLANK + b'"'):
        with pytest.raises(DamagedError):
            read_checksummed(content, "key")


def test_a_file_that_was_cut_or_has_another_byte_is_refused_whichever_it_is(tmp_path, frame):
    """Damage must be found before the file is parsed, because a Parquet reader may do anything with a damaged file."""
    write_checksummed(tmp_path / "a.parquet", frame[:10, :3], "key", {"symbols": ["ESH4"]})
    content = (tmp_path / "a.parquet").read_bytes()
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= (0xFF, 1, 0x80, 0x20)[place % 4]
        for other in (bytes(damaged), content[:place]):
            with pytest.raises(DamagedError):
                read_checksummed(other, "key")


def test_a_small_file_that_would_fill_the_memory_is_damaged(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    frame = pl.DataFrame({"column": pl.repeat(1.0, 2_000_000, eager=True)})
    write_checksummed(path, frame, "key", FACTS)
    assert read_checksummed(path.read_bytes(), "key")[0].equals(frame)
    monkeypatch.setattr(checksummed_parquet, "LARGE", 1_000_000)
    with pytest.raises(DamagedError):
        read_checksummed(path.read_bytes(), "key")


@pytest.mark.parametrize("value", [[0.0], {"a": [0.0]}, "text", b"bytes"], ids=["list", "struct", "text", "bytes"])
def test_values_of_any_size_are_damage(value, tmp_path):
    """One row of a list of a thousand million zeros takes some kilobytes of the file."""
    path = tmp_path / "a.parquet"
    write_checksummed(path, pl.DataFrame({"a": [1.0], "b": [value]}), "key", FACTS)
    assert read_checksummed(path.read_bytes(), "key", arrays=True)
    with pytest.raises(DamagedError):
        read_checksummed(path.read_bytes(), "key")
