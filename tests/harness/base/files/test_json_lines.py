import fcntl
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.base.files import locks
from harness.base.files.json_files import Versioned
from harness.base.files.json_lines import append_line, read_json_lines


class Said(Versioned):
    what: str


def said(file: Path) -> list[str]:
    return [one.what for one in read_json_lines(file, Said)]


def test_lines_come_back_in_their_order(tmp_path: Path) -> None:
    file = tmp_path / "new" / "said.jsonl"
    assert said(file) == []
    for what in ("a", "b", "c\n"):
        append_line(file, Said(what=what))
    assert said(file) == ["a", "b", "c\n"]
    assert len(file.read_bytes().splitlines()) == 3
    assert said(file / "inner") == []


def test_what_is_no_line_is_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "said.jsonl"
    append_line(file, Said(what="a"))
    with file.open("ab") as stream:
        stream.write(b'\n\xff\n{"schema": 2, "what": 1}\n' + b"[" * 100_000 + b"\n" + b'{"schema": 2, "what": "half')
    append_line(file, Said(what="b"))
    assert said(file) == ["a", "b"]


def test_only_the_end_of_a_file_is_read_also_while_it_grows(tmp_path: Path) -> None:
    file = tmp_path / "said.jsonl"
    for number in range(5):
        append_line(file, Said(what=str(number)))
    read = []
    for one in read_json_lines(file, Said, file.stat().st_size * 3 // 5):
        read.append(one.what)
        append_line(file, Said(what="more"))
    assert read == ["2", "3", "4"]


def test_several_write_at_once(tmp_path: Path) -> None:
    file = tmp_path / "said.jsonl"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: append_line(file, Said(what=f"{number} " * 1000)), range(40)))
    assert sorted(said(file)) == sorted(f"{number} " * 1000 for number in range(40))


def test_who_waits_for_another_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "QUIET_SECONDS", 0.0)
    waited: list[str] = []
    with (tmp_path / ".said.jsonl.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)

        def hear(record: logging.LogRecord) -> bool:
            waited.append(record.getMessage())
            other.close()
            return False

        monkeypatch.setattr(logging.getLogger(locks.__name__), "filters", [hear])
        append_line(tmp_path / "said.jsonl", Said(what="a"))
    assert waited[0].startswith("waiting for another process to unlock")


def test_where_it_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "said.jsonl").mkdir()
    with pytest.raises(UserError, match=r"said\.jsonl: cannot be written: Is a directory; choose another"):
        append_line(tmp_path / "said.jsonl", Said(what="a"))


def test_what_is_no_file_has_no_lines_and_gets_none(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious", encoding="utf-8")
    (tmp_path / "link").symlink_to(precious)
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "fifo"):
        assert said(tmp_path / name) == []
        with pytest.raises(UserError, match="cannot be written"):
            append_line(tmp_path / name, Said(what="a"))
    assert precious.read_text(encoding="utf-8") == "precious"
