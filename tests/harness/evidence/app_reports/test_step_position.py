import struct
from pathlib import Path

import pytest

from harness.evidence.app_reports.step_position import Position, read_position, read_positions
from harness.evidence.files.work_folder import WorkFolder


def write(folder: Path, rank: int, content: bytes) -> None:
    (folder / f"position-{rank}.bin").write_bytes(content)


def test_a_position_is_two_little_endian_numbers(tmp_path: Path) -> None:
    write(tmp_path, 0, struct.pack("<qq", 50, 3))
    write(tmp_path, 1, bytes(16))
    assert read_positions(WorkFolder(tmp_path)) == {0: Position(50, 3), 1: Position(0, 0)}
    assert Position(50, 3).words == "in backward"


@pytest.mark.parametrize("content", [b"", b"short", bytes(17), struct.pack("<qq", 5, 9), struct.pack("<qq", -1, 0)])
def test_what_is_no_position_is_none(content: bytes, tmp_path: Path) -> None:
    write(tmp_path, 0, content)
    assert read_position(WorkFolder(tmp_path), 0) is None
    assert read_position(WorkFolder(tmp_path), 1) is None
    assert read_positions(WorkFolder(tmp_path)) == {}


def test_between_two_steps_comes_after_the_first_and_before_the_second() -> None:
    in_order = [Position(0, 0), Position(1, 1), Position(1, 4), Position(1, 5), Position(1, 0), Position(2, 1)]
    assert sorted(in_order, key=lambda position: position.order) == in_order
