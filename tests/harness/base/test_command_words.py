"""Tests of how a command is built again from its words, with a word more or less."""

import sys
from pathlib import Path

import pytest

from harness.base.command_words import own_words, with_option, with_yes
from harness.campaign.reboot import this_command

OF_PROGRAM = ("--", "python", "train.py", "--yes", "--detach", "--budget", "3")


def test_the_words_of_a_program_stay_as_they_are() -> None:
    typed = ("run", "--detach", "--budget", "1m", "--app", ".", *OF_PROGRAM)
    assert own_words(typed) == (typed[:6], OF_PROGRAM)
    assert with_yes(typed, "--detach") == ("run", "--budget", "1m", "--app", ".", "--yes", *OF_PROGRAM)
    longer = with_option(typed, "--budget", "15m")
    assert longer == ("run", "--detach", "--app", ".", "--budget", "15m", *OF_PROGRAM)
    assert with_option(("run", "--budget=1m"), "--budget", "15m") == ("run", "--budget", "15m")


def test_after_a_reboot_a_program_gets_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["matrix", "run", "--app", ".", *OF_PROGRAM])
    assert this_command() == (str(Path.cwd() / "matrix"), "run", "--app", ".", "--yes", *OF_PROGRAM)
