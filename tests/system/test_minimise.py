"""Tests of `matrix minimise` and `matrix compare` on real runs: two variables break torch only when set together."""

import json
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.system.conftest import Command

Left = Callable[[Path], list[psutil.Process]]

CELL = "cpu-strict"
CAUSE = ["ATEN_CPU_CAPABILITY", "PYTHONWARNINGS"]
MATRIX = """\
schema: 2
stacks:
  cpu: {accelerator: cpu, torch: "2.13.0"}
presets:
  plain: {description: nothing set}
  strict:
    description: a value that torch warns of, and a warning that is made an error
    variables:
      ATEN_CPU_CAPABILITY: nonsense
      MALLOC_ARENA_MAX: "2"
      PYTHONWARNINGS: "error:ignoring invalid value"
workloads:
  tiny:
    description: seconds
    synthetic: {sessions: 26}
    lookback: 20
    epochs: 1
    batch_size: 64
    loader_workers: 0
    time_limit: 120
selections:
  default: {description: all, stacks: [cpu], presets: all, workload: tiny}
"""


@pytest.fixture
def command(tmp_path: Path, quick_command: Command) -> Callable[..., list[str]]:
    file = tmp_path / "matrix.yaml"
    file.write_text(quick_command.adapted(MATRIX), encoding="utf-8")
    return lambda *words: quick_command(tmp_path / "results", *words, matrix=file)


def told(command: list[str]) -> Any:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def records(results: Path) -> list[Any]:
    return [json.loads(file.read_text()) for file in results.glob("runs/*/record.json")]


def test_a_pair_that_only_harms_together_is_named_though_the_search_is_killed_on_the_way(
    tmp_path: Path, command: Callable[..., list[str]], wait: Callable[..., None], left_running: Left
) -> None:
    results = tmp_path / "results"
    with (tmp_path / "said.txt").open("w") as said:
        process = subprocess.Popen(command("minimise", CELL), stdout=said, stderr=said)
    wait(lambda: len(records(results)) >= 9 and left_running(results), 600)
    process.send_signal(signal.SIGKILL)
    process.wait(240)

    found = told(command("minimise", CELL, "--json"))
    assert (found["conclusion"], found["effect"], found["variables"]) == ("found", "harms", CAUSE)
    assert found["confirmed"]["passes"] == 0
    assert all(runs["passes"] == runs["runs"] for runs in found["without"].values())
    assert found["cell_of_variables"] == "cpu-strict~ATEN_CPU_CAPABILITY+PYTHONWARNINGS"
    assert found["rest_too"] is False

    made = records(results)
    outcomes = Counter(record["outcome"] for record in made)
    assert outcomes["interrupted"] <= 1
    assert outcomes["completed"] + outcomes["failed"] == found["runs"]
    by_cell = {record["intent"]["cell"]: record["intent"]["variables"]["train"] for record in made}
    assert by_cell[f"{CELL}~MALLOC_ARENA_MAX"]["MALLOC_ARENA_MAX"] == "2"
    assert not by_cell[f"{CELL}~MALLOC_ARENA_MAX"].keys() & set(CAUSE)

    assert told(command("minimise", CELL, "--json")) == found
    assert len(records(results)) == len(made)
    assert left_running(results) == []

    (compared,) = told(command("compare", "cpu-plain", CELL, "--json"))["comparisons"]
    assert compared["differ"]
    assert compared["two"]["passes"] == 0


def test_runs_are_added_to_a_comparison(tmp_path: Path, command: Callable[..., list[str]]) -> None:
    (compared,) = told(command("compare", CELL, "cpu-plain", "--runs", "2", "--json"))["comparisons"]
    assert (compared["one"], compared["two"]) == ({"passes": 0, "runs": 2}, {"passes": 2, "runs": 2})
    assert not compared["differ"]
    assert compared["told_apart"] is None
    assert len(records(tmp_path / "results")) == 4
