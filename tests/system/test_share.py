"""Tests of merging two results folders that real runs made."""

import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from harness.base.paths import CHECKOUT
from harness.evidence.records import Results
from tests.system.conftest import Command, in_this_process


def matrix(command: list[str]) -> Any:
    done = in_this_process([*command, "--json"])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def two_folders(tmp_path: Path, quick_command: Command) -> tuple[Results, Results]:
    """Return two results folders with one run each."""
    found = []
    for name, cell in (("one", "cpu-plain"), ("other", "cpu-one")):
        results = Results(tmp_path / "shared" / name)
        record = matrix(quick_command(results.folder, "run-cell", cell, "--workload", "tiny"))
        assert record["outcome"] == "completed"
        found.append(results)
    return found[0], found[1]


@pytest.mark.slow
def test_two_folders_put_together_both_ways_tell_the_same(
    two_folders: tuple[Results, Results], quick_command: Command, tmp_path: Path
) -> None:
    archives = [tmp_path / "one.tar.gz", tmp_path / "other.tar.gz"]
    folders = [shutil.copytree(results.folder, tmp_path / results.folder.name) for results in two_folders]
    for folder, archive in zip(folders, archives, strict=True):
        assert matrix(quick_command(folder, "export", str(archive)))["runs"] == 1
    third = tmp_path / "third"
    told = matrix(quick_command(third, "import", *map(str, archives)))["imported"]
    assert [len(imported["runs"]) for imported in told] == [1, 1]
    # An archive that the third folder exports contains runs that the first two already have.
    matrix(quick_command(third, "export", str(tmp_path / "both.tar.gz")))
    for folder in folders:
        (back,) = matrix(quick_command(folder, "import", str(tmp_path / "both.tar.gz")))["imported"]
        assert (len(back["runs"]), back["duplicates"], back["differing"]) == (1, 1, [])
    summed_up = [
        {
            (verdict["cell"], verdict["passes"], verdict["runs"])
            for verdict in matrix(quick_command(folder, "status"))["verdicts"]
        }
        for folder in (third, *folders)
    ]
    assert summed_up[0] == summed_up[1] == summed_up[2] == {("cpu-plain", 1, 1), ("cpu-one", 1, 1)}


@pytest.mark.slow
def test_what_is_shared_holds_no_name_or_place_of_this_machine(
    two_folders: tuple[Results, Results], quick_command: Command, tmp_path: Path
) -> None:
    results = two_folders[0]
    matrix(quick_command(results.folder, "export", str(tmp_path / "one.tar.gz")))
    third = Results(tmp_path / "third")
    matrix(quick_command(third.folder, "import", str(tmp_path / "one.tar.gz")))
    (record,) = results.records()
    (original,) = results.finished()
    telling = [
        str(results.folder),
        str(CHECKOUT),
        str(Path.home()),
        str(results.folder_of(original).temporary),
        record.intent.data.path,
        record.intent.host.machine,
        record.intent.host.boot_id,
        socket.gethostname(),
    ]
    files = [file for file in third.runs.rglob("*") if file.is_file()]
    assert {"intent.json", "record.json", "result.json", "log.txt", "progress-0.jsonl"} <= {file.name for file in files}
    for file in files:
        text = file.read_text(encoding="utf-8")
        # A short host name may be part of an ordinary word, so only whole words are compared.
        assert [name for name in telling[:-1] if name in text] == []
        assert telling[-1] not in text.replace("/", " ").replace(":", " ").split()


@pytest.mark.slow
def test_an_imported_run_is_not_taken_for_one_of_this_host(
    two_folders: tuple[Results, Results], quick_command: Command, tmp_path: Path
) -> None:
    matrix(quick_command(two_folders[0].folder, "export", str(tmp_path / "one.tar.gz")))
    third = tmp_path / "third"
    (told,) = matrix(quick_command(third, "import", str(tmp_path / "one.tar.gz")))["imported"]
    (run_id,) = told["runs"]
    again = quick_command(third, "run-cell", "cpu-plain", "--workload", "tiny", "--run-id", run_id)
    refused = in_this_process(again)
    assert refused.returncode == 2
    assert "was imported" in refused.stderr
