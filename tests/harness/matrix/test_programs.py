"""Tests of what the matrix file may say about a user's program."""

from pathlib import Path
from typing import Any

import pytest

from harness.base.errors import UserError
from harness.matrix.load import load_matrix
from harness.matrix.programs import Program
from harness.matrix.workload_options import family_of, options_of, workload_hash
from harness.matrix.workloads import Workload

MATRIX = """schema: 2
stacks: {cpu: {accelerator: cpu, torch: "2.13.0"}}
presets: {plain: {description: nothing set}}
selections: {default: {description: all, stacks: all, presets: all}}
workloads:
  quick: {description: a minute, synthetic: {sessions: 100}, epochs: 1, time_limit: 60}
  mine:
    description: mine
    time_limit: 60
    program:
      command: python train.py --out "a b"
      source: ../code
      data: [bars]
"""


def program(**values: Any) -> Program:
    return Program.model_validate({"command": "python train.py", "source": "code", **values})


def written(folder: Path, text: str = MATRIX) -> Path:
    file = folder / "matrix.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_program_is_found_beside_the_matrix_file_and_its_line_is_split_as_a_shell_does(tmp_path: Path) -> None:
    workload = load_matrix(written(tmp_path)).workloads["mine"]
    assert workload.program is not None
    assert workload.program.command == ("python", "train.py", "--out", "a b")
    assert Path(workload.program.source) == tmp_path / "../code"
    assert workload.program.data == (str(tmp_path / "bars"),)
    assert not workload.qualifies_for_promotion


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("time_limit: 60\n    program", "time_limit: 60\n    batch_size: 3\n    program", "`batch_size:` is an"),
        ("data: [bars]", "data: [a/bars, b/bars]", "'bars': files are found by name"),
        ("data: [bars]", "data: [source]", "'source': files are found by name"),
        ("data: [bars]", "progress: 'step (\\d+)'", "needs a group"),
        ("data: [bars]", "progress: '('", "nor a regular expression"),
        ("data: [bars]", "progress: '(?P<step>.){99999999999}'", "nor a regular expression: the repetition number"),
        ("data: [bars]", f"progress: '{'(' * 3000}{')' * 3000}'", "nor a regular expression: maximum recursion"),
        ("data: [bars]", "produces: [{file: ../model.pt}]", "is not a place in the folder"),
        ("data: [bars]", "produces: [{file: m.json, loads: torch, finite: [loss]}]", "give one of them"),
        ("data: [bars]", "environment: {MATRIX_DATA: x}", "is set by the harness"),
        ("data: [bars]", "environment: {HIP_VISIBLE_DEVICES: '0'}", "only the executor does"),
        ('--out "a b"', '--out "a b', "cannot be split into words"),
        ("data: [bars]", "recources: 1", "unknown key"),
    ],
)
def test_a_mistake_is_refused_with_its_line(tmp_path: Path, old: str, new: str, told: str) -> None:
    with pytest.raises(UserError) as error:
        load_matrix(written(tmp_path, MATRIX.replace(old, new)))
    line, *more = str(error.value).splitlines()
    assert more == []
    assert line.startswith(f"{tmp_path}/matrix.yaml:")
    assert told in line


def test_the_words_name_the_data() -> None:
    assert program(command="python train.py {data}/bars.csv").words("/data") == ("python", "train.py", "/data/bars.csv")


def test_what_decides_the_behaviour_of_a_program_identifies_it() -> None:
    def workload(**values: Any) -> Workload:
        own = {"command": "python train.py", "source": "code", **values}
        return Workload.model_validate({"description": "mine", "program": own, "time_limit": 60})

    one, elsewhere, other = workload(), workload(source="copy", stall_limit=60), workload(command="python other.py")
    taken = {"folder": "copies", "version": "1"}
    edited = workload(taken=taken)
    families = [family_of(options_of(each)) for each in (one, elsewhere, other, edited)]
    assert families[0] == families[1]
    assert len(set(families)) == 3
    assert workload_hash(one, "a") != workload_hash(other, "a")
    assert hash(one) == hash(workload())
