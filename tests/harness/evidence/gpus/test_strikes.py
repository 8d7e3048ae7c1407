"""Tests of a person's decisions about a run, and of what another host may have written in their place."""

import os
from pathlib import Path

import pytest

from harness.evidence.files.run_folder import RunFolder
from harness.evidence.gpus.strikes import MOST_BYTES, Strike, strikes_of, struck_out

LINE = Strike(decision="strike", reason="the wrong cable", at=1.0).model_dump_json(by_alias=True)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"{LINE}\n", "the wrong cable"),
        (LINE, "the wrong cable"),
        (f"{'{}' * MOST_BYTES}\n{LINE}\n", "the wrong cable"),
        # Another host may export a file of any length, so only its last bytes are read.
        (f"{LINE}\n" + "\n" * MOST_BYTES, None),
    ],
)
def test_the_last_decisions_are_read_however_long_the_file_is(tmp_path: Path, text: str, why: str | None) -> None:
    (tmp_path / "strikes.jsonl").write_text(text, encoding="utf-8")
    assert struck_out(RunFolder(tmp_path)) == why


def test_a_reason_is_short_enough_to_be_read_again(tmp_path: Path) -> None:
    long = Strike(decision="strike", reason="\x1b" * MOST_BYTES, at=1.0)
    (tmp_path / "strikes.jsonl").write_text(long.model_dump_json(by_alias=True), encoding="utf-8")
    assert strikes_of(RunFolder(tmp_path)) == [long]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "there").write_text(LINE, encoding="utf-8")
    (tmp_path / "strikes.jsonl").symlink_to("there")
    assert struck_out(RunFolder(tmp_path)) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_what_another_user_wrote_beside_a_run_of_this_one_is_quoted(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.record.touch()
    folder.strikes.write_text(LINE, encoding="utf-8")
    os.chown(folder.strikes, 1, 1)
    assert struck_out(folder) == "'the wrong cable'"
