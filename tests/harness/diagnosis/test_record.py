"""The exit of a process, read back from a record."""

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.diagnosis.record import exit_of, explain_record
from harness.environments.executors.job import Exit
from harness.evidence.run_files import Record
from harness.evidence.run_folder import RunFolder


@pytest.mark.parametrize("exit_", [Exit(0), Exit(137), Exit(-9), Exit(-9, True), Exit(1, True), Exit(-99), Exit(-11)])
def test_it_is_what_was_written(exit_: Exit) -> None:
    assert exit_of(str(exit_)) == exit_


def test_other_words_are_refused() -> None:
    with pytest.raises(ValueError, match="is not how a process ends"):
        exit_of("fine")


@pytest.mark.parametrize("words", ["", "\x1b[2J", "SIGNOT", f"exit {'9' * 5000}", f"signal {'9' * 5000}"])
def test_words_that_another_host_made_up_tell_nothing(
    words: str, make_record: Callable[..., Record], tmp_path: Path
) -> None:
    record = make_record(outcome="failed", diagnosis="crash").model_copy(update={"exit": {"train": words}})
    assert explain_record(RunFolder(tmp_path), record).cause
