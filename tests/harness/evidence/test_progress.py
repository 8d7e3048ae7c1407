import json
from pathlib import Path

from harness.evidence.progress import ProgressReader
from harness.evidence.work_folder import WorkFolder

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
