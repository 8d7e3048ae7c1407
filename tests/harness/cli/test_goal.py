"""Tests of the options that leave the number of runs open."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from harness.base.errors import UserError
from harness.base.paths import CHECKOUT
from harness.cli.goal import Duration, goal_of, workload_for_tags
from harness.cli.main import cli
from harness.cli.shared import Settings
from harness.host.simulated import SimulatedHost, without_gpu
from harness.search.goal import Goal


@pytest.fixture
def project(tmp_path: Path) -> Settings:
    return Settings(CHECKOUT / "matrix.yaml", tmp_path, None)


@pytest.mark.parametrize(
    ("text", "seconds"), [("8h", 28800), ("90m", 5400), ("1h30m", 5400), ("45s", 45), ("1.5h", 5400), ("1d", 86400)]
)
def test_a_time_is_read(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["8", "h", "8 h", "-8h", "8h later", "0s", "", "0.5s"])
def test_what_is_no_time_is_refused_with_how_it_is_written(text: str) -> None:
    with pytest.raises(click.BadParameter, match="write 8h, 90m or 1h30m"):
        Duration().convert(text, None, None)


def test_the_line_and_the_confidence_are_the_matrix_files(project: Settings) -> None:
    assert goal_of(project, None, every=False, confidence=None, budget=None) is None
    find = goal_of(project, "known-good", every=False, confidence=None, budget=60.0)
    assert find == Goal(rate=0.9, confidence=0.95, every=False, budget=60.0, mtbf_hours=3, boots=2)
    assert goal_of(project, None, every=True, confidence=0.8, budget=None) == Goal(
        0.9, 0.8, every=True, mtbf_hours=3, boots=2
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--until", "known-good", "--all"], "give one of them"),
        (["--until", "known-good", "--confidence", "0.9"], "--confidence goes with --all"),
        (["cpu-plain", "--budget", "8h"], "add --until known-good or --all, or leave out --budget"),
        (["--all", "--repeats", "3"], "--repeats fixes the number of runs"),
    ],
)
def test_contradictions_are_one_line(words: list[str], told: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(
        cli, ["--matrix", str(CHECKOUT / "matrix.yaml"), "--results", str(tmp_path), "plan", *words]
    )
    assert isinstance(done.exception, UserError)
    assert told in str(done.exception)


def test_the_plan_says_that_the_number_of_runs_is_open(tmp_path: Path) -> None:
    words = ["--matrix", str(CHECKOUT / "matrix.yaml"), "--results", str(tmp_path), "plan", "--until", "known-good"]
    done = CliRunner().invoke(cli, [*words, "--budget", "8h", "cpu-plain", "cpu-no-sdma"])
    assert done.exit_code == 0, done.output
    assert "Plan: 2 cells, until one is known-good, within 8.0 h: runs of workload standard" in done.output
    assert "each run" in done.output


def test_a_workload_that_does_not_qualify_is_replaced_unless_it_was_named(
    project: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    workloads = project.matrix.workloads
    assert workload_for_tags(project, workloads["full"], named=False) == workloads["full"]
    assert capsys.readouterr().err == ""
    idle = workloads["quick"].model_copy(update={"vpoc_path": "cpu", "name": "idle", "lookback": 30})
    assert workload_for_tags(project, idle, named=False) == workloads["standard"].model_copy(update={"lookback": 30})
    assert workload_for_tags(project, idle, named=True) == idle
    # A smoke test only shows that a cell works at all.
    quick = workloads["quick"]
    assert workload_for_tags(project, quick, named=False).name == "standard"


def test_a_budget_without_a_gpu_is_said_to_have_no_effect(tmp_path: Path) -> None:
    places = ["--matrix", str(CHECKOUT / "matrix.yaml"), "--results", str(tmp_path), "--root"]
    root = without_gpu(SimulatedHost(tmp_path / "host")).root
    done = CliRunner().invoke(cli, [*places, str(root), "plan", "--budget", "4m"])
    assert "--budget has no effect without a GPU: each cell of the selection is run once" in done.stderr
    assert "--budget" not in CliRunner().invoke(cli, [*places, str(root), "plan"]).stderr
