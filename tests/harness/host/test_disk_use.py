"""Tests of how the disk space of a run is measured: soon, however much there is, and without following links."""

import gc
import os
import queue
import threading
import time
from pathlib import Path

import pytest

from harness.host import disk_use
from harness.host.disk_use import MOST_BYTES, MOST_LEVELS, DiskLimit, DiskWatch, excess, measure

MIB = 1 << 20


@pytest.fixture
def work(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    return made


def fill(file: Path, mebibytes: float) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(os.urandom(int(mebibytes * MIB)))


def test_what_files_take_at_every_level_and_in_every_place_is_added_up(work: Path, tmp_path: Path) -> None:
    fill(work / "a", 1)
    fill(work / "deep/er/b", 2)
    fill(tmp_path / "temporary/c", 4)
    use = measure((work, tmp_path / "temporary", tmp_path / "gone"), DiskLimit())
    assert use.entries == 5
    assert 7 * MIB <= use.bytes < 7.2 * MIB
    assert excess((work,), DiskLimit(bytes=4 * MIB)) == ""
    assert excess((work,), DiskLimit(bytes=int(2.5 * MIB))) == "its files take more than 2.6 MB of disk"


def test_holes_take_nothing_and_links_lead_nowhere(work: Path, tmp_path: Path) -> None:
    fill(tmp_path / "outside/large", 4)
    (work / "link").symlink_to(tmp_path / "outside")
    (work / "file").symlink_to(tmp_path / "outside/large")
    (work / "loop").symlink_to(work)
    os.mkfifo(work / "fifo")
    with (work / "sparse").open("wb") as stream:
        stream.truncate(1 << 40)
    assert excess((work,), DiskLimit(bytes=MIB)) == ""


def test_a_place_that_became_a_link_is_not_followed(tmp_path: Path) -> None:
    fill(tmp_path / "outside/large", 4)
    (tmp_path / "work").symlink_to(tmp_path / "outside")
    assert measure((tmp_path / "work",), DiskLimit()).entries == 0


def test_many_empty_files_are_too_many(work: Path) -> None:
    for number in range(30):
        (work / f"{number}\n\x1b[31m").touch()
    assert excess((work,), DiskLimit(entries=30)) == ""
    assert excess((work,), DiskLimit(entries=29)) == "it made more than 29 files and folders"


def test_folders_without_end_in_one_another_are_too_deep_and_keep_no_descriptors(work: Path) -> None:
    # Otherwise a descriptor that another test left open might be closed between the two counts.
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    # Only slightly deeper than the limit, because pytest could not remove folders that are much deeper.
    (work / "/".join("d" * (MOST_LEVELS - 1))).mkdir(parents=True)
    assert excess((work,), DiskLimit()) == ""
    (work / "/".join("d" * (MOST_LEVELS + 20))).mkdir(parents=True)
    assert excess((work,), DiskLimit()) == f"its folders are more than {MOST_LEVELS} levels deep"
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_a_folder_that_may_not_be_read_is_left_out(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work / "closed").mkdir()
    fill(work / "open/file", 1)
    opened = os.open

    def refuse(path: object, *words: object, **options: object) -> int:
        if path == "closed":
            raise PermissionError
        return opened(path, *words, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("harness.host.disk_use.os.open", refuse)
    assert measure((work,), DiskLimit()).bytes >= MIB


@pytest.mark.parametrize(
    ("free", "bytes_", "reserve"),
    [(10**15, MOST_BYTES, 1 << 30), (10 * 10**9, 8 * 10**9, 10**9), (0, 0, 0), (None, MOST_BYTES, 0)],
)
def test_the_limit_follows_what_is_free_at_the_start(
    free: int | None, bytes_: int, reserve: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(disk_use, "_free", lambda _: free)
    assert DiskLimit.of(tmp_path) == DiskLimit(bytes_, disk_use.MOST_ENTRIES, reserve)


def test_what_an_earlier_attempt_left_does_not_count(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work / "kept").write_bytes(b"k" * 1_000_000)
    monkeypatch.setattr(disk_use, "_free", lambda _: 1_000_000)
    watch = DiskWatch((work,))
    assert watch.limit.bytes >= 1_800_000
    assert watch.last_excess() == ""
    (work / "more").write_bytes(b"m" * 900_000)
    assert watch.last_excess().startswith("its files take more than 1.8 MB")


def test_a_disk_that_gets_full_is_said_whosoever_filled_it(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_use, "_free", lambda _: 50_000_000)
    assert excess((work,), DiskLimit(reserve=10**8)).startswith("only 50 MB are left on the disk of its folder")
    assert excess((work,), DiskLimit(reserve=10**7)) == ""


def test_looking_waits_for_nothing_and_is_not_repeated_at_once(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready, looks = threading.Event(), queue.SimpleQueue[str]()

    def slow(*_: object) -> tuple[str, float]:
        assert ready.wait(60)
        looks.put("looked")
        return "too much", 0.2

    monkeypatch.setattr(disk_use, "_timed_excess", slow)
    watch = DiskWatch((work,), DiskLimit(bytes=9))
    assert watch.excess(0) == ""  # If this waited for the look, it would never return.
    ready.set()
    until = time.monotonic() + 60
    while not (found := watch.excess(1)) and time.monotonic() < until:
        time.sleep(0.001)
    assert found == "too much"
    assert watch.excess(1 + 3.9) == ""
    assert looks.qsize() == 1
    # The look took 0.2 s, so the next one begins after twenty times as long.
    ready.clear()
    assert watch.excess(1 + 6) == ""
    ready.set()
    assert looks.get(timeout=60) == "looked"
    assert looks.get(timeout=60) == "looked"
