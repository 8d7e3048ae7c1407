"""Tests that results folders and archives of the first version, with records of schema 1, stay readable."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.base.paths import CHECKOUT
from harness.cli.main import cli
from harness.evidence.records import Results

BEFORE = Path(__file__).with_name("results_of_schema_1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BEFORE, tmp_path / "results"))


def matrix_command(results: Path, *words: str) -> str:
    command = ["--matrix", str(CHECKOUT / "matrix.yaml"), "--results", str(results), *words]
    done = CliRunner().invoke(cli, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_its_verdicts_are_shown(folder: Path) -> None:
    verdicts = json.loads(matrix_command(folder, "status", "--json"))["verdicts"]
    assert {(one["cell"], one["passes"], one["runs"]) for one in verdicts} == {
        ("cpu-plain", 1, 1),
        ("cpu-no-sdma", 1, 1),
    }


def test_its_index_is_rebuilt(folder: Path) -> None:
    assert "2 records" in matrix_command(folder, "index")


def test_its_report_is_written(folder: Path) -> None:
    matrix_command(folder, "report")
    report = json.loads((folder / "report.json").read_text())
    assert {run["cell"] for run in report["runs"]} == {"cpu-plain", "cpu-no-sdma"}
    assert (folder / "report.html").stat().st_size > 10_000


def test_its_faults_are_explained_and_counted_for_nothing(folder: Path) -> None:
    results = Results(folder / "drills")
    faults = {record.injected_fault: record for record in results.records()}
    assert set(faults) == {"sleep@35/0", "nan@35/0"}
    hung = faults["sleep@35/0"]
    assert hung.outcome == "hung"
    text = (results.run_folder(hung.intent.run_id) / "record.json").read_text()
    assert hung.longest_stall == json.loads(text)["standstill"]
    assert hung.intent.options["lookback"] == 20
    explained = matrix_command(folder / "drills", "explain", hung.intent.run_id)
    assert "hang" in explained
    assert json.loads(matrix_command(folder / "drills", "status", "--json"))["verdicts"] == []


def test_its_archive_is_imported(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    matrix_command(tmp_path / "results", "import", str(BEFORE / "exported.tar.gz"))
    verdicts = json.loads(matrix_command(tmp_path / "results", "status", "--json"))["verdicts"]
    assert {one["cell"] for one in verdicts} == {"cpu-plain", "cpu-no-sdma"}
    assert [record.intent.version for record in Results(tmp_path / "results").records()] == [2, 2]
