"""Tests that options with former names are hidden and do the same as those with present names."""

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from harness.base.paths import CHECKOUT
from harness.cli import main, run, run_cell, train, workload_choice
from harness.cli.shared import Settings

FORMER = {"--reboot-when-sick", "--warm-up", "--drill"}


def parsed(command: click.Command, *words: str) -> dict[str, Any]:
    with click.Context(command) as context:
        command.parse_args(context, list(words))
        return dict(context.params)


@pytest.mark.parametrize("words", [["--reboot-when-sick"], ["--reboot-when-unhealthy"]])
def test_reboot_when_unhealthy(words: list[str]) -> None:
    assert parsed(run.run, *words)["reboot_when_unhealthy"] is True
    assert parsed(run.run)["reboot_when_unhealthy"] is False


@pytest.mark.parametrize("flag", ["--warm-up", "--lookback"])
@pytest.mark.parametrize("command", [run.run, run.plan, run_cell.run_cell_command], ids=lambda one: one.name)
def test_lookback(command: click.Command, flag: str) -> None:
    words = ["cpu-plain"] if command is run_cell.run_cell_command else []
    assert parsed(command, *words, flag, "21")["lookback"] == 21
    assert parsed(command, *words)["lookback"] is None


@pytest.mark.parametrize("flag", ["--warm-up", "--lookback"])
def test_lookback_of_a_training(flag: str) -> None:
    assert parsed(train.train_command, "--data", "d", "--output", "o", flag, "21")["lookback"] == "21"


def test_a_lookback_under_its_former_name_reaches_the_workload() -> None:
    settings = Settings(CHECKOUT / "matrix.yaml", Path("results"), None)
    options = parsed(run.plan, "--warm-up", "33")
    assert workload_choice.chosen_workload(settings, "default", options).lookback == 33


@pytest.mark.parametrize("command", ["run", "run-cell", "plan", "train", "minimise", "compare"])
def test_they_are_not_in_the_help(command: str) -> None:
    said = CliRunner().invoke(main.cli, [command, "--help"]).output
    assert "--help" in said
    assert not [name for name in FORMER if name in said]
