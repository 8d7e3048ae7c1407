import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from harness.base.paths import CHECKOUT
from harness.cli.main import cli
from harness.evidence.files.run_files import Record
from harness.evidence.records import Results
from harness.matrix.cells import Matrix

MakeRecord = Callable[..., Record]
MATRIX = str(CHECKOUT / ".venv/bin/matrix")


def offered(line: str) -> list[str]:
    """Return what is offered at the end of a line, in any shell."""
    _, *words, incomplete = line.split(" ")
    return [
        item.value for item in ShellComplete(cli, {}, "matrix", "_MATRIX_COMPLETE").get_completions(words, incomplete)
    ]


def completed(line: str) -> list[str]:
    """Return what bash offers at the end of a line."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1), "_MATRIX_COMPLETE": "bash_complete"}
    done = subprocess.run(
        [MATRIX], env={**os.environ, **words}, cwd=CHECKOUT, capture_output=True, text=True, check=True, timeout=120
    )
    return [item.partition(",")[2] for item in done.stdout.splitlines() if item]


@pytest.mark.slow
def test_commands_cells_selections_workloads_and_presets_are_completed(matrix: Matrix) -> None:
    assert completed("matrix st") == offered("matrix st") == ["status", "strike"]
    cells = [cell for cell in matrix.cells.values() if cell.stack.name == "rocm6.3-torch2.9.1"]
    assert any(cell.excluded for cell in cells)
    assert offered("matrix run rocm6.3-torch2.9.1-") == [cell.id for cell in cells if not cell.excluded]
    assert offered("matrix plan --selection ") == list(matrix.selections)
    assert offered("matrix run cpu-plain --workload s") == ["standard", "soak"]
    assert offered("matrix lint one") == ["one-queue"]
    assert offered("matrix run --stage ") == list(matrix.stages)
    assert offered("matrix build --rocm 6.2") == ["6.2", "6.2.4"]
    for line in ("exec", "env", "devcontainer", "train --cell"):
        assert offered(f"matrix {line} b") == ["best"]
    assert offered("matrix minimise la") == ["latest"]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["explain", "strike", "report-bug"])
def test_runs_are_completed_the_newest_first(command: str, tmp_path: Path, make_record: MakeRecord) -> None:
    results = Results(tmp_path)
    for name in ("20261124T113845Z-a", "20261124T120139Z-b"):
        results.begin(make_record(name).intent)
        results.finish(make_record(name))
    told = offered(f"matrix --results {results.folder} {command} 2026")
    assert told == ["20261124T120139Z-b", "20261124T113845Z-a"]
    assert offered(f"matrix --results {results.folder} {command} ") == ["latest", *told]


@pytest.mark.slow
def test_a_broken_matrix_file_completes_nothing_and_says_nothing() -> None:
    assert completed("matrix --matrix nowhere.yaml run c") == []


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_instructions(shell: str) -> None:
    done = subprocess.run([MATRIX, "completion", shell], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    # The program of a checkout is not on the PATH.
    program = "$1" if shell == "bash" else MATRIX
    assert re.search(rf"(COMPLETE=|=){shell}_complete.* {re.escape(program)}\)", done.stdout)
    assert "$+commands" not in done.stdout
