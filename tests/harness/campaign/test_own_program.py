import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.campaign.own_program import CellOutside, cell_outside, shell_lines
from harness.host.fingerprint import read_host
from harness.host.simulated import dual_7900xt
from harness.matrix.cells import Matrix
from tests.harness.run_matrix import run_matrix

CELL = "rocm6.3-torch2.9.1-notes-stable"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return dual_7900xt(tmp_path / "root").root


@pytest.fixture
def outside(matrix: Matrix, root: Path, tmp_path: Path) -> CellOutside:
    return cell_outside(matrix.cells[CELL], read_host(root), tmp_path, root)


def test_the_variables_are_those_of_the_preset_in_training(outside: CellOutside, matrix: Matrix) -> None:
    assert outside.variables == matrix.cells[CELL].preset.variables_of("train")
    assert outside.dotenv.splitlines() == [f"{name}={value}" for name, value in sorted(outside.variables.items())]


def test_a_shell_understands_the_lines(outside: CellOutside) -> None:
    awkward = replace(outside, variables={"A": "it's $HOME; `id`"})
    (line,) = (line for line in shell_lines(awkward).splitlines() if not line.startswith("#"))
    assert shlex.split(line) == ["export", "A=it's $HOME; `id`"]


def test_the_docker_line_gives_both_gpus_and_nothing_else(outside: CellOutside, root: Path) -> None:
    words = shlex.split(outside.docker_run())
    given = [words[n + 1].rpartition(":")[2] for n, word in enumerate(words) if word == "--device"]
    assert given == ["/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD129"]
    assert words[words.index("--cap-drop") + 1] == "ALL"
    assert "--privileged" not in words
    assert words[-2:] == [f"vpoc:{CELL}", "train.py"]


def test_without_a_gpu_the_line_says_what_to_put_in(matrix: Matrix, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    alone = cell_outside(matrix.cells[CELL], read_host(tmp_path / "none"), tmp_path, tmp_path / "none")
    assert "No GPU was found here" in shell_lines(alone)
    cpu = cell_outside(matrix.cells["cpu-plain"], read_host(tmp_path / "none"), tmp_path, tmp_path / "none")
    assert "No GPU" not in shell_lines(cpu)
    assert "/dev/kfd" not in cpu.docker_run()


def test_a_cell_that_is_excluded_or_has_no_image_is_refused(matrix: Matrix, root: Path, tmp_path: Path) -> None:
    excluded = next(cell for cell in matrix.cells.values() if cell.excluded)
    with pytest.raises(UserError, match="is excluded"):
        cell_outside(excluded, read_host(root), tmp_path, root)
    with pytest.raises(UserError, match="only runs as a process"):
        cell_outside(matrix.cells["host-plain"], read_host(root), tmp_path, root).docker_run()


def test_a_devcontainer_is_written_and_never_over_another(tmp_path: Path, root: Path) -> None:
    file = tmp_path / "folder" / "devcontainer.json"
    words = ("--root", str(root), "devcontainer", CELL, "--output", str(file))
    done = run_matrix(*words)
    assert done.returncode == 0, done.stderr
    values = json.loads(file.read_text())
    assert values["image"] == f"vpoc:{CELL}"
    assert values["runArgs"][values["runArgs"].index("--cap-drop") + 1] == "ALL"
    again = run_matrix(*words)
    assert again.returncode == 2
    assert "is there already" in again.stderr
    assert run_matrix(*words, "--force").returncode == 0


def test_the_command_prints_what_its_options_ask_for(root: Path) -> None:
    told = run_matrix("--root", str(root), "env", CELL, "--json")
    values = json.loads(told.stdout)
    assert values["docker_run"].startswith("docker run --pull never")
    dotenv = run_matrix("--root", str(root), "env", CELL, "--dotenv").stdout.splitlines()
    assert dotenv == [f"{name}={value}" for name, value in sorted(values["variables"].items())]
    assert f"`.venv/bin/matrix --root {root} build {CELL}` makes" in run_matrix("--root", str(root), "env", CELL).stdout
    assert run_matrix("--root", str(root), "env", "nothing").returncode == 2
    best = json.loads(run_matrix("--root", str(root), "env", "best", "--json").stdout)["cell"]
    assert best.endswith("-plain")
