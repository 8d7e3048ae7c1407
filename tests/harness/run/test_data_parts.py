"""Tests of how a merged CSV is cut into chunks: its sessions or, if it has none, groups of rows."""

import tracemalloc
import zoneinfo
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.run import data_parts
from harness.run.data_parts import read_chunks

HEADER = "ts,open,high,low,close,volume,vix\n"
# Stamps by trade date, which begins at 23:00 UTC in winter and at 22:00 UTC in summer.
STAMPS = {
    "2024-01-02": ["2024-01-01T23:00:00Z", "2024-01-02T21:59:00Z"],
    "2024-01-03": ["2024-01-02T23:00:00Z"],
    "2024-07-03": ["2024-07-02T22:00:00Z", "2024-07-03T15:00:00Z"],
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rows = [f"{stamp},1,1,1,1,1,\n" for stamps in STAMPS.values() for stamp in stamps]
    (tmp_path / "bars.csv").write_text(HEADER + "".join(rows), encoding="utf-8")
    return tmp_path / "bars.csv"


def test_a_chunk_is_a_session_of_the_exchange(file: Path, tmp_path: Path) -> None:
    chunks = read_chunks(file)
    assert (chunks.names, chunks.are_sessions) == (tuple(STAMPS), True)
    for number, stamps in enumerate(STAMPS.values()):
        chunks.write(number, number + 1, tmp_path / "part.csv")
        lines = (tmp_path / "part.csv").read_text().splitlines()
        assert [HEADER.strip(), *stamps] == [lines[0], *(line[:20] for line in lines[1:])]
    chunks.write(0, len(chunks), tmp_path / "part.csv")
    assert (tmp_path / "part.csv").read_bytes() == file.read_bytes()


@pytest.fixture
def no_zones_on_this_host() -> Iterator[None]:
    zoneinfo.ZoneInfo.clear_cache()
    zoneinfo.reset_tzpath(to=())
    yield
    zoneinfo.reset_tzpath()
    zoneinfo.ZoneInfo.clear_cache()


@pytest.mark.usefixtures("no_zones_on_this_host")
def test_sessions_are_known_on_a_host_without_time_zones(file: Path) -> None:
    assert read_chunks(file).are_sessions


def test_an_empty_line_is_no_row(file: Path) -> None:
    whole = read_chunks(file)
    with file.open("a", encoding="utf-8") as stream:
        stream.write("\n")
    chunks = read_chunks(file)
    assert (chunks.names, chunks.are_sessions) == (whole.names, True)
    assert chunks.starts[:-1] == whole.starts[:-1]
    assert chunks.starts[-1] == file.stat().st_size


def test_where_stamps_tell_no_sessions_a_chunk_is_some_rows(tmp_path: Path) -> None:
    file = tmp_path / "bars.csv"
    file.write_text(HEADER + "".join(f"{row},1\n" for row in range(2500)), encoding="utf-8")
    chunks = read_chunks(file)
    assert (len(chunks), chunks.are_sessions, chunks.names[1]) == (834, False, "row 4")
    chunks.write(833, 834, tmp_path / "part.csv")
    assert (tmp_path / "part.csv").read_text() == HEADER + "2499,1\n"


@pytest.mark.parametrize(("content", "told"), [(b"", "its first line"), (b"a,b\n1,2\n", "row 2")])
def test_a_line_of_any_length_is_not_read_into_memory(content: bytes, told: str, tmp_path: Path) -> None:
    file = tmp_path / "long.csv"
    with file.open("wb") as long:
        long.write(content)
        long.truncate(1 << 28)
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=f"{told} has 65,536 bytes or more"):
            read_chunks(file)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1 << 20


def test_of_rows_of_any_number_no_more_is_kept_than_where_chunks_begin(tmp_path: Path) -> None:
    (tmp_path / "short.csv").write_bytes(b"ts\n" + b"1\n" * 100_000)
    tracemalloc.start()
    try:
        chunks = read_chunks(tmp_path / "short.csv")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (chunks.are_sessions, len(chunks)) == (False, 1000)
    assert most < 1 << 20


def test_of_more_sessions_than_any_data_has_a_chunk_is_some_rows(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_parts, "MOST_SESSIONS", len(STAMPS) - 1)
    assert read_chunks(file).names == ("row 1", "row 2", "row 3", "row 4", "row 5")


@pytest.mark.parametrize("stamp", ["9999-12-31T23:00:00Z", "0001-01-01T00:00:00Z", "2024-01-01 00:00:00Z"])
def test_stamps_without_a_trade_date_tell_no_sessions(stamp: str, tmp_path: Path) -> None:
    (tmp_path / "bars.csv").write_text(f"{HEADER}{stamp},1\n", encoding="utf-8")
    assert read_chunks(tmp_path / "bars.csv").names == ("row 1",)


def test_what_cannot_be_cut_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text(HEADER, encoding="utf-8")
    for name, said in (("empty.csv", "no rows"), ("none.csv", "cannot be read")):
        with pytest.raises(UserError, match=said):
            read_chunks(tmp_path / name)
