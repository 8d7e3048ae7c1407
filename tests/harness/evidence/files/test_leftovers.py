"""Tests of what the record says about files that a run left in its work folder."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.base.paths import CHECKOUT
from harness.evidence.files.leftovers import in_short, leftovers, remove_excess
from harness.evidence.files.work_folder import LARGEST, WorkFolder
from tests.harness.base.hostile import TRICKS

UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
READ = ("result.json", "progress-0.jsonl", "progress-17.jsonl", "position-0.bin", "stacks-1.txt")


def told(work: Path) -> list[tuple[str, bool]]:
    return [(str(one), one.is_read) for one in leftovers(WorkFolder(work))]


def test_of_an_honest_run_nothing_is_reported(tmp_path: Path) -> None:
    for name in READ:
        (tmp_path / name).write_bytes(b"{}")
    for name in ("output/bars_checkpoints", "scratch/tmp", "broken"):
        (tmp_path / name).mkdir(parents=True)
    # Programs put links and sockets into HOME and TMPDIR.
    (tmp_path / "scratch" / "link").symlink_to("tmp")
    (tmp_path / "output" / "model.pt").write_bytes(b"weights")
    assert told(tmp_path) == []


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize(("trick", "why"), TRICKS.values(), ids=TRICKS)
def test_what_is_read_has_to_be_a_file(trick: Callable[[Path], object], why: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    trick(tmp_path / "work" / name)
    ((line, expected),) = told(tmp_path / "work")
    assert line.startswith(f"{name} in the work folder {why.partition(',')[0]}")
    assert expected


@pytest.mark.parametrize("name", ["output", "scratch"])
def test_a_folder_has_to_be_one(name: str, tmp_path: Path) -> None:
    (tmp_path / name).symlink_to("/etc")
    assert (f"{name} in the work folder is a link, not a folder", True) in told(tmp_path)


def test_what_nobody_reads_is_a_line_only(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a\nFIFO\x1b[2J")
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / "other").symlink_to("/etc/passwd")
    assert told(tmp_path) == [
        (r"'a\nFIFO\x1b[2J' in the work folder is a FIFO", False),
        ("output/other in the work folder is a link", False),
    ]


def test_a_folder_that_is_gone_or_replaced_is_reported(tmp_path: Path) -> None:
    assert told(tmp_path / "none") == [("the work folder is gone", True)]
    (tmp_path / "link").symlink_to(tmp_path)
    assert told(tmp_path / "link") == [("the work folder is a link, not a folder", True)]


def test_of_many_their_number_is_reported(tmp_path: Path) -> None:
    for number in range(9):
        os.mkfifo(tmp_path / f"f{number}")
    assert in_short(leftovers(WorkFolder(tmp_path))).endswith("f4 in the work folder is a FIFO; and 4 more")
    assert in_short(()) == ""


def test_the_sizes_are_those_of_the_docs() -> None:
    text = (CHECKOUT / "docs" / "running.md").read_text(encoding="utf-8")
    rows = re.findall(r"`([a-z ]+)` (\d+) ([KMG]iB)", " ".join(text.split()))
    assert {name: int(number) * UNITS[unit] for name, number, unit in rows} == dict(LARGEST)


@pytest.mark.slow
def test_of_too_much_goes_what_no_other_run_needs(tmp_path: Path) -> None:
    for name in READ:
        (tmp_path / name).write_bytes(b"{}")
    os.truncate(tmp_path / "progress-17.jsonl", LARGEST["progress"] + 1)
    (tmp_path / "stacks-9.txt").symlink_to("/etc")
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / "model.pt").write_bytes(b"weights")
    for number in range(3_000):
        (tmp_path / f"x{number}").touch()
    said = remove_excess(WorkFolder(tmp_path))
    assert said.startswith("removed from the work folder: ")
    assert " and 2997 more; " in said
    # A folder may keep the size that it had with many files.
    assert re.search(r"; [\d.]+ kB are left in it$", said)
    assert sorted(place.name for place in tmp_path.iterdir()) == sorted({*READ, "output"} - {"progress-17.jsonl"})
    assert (tmp_path / "output" / "model.pt").exists()
    assert re.fullmatch(r"[\d.]+ kB are left in it", remove_excess(WorkFolder(tmp_path)))


def test_where_there_is_no_work_folder_nothing_goes(tmp_path: Path) -> None:
    (tmp_path / "work").symlink_to("/etc")
    assert remove_excess(WorkFolder(tmp_path / "work")) == "0 kB are left in it"


def test_the_checkpoints_of_a_program_of_the_users_own_stay(tmp_path: Path) -> None:
    for name in ("program", "scratch", "output"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    assert remove_excess(WorkFolder(tmp_path), WorkFolder.PROGRAM).startswith("removed from the work folder: output,")
    assert [entry.name for entry in tmp_path.iterdir()] == ["program"]
