"""Tests of `matrix run --until` and `--all` as a user runs them, with the real app, killed and resumed."""

import json
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kill_tester import Place
from harness.evidence.verdicts.rates import runs_to_show
from tests.system.conftest import Command, write_matrix

Wait = Callable[..., None]
CELLS = ("cpu-one", "cpu-plain")
# Thresholds so low that a few runs reach them; both cells share the allowed error.
LOW = (
    "verdicts: {candidate: 0.1, good: 0.2, known_good: 0.4, confidence: 0.7, known_good_boots: 1, "
    "mtbf_hours: {candidate: 0, good: 0, known_good: 0}}\n"
)
ENOUGH = runs_to_show(0, 0.4, 1 - 0.3 / len(CELLS))


@pytest.fixture
def searching(tmp_path: Path, quick_command: Command) -> Command:
    """Return `matrix` on the small matrix, with low thresholds and a workload that qualifies for promotion."""
    file = tmp_path / "matrix.yaml"
    text = quick_command.matrix_file.read_text(encoding="utf-8").replace(
        "loader_workers: 0", "loader_workers: 0\n    vpoc_path: naive"
    )
    file.write_text(text + LOW, encoding="utf-8")
    return quick_command.on(file).verified(tmp_path)


@pytest.fixture
def command(tmp_path: Path, searching: Command) -> Callable[..., list[str]]:
    return lambda *words: searching(tmp_path / "results", *words)


def run(command: list[str], expected: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == expected, done.stdout + done.stderr
    return done


def records(results: Path) -> dict[str, Any]:
    """Return the records by run id."""
    files = sorted((results / "runs").glob("*/record.json"))
    return {file.parent.name: json.loads(file.read_text()) for file in files}


def outcomes(results: Path) -> Counter[str]:
    return Counter(record["outcome"] for record in records(results).values())


def test_a_known_good_cell_is_found_though_the_search_was_killed(
    tmp_path: Path, command: Callable[..., list[str]], wait: Wait, left_running: Callable[[Path], list[Any]]
) -> None:
    results = tmp_path / "results"
    search = command("run", *CELLS, "--until", "known-good")
    process = subprocess.Popen(search, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait(lambda: outcomes(results)["completed"] == 1 and left_running(results), 120)
    process.kill()
    process.wait()

    done = run(search)
    assert "continuing campaign" in done.stderr
    assert left_running(results) == []
    # Only the killed run is repeated.
    assert outcomes(results) == {"completed": ENOUGH, "interrupted": 1}
    (cell,) = {record["intent"]["cell"] for record in records(results).values()}
    (campaign,) = (results / "campaigns").glob("*.json")
    assert {record["intent"]["campaign"] for record in records(results).values()} == {campaign.stem}
    begun = json.loads(campaign.read_text())
    assert isinstance(begun["seed"], int)
    assert [run["cell"] for run in begun["runs"]] == list(CELLS)
    said = done.stdout.splitlines()
    assert said[0].startswith(f"{cell} is known-good: {ENOUGH} of {ENOUGH} starts")
    assert sum("known-good: " in line for line in said) == 1
    # Runs of the process executor cannot be promoted, because they have no image.
    (following,) = [line for line in said if line.startswith("Next: ")]
    # The short lookback that synthetic bars need says nothing about the user's own data.
    lookback = "" if " --data merged.csv " in following else " --lookback 20"
    trains = f" --output TRAINING --cell {cell} --executor process{lookback}"
    # `matrix train` does not use an interpreter that the user names.
    ends = f" --results {results} status {cell}" if "--python" in search else trains
    assert following.endswith(ends)

    again = run([*search, "--json"])
    assert outcomes(results) == {"completed": ENOUGH, "interrupted": 1}
    told = json.loads(again.stdout)
    assert told["conclusion"]["why"] == "reached"
    assert told["conclusion"]["standings"][cell] == "known-good"
    assert told["answer"]["sentence"] == said[0]
    assert f"Next: {told['answer']['next']['command']}" == following
    assert told["done"] == 0


def test_the_time_being_over_is_said_and_what_remains_open(
    tmp_path: Path, searching: Command, command: Callable[..., list[str]]
) -> None:
    results = tmp_path / "results"
    # A step takes longer than the budget, however fast the machine is.
    slow = searching.slow(tmp_path, 1)
    settle = slow(results, "run", *CELLS, "--all", "--confidence", "0.7", "--budget", "1s")
    # No run has been timed yet, so one run is made if there is time left once the stack is ready.
    done = run(settle, expected=1)
    assert outcomes(results)["completed"] <= 1
    assert "0 of 2 cells are settled" in done.stdout
    assert "still open" in done.stdout
    # With a budget shorter than a run, the same command would end like this one, so another budget is suggested.
    whys = ("continues from these records, with the whole budget again", "has the least budget that lets something run")
    assert any(f"It {why}." in done.stdout for why in whys)
    assert re.search(rf"run {' '.join(CELLS)} --all --confidence 0.7 .*--budget ", done.stdout)
    done = run(command("run", *CELLS, "--all", "--confidence", "0.7"))
    assert "2 of 2 cells are settled" in done.stdout
    assert outcomes(results) == {"completed": 2 * runs_to_show(0, 0.4, 0.7)}


class Searching(Place):
    """A place with a stand-in for the app, in which a campaign searches for one known-good cell."""

    def make(self) -> None:
        super().make()
        with (self.folder / "matrix.yaml").open("a", encoding="utf-8") as file:
            file.write(LOW)
        write_matrix(self.folder / "matrix")

    def command(self) -> list[str]:
        words = [str(self.folder / "matrix"), *super().command()[1:]]
        at = words.index("--repeats")
        return [*words[:at], "--until", "known-good", *words[at + 2 :]]


@pytest.mark.parametrize("point", ["campaign-begun", "running", "record-written", "file-renamed@4", "campaign-done"])
def test_a_search_that_is_killed_counts_every_run_once(point: str, tmp_path: Path) -> None:
    place = Searching(tmp_path)
    place.make()
    assert place.start(point).wait(120) == -signal.SIGKILL, place.said
    assert place.start().wait(120) == 0, place.said
    ended = Counter(record.outcome for record in place.results.records())
    assert ended["completed"] == runs_to_show(0, 0.4, 0.7)
    assert ended.keys() <= {"completed", "interrupted"}
    assert ended["interrupted"] <= 1
    # A campaign that was killed after its last run has nothing left to continue.
    assert len({record.intent.campaign for record in place.results.records()}) == 1
    assert not list(place.results.unfinished())
