"""Tests of reading the exit of a process back from its text."""

import pytest

from harness.environments.executors.job import Exit


@pytest.mark.parametrize("exit_", [Exit(0), Exit(137), Exit(-9), Exit(-9, True), Exit(1, True), Exit(-99), Exit(-11)])
def test_it_is_what_was_written(exit_: Exit) -> None:
    assert Exit.parse(str(exit_)) == exit_


def test_other_words_are_refused() -> None:
    with pytest.raises(ValueError, match="is not how a process ends"):
        Exit.parse("fine")
