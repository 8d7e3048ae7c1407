import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.base.paths import APP
from harness.campaign import by_hand
from harness.campaign.bench.open_bench import BenchOptions
from harness.campaign.by_hand import command_in_cell, docker_command
from harness.environments import capabilities
from harness.environments.environment import Environment
from harness.evidence.records import Results
from harness.matrix.cells import Matrix


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BenchOptions:
    """Return options for a host without a GPU and without synthetic bars, on which no engine may be asked for."""

    def refuse() -> None:
        raise AssertionError("an engine was asked for")

    monkeypatch.setattr(capabilities, "find_engine", refuse)
    monkeypatch.setattr(by_hand, "synthetic_place", lambda _, image="bars": tmp_path / "data" / f"{image}.csv")
    (tmp_path / "root").mkdir()
    return BenchOptions(results=Results(tmp_path / "results"), root=tmp_path / "root")


def test_a_command_is_printed_without_engine_gpu_image_and_data(options: BenchOptions, matrix: Matrix) -> None:
    lines = docker_command(
        options, matrix.cells["rocm10.0.0-torch2.13.0-plain"], matrix.workloads["quick"]
    ).splitlines()
    assert "matrix build rocm10.0.0-torch2.13.0-plain" in lines[0]
    assert lines[1].startswith("# No GPU was found here")
    made, trained = (shlex.split(line) for line in lines if line.startswith("docker run"))
    assert made[made.index("synth") - 1] == "vpoc:rocm10.0.0-torch2.13.0-plain-gfx1100"
    assert "/dev/kfd" not in " ".join(made)
    assert "/dev/kfd" in " ".join(trained)
    # Otherwise Docker would pull an image of that name from somebody else.
    assert trained[2:4] == ["--pull", "never"]
    assert trained[trained.index("vpoc:rocm10.0.0-torch2.13.0-plain-gfx1100") + 1] == "train"
    assert not (options.results.folder / "by-hand").exists()


def test_bars_that_are_there_are_not_made_again(options: BenchOptions, matrix: Matrix) -> None:
    place = options.results.folder.parent / "data" / "bars.csv"
    place.parent.mkdir()
    place.write_text("bars")
    printed = docker_command(options, matrix.cells["cpu-plain"], matrix.workloads["quick"])
    assert printed.count("docker run") == 1
    assert "No GPU" not in printed
    assert str(place) in printed


def test_bars_that_the_lines_make_are_no_other_runs(options: BenchOptions, matrix: Matrix) -> None:
    for made_before in (False, True):
        printed = docker_command(options, matrix.cells["cpu-plain"], matrix.workloads["quick"])
        assert "data/bars.csv" not in printed
        assert ("\nmv " in printed) != made_before
        place = options.results.folder.parent / "data" / "vpoc:cpu-plain.csv"
        assert str(place) in printed
        place.parent.mkdir(exist_ok=True)
        place.touch()


def test_a_cell_without_an_image_is_refused(options: BenchOptions, matrix: Matrix) -> None:
    with pytest.raises(UserError, match="only runs as a process"):
        docker_command(options, matrix.cells["host-plain"], matrix.workloads["quick"])


def test_help_is_answered_without_an_environment(matrix: Matrix) -> None:
    def notify(text: str) -> None:
        raise AssertionError(text)

    program, words, variables = command_in_cell(matrix, "cpu-plain", ("vpoc", "train", "--help"), notify)
    said = subprocess.run([program, *words[1:]], env=variables, capture_output=True, text=True, check=True).stdout
    assert "--batch-size" in said


@pytest.mark.parametrize("words", [("vpoc", "train", "--help"), ("vpoc", "synth", "x")])
def test_the_app_imports_nothing_from_the_working_folder(
    words: tuple[str, ...], matrix: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = Environment(Path(sys.executable), {}, {"PYTHONPATH": str(APP)}, "cpu")
    monkeypatch.setattr(by_hand, "ensure_environment", lambda *_: environment)
    program, arguments, variables = command_in_cell(matrix, "cpu-plain", words, print)
    (tmp_path / "vpoc.py").write_text("raise SystemExit(99)")
    done = subprocess.run([program, *arguments[1:]], env=variables, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode != 99
