import json
from pathlib import Path

import pytest

from harness.base.files.untrusted_tree import ANY_SIZE, UntrustedTree
from harness.evidence.app_reports.progress import (
    LEAST_LINES_AT_ONCE,
    MOST_LINES_AT_ONCE,
    PIECE_BYTES,
    ProgressReader,
    whole_lines,
)
from harness.evidence.files.work_folder import WorkFolder

MEMORY = {"rss_bytes": 1, "device_allocated_bytes": None, "device_reserved_bytes": None}


def text(done: int, rank: int = 0) -> str:
    values = {"schema": 2, "wall": 0, "monotonic": 0, "rank": rank, "pid": 1, "phase": "step", "done": done, "total": 9}
    return json.dumps({**values, "max_step_s": 0.1, "loss": 0.5, "gradient_norm": None, "memory": MEMORY}) + "\n"


def test_every_line_is_yielded_once_and_a_torn_one_when_it_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "progress-0.jsonl"
    reader = ProgressReader(WorkFolder(tmp_path))
    assert list(reader.new()) == []
    whole, half = text(1) + text(2), text(3)
    file.write_text(whole + half[:20])
    assert [line.done for line in reader.new()] == [1, 2]
    assert list(reader.new()) == []
    file.write_text(whole + half)
    assert [line.done for line in reader.new()] == [3]


def test_the_files_of_all_ranks_are_read(tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / f"progress-{rank}.jsonl").write_text(text(5, rank))
    assert [line.rank for line in ProgressReader(WorkFolder(tmp_path)).new()] == [0, 1]


def test_garbage_between_lines_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "progress-0.jsonl").write_bytes(text(1).encode() + b"\x00\xff not json\n{}\n" + text(2).encode())
    assert [line.done for line in ProgressReader(WorkFolder(tmp_path)).new()] == [1, 2]


@pytest.mark.parametrize("time", ["wall", "monotonic"])
@pytest.mark.parametrize("wrong", ["-1e999", "NaN", '"inf"'])
def test_a_line_whose_time_is_no_number_is_passed_over(time: str, wrong: str, tmp_path: Path) -> None:
    (tmp_path / "progress-0.jsonl").write_text(text(1).replace(f'"{time}": 0', f'"{time}": {wrong}') + text(2))
    assert [line.done for line in ProgressReader(WorkFolder(tmp_path)).new()] == [2]


def test_one_look_reads_so_many_lines_over_all_ranks_and_the_next_ones_the_rest(tmp_path: Path) -> None:
    for rank in range(256):
        (tmp_path / f"progress-{rank}.jsonl").write_text("\n" * 300_000 if rank else "\n" * 100 + text(1))
    parsed: list[int] = []
    reader = ProgressReader(WorkFolder(tmp_path))
    for _ in range(8):
        parsed += [line.done for line in reader.new()]
        assert reader.behind
    assert parsed == [1]
    assert sum(place.offset for place in reader._places.values()) < 8 * 256 * (LEAST_LINES_AT_ONCE + 400)


def test_what_one_look_leaves_is_read_by_the_next_ones_once_and_in_order(tmp_path: Path) -> None:
    lines = 3 * MOST_LINES_AT_ONCE // 2
    (tmp_path / "progress-0.jsonl").write_text("".join(map(text, range(lines))))
    reader, found, looks = ProgressReader(WorkFolder(tmp_path)), [], 0
    while not looks or reader.behind:
        found += [line.done for line in reader.new()]
        looks += 1
    assert found == list(range(lines))
    assert looks > 1


def test_files_of_ranks_that_there_are_not_are_refused(tmp_path: Path) -> None:
    for rank in range(3):
        (tmp_path / f"progress-{rank}.jsonl").write_text(text(1, rank))
    reader = ProgressReader(WorkFolder(tmp_path), ranks=2)
    assert [line.rank for line in reader.new()] == [0, 1]
    assert reader.refused == {"progress-2.jsonl"}


def test_lines_are_whole_whatever_empty_ones_are_between_them(tmp_path: Path) -> None:
    (tmp_path / "progress-0.jsonl").write_bytes(b"\n\n" * PIECE_BYTES + b"first\n\n\n\nsecond\n" + b"\n" * 7 + b"last")
    with UntrustedTree(tmp_path).open("progress-0.jsonl", ANY_SIZE) as file:
        assert list(whole_lines(file)) == [b"first", b"second", b"last"]
