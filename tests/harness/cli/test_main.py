"""Tests of `matrix` as users type it, rightly and wrongly."""

import errno
import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from harness.base.paths import CHECKOUT
from harness.base.sysfs import REAL_ROOT
from harness.cli import commands
from harness.cli.main import cli
from harness.evidence.files.run_files import Intent, Record
from harness.evidence.records import Results
from harness.host.fingerprint import read_host
from harness.host.processes.processes import ProcessId
from harness.host.processes.run_processes import RUN_MARK
from harness.matrix.cells import Matrix
from harness.screen.terminal import SafeConsole
from tests.harness.run_matrix import CompletedCommand, run_matrix


def matrix_command(*words: str, expected: int = 0) -> CompletedCommand:
    done = run_matrix(*words)
    assert done.returncode == expected, done.stdout + done.stderr
    return done


WRONG = {
    "a file to write a training into": (["train", "--data", "x.csv", "--output", "README.md"], "'README.md' is a file"),
    "two files to train on": (
        ["train", "--output", "x", "--data", "a", "--data", "b"],
        "--data takes one path, 2 are given",
    ),
    "a command of other tools": (["diff", "a", "b"], "matrix compare`?)"),
    "unknown cell": (["run-cell", "cpu-plian"], "did you mean cpu-plain?"),
    "unknown cell of a run": (["run", "cpu-plian"], "did you mean cpu-plain?"),
    "cell of one letter": (["run", "e"], "choose from cpu-plain, rocm6.2-torch2.5.1-plain"),
    "beginning of cells": (["run", "rocm"], "did you mean rocm"),
    "empty cell": (["run", ""], "an argument is empty"),
    "empty folder": (["train", "--data", "x.csv", "--output="], "an argument is empty"),
    "unknown cell of status": (["status", "cpu-plian"], "did you mean cpu-plain?"),
    "unknown selection": (["plan", "--selection", "defualt"], "did you mean default?"),
    "unknown workload": (["plan", "--workload", "quck"], "did you mean quick?"),
    "a cell in capitals": (["plan", "CPU-PLAIN"], "did you mean cpu-plain?"),
    "more runs than can be planned": (
        ["plan", "cpu-plain", "--repeats", "999999999999"],
        "not in the range 1<=x<=10000",
    ),
    "no number": (["plan", "--all", "--confidence", "nan"], "'--confidence': nan is not a finite number"),
    "no finite number": (["status", "--expect-hours", "inf"], "'--expect-hours': inf is not a finite number"),
    "a budget of centuries": (["plan", "--budget", "99999999d"], "'99999999d' is not a time from 1s to 1000d; write"),
    "a folder as matrix file": (
        ["--matrix", "tests", "show"],
        "tests: cannot be read: Is a directory; give --matrix FILE",
    ),
    "a tag to pull": (
        ["pull", "known-good-gfx1100", "--registry", "localhost:1"],
        " tags` says which cell it is, with --registry",
    ),
    "a folder to import": (["import", "tests"], " export` wrote"),
    "no digest": (
        ["pull", "cpu-plain", "--registry", "localhost:1", "--digest", "latest"],
        "--digest latest: not sha256: and 64 hexadecimal digits; `",
    ),
    "a cell for a folder": (["save", "cpu-plain"], "save: FOLDER is missing, as in "),
    "a folder before its cell": (["save", "there", "cpu-plain"], "save: FOLDER is missing, as in "),
    "an unknown cell before a new folder with a cell's name": (
        ["save", "cpu-plian", "./cpu-plain"],
        "did you mean cpu-plain?",
    ),
    "a folder for a cell": (
        ["save", "there"],
        "save: CELLS... is missing, as in `.venv/bin/matrix save cpu-plain FOLDER`",
    ),
    "a tag that never was": (["tags", "nope"], "matrix: no tag nope was ever made here; "),
    "data that is not there": (["plan", "--data", "none.csv"], "vpoc merge --bars BARS.csv --vix VIX.csv"),
    "an interpreter that is not there": (
        ["plan", "--python", "/none/python"],
        "/none/python: no such file; give the path of an",
    ),
    "an interpreter that is no program": (["plan", "--python", "README.md"], "README.md: cannot be executed"),
    "a folder as data": (["plan", "--data", "tests"], "tests: is not a file"),
    "a run id that leads out": (["run-cell", "cpu-plain", "--run-id", "../evil"], "use letters"),
    "an interpreter without torch": (
        ["run-cell", "host-plain", "--python", str(CHECKOUT / ".venv/bin/python")],
        "lacks torch",
    ),
    "a cell this host cannot run": (["run-cell", "rocm6.3-torch2.9.1-plain"], "needs an AMD GPU"),
    "an excluded cell": (["run-cell", "rocm6.3-torch2.9.1-expandable-segments"], "compiled out of ROCm wheels"),
    "nothing that can run": (
        ["run", "rocm6.3-torch2.9.1-plain"],
        " doctor` says what to fix",
    ),
    "a picture as a key": (
        ["keys", "--trust", "docs/pictures/report.png"],
        "this is not a public ECDSA key on P-256; ",
    ),
    "no matrix file": (["--matrix", "none.yaml", "show"], "none.yaml: no such file"),
    "a file for the results": (["--results", "README.md", "status"], "README.md: is not a folder; name the one that"),
    "a file for a simulated host": (["--root", "README.md", "show"], "README.md: has no sys and no proc and no dev"),
    "a folder with files for a simulated host": (
        ["simulate", "docs"],
        "docs: is a folder with files in it; name a new",
    ),
    "a file for wheels": (["--wheels", "README.md", "status"], "--wheels README.md: is not a folder"),
    "no results to index": (["--results", "/none", "index"], "/none/runs: no such folder"),
    "a script": (["exec", "cpu-plain", "train.py", "-n", "3"], "; type `python train.py -n 3`"),
    "a program without a folder for its files": (
        ["train", "--app", "tests", "--", "python", "train.py"],
        "--output is missing, as in `.venv/bin/matrix train --output TRAINING --app DIR -- python train.py`",
    ),
    "a program without the data that it is given": (
        ["run", "cpu-plain", "--app", "docs", "--", "x", "{data}/bars.csv"],
        "{data} in the command is the folder of the data; name it with --data",
    ),
    "an empty word of a program": (["exec", "cpu-plain", "bash", ""], "only vpoc and python"),
    "another program": (["exec", "cpu-plain", "bash"], "only vpoc and python"),
    "no cell": (["exec", "vpoc", "train"], "CELL comes first, `best` or the name of one; type `"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_reported_in_one_line(name: str, tmp_path: Path) -> None:
    words, message = WRONG[name]
    (tmp_path / "results").mkdir()
    results = [] if "--results" in words else ["--results", str(tmp_path / "results")]
    done = matrix_command(*results, *words, expected=2)
    last = [line for line in done.stderr.splitlines() if line.startswith("matrix: ")]
    assert len(last) == 1
    assert message in last[0]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "results" / "runs").exists()


def test_who_watches_sees_at_once_that_a_command_is_at_work(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    line = "Reading the matrix file and this host ...\n"
    assert not matrix_command("plan", "cpu-plian", expected=2).stderr.startswith(line)
    monkeypatch.setattr(commands, "err", SafeConsole(stderr=True, force_terminal=True))
    assert matrix_command("plan", "cpu-plian", expected=2).stderr.startswith(line)
    assert line not in matrix_command("plan", "--help").stderr
    assert ShellComplete(cli, {}, "matrix", "_X").get_completions(["plan"], "cpu-pl")
    assert line not in capfd.readouterr().err


@pytest.mark.slow
def test_show_prints_every_cell_with_its_reason(matrix: Matrix) -> None:
    printed = json.loads(matrix_command("show", "--json").stdout)
    shown = printed["cells"]
    assert [cell["id"] for cell in shown] == list(matrix.cells)
    assert {cell["id"]: cell["excluded"] for cell in shown} == {c.id: c.excluded for c in matrix.cells.values()}
    text = matrix_command("show", "--selection", "neighbours").stdout
    assert len(text.splitlines()) == 1 + len(matrix.select("neighbours"))
    assert {one["name"]: one["qualifies_for_promotion"] for one in printed["workloads"]} == {
        name: workload.qualifies_for_promotion for name, workload in matrix.workloads.items()
    }
    assert len(matrix_command("show", "--all").stdout.splitlines()) == 1 + len(matrix.cells)


def test_show_prints_what_there_is_on_a_screen(matrix: Matrix) -> None:
    rows = matrix_command("show").stdout.splitlines()
    assert len(rows) < 40
    assert [row.split()[:2] for row in rows if row.startswith("standard")] == [["standard", "yes"]]
    assert [row.split()[1] for row in rows if row.startswith("default")] == [str(len(matrix.select("default")))]
    shown = {word.rstrip(",") for row in rows for word in row.split()}
    assert {*matrix.stacks, *matrix.presets, *matrix.workloads, *matrix.selections} <= shown
    assert rows[-1].startswith(f"{len(matrix.cells)} cells, of which ")
    assert "leave one of them out" in matrix_command("show", "--all", "--selection", "default", expected=2).stderr


def test_options_may_be_written_with_underscores() -> None:
    assert json.loads(matrix_command("plan", "--lookback", "30", "--json").stdout)["workload"]["lookback"] == 30


def test_a_matrix_file_in_another_encoding_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "matrix.yaml").write_bytes("# é".encode("latin-1"))
    done = matrix_command("--matrix", str(tmp_path / "matrix.yaml"), "show", expected=2)
    assert done.stderr == f"matrix: {tmp_path}/matrix.yaml: is not UTF-8 text, at byte 2; save it as UTF-8\n"


def test_a_cell_that_is_typed_twice_is_run_once() -> None:
    assert len(json.loads(matrix_command("plan", "cpu-plain", "cpu-plain", "--json").stdout)["runs"]) == 1


def test_a_closed_standard_output_is_no_traceback() -> None:
    program = [str(CHECKOUT / ".venv" / "bin" / "matrix"), "completion", "bash"]
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *program]
    done = subprocess.run(closed, stderr=subprocess.PIPE, text=True, check=False)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (["keys"], "keys/own.pem"),
        (["simulate", "/nowhere/host"], "/nowhere/host"),
        (["status"], "standard output, or a file"),
    ],
)
def test_a_full_disk_is_named_with_what_to_do(words: list[str], where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pathlib.Path.mkdir", full)
    monkeypatch.setattr("harness.cli.status.Index", full)
    error = matrix_command(*words, expected=2).stderr
    assert re.search(rf"{where}: (cannot be written: )?No space left on device; free space or choose an", error), error


def test_the_plan_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.host.disk_use._free", lambda _: 45 * 10**9)
    plan = json.loads(matrix_command("plan", "cpu-plain", "--repeats", "3", "--json").stdout)
    assert plan["runs"] == [{"cell": "cpu-plain", "repeat": n, "gpus": []} for n in (1, 2, 3)]
    assert plan["seconds_at_most"] == 3 * plan["workload"]["time_limit"]
    assert plan["limits"]["disk_bytes"] == 36 * 10**9


@pytest.mark.slow
def test_lint_names_what_does_nothing() -> None:
    findings = json.loads(matrix_command("lint", "--json").stdout)["findings"]
    xnack = [f for f in findings if f["variable"] == "HSA_XNACK" and "cpu" not in f["stacks"]]
    assert {f["kind"] for f in xnack} == {"no-effect"}
    assert all(f["source"] for f in findings)
    assert "HSA_XNACK" in matrix_command("lint", "--details").stdout
    counted = matrix_command("lint").stdout
    assert "notes-aggressive" in counted
    assert len(counted.splitlines()) < 40
    (heading, *details) = matrix_command("lint", "notes-stable").stdout.splitlines()
    assert heading == "notes-stable"
    assert all(line.startswith("  ") for line in details)


def test_records_that_cannot_be_read_are_not_passed_over_in_silence(tmp_path: Path) -> None:
    damaged = tmp_path / "runs" / "r1" / "record.json"
    damaged.parent.mkdir(parents=True)
    damaged.write_text("{}", encoding="utf-8")
    error = matrix_command("--results", str(tmp_path), "status").stderr
    assert error == f"matrix: 1 record cannot be read; `.venv/bin/matrix --results {tmp_path} index` says why\n"


def test_status_tells_of_runs_that_go_on_or_lost_their_harness_and_of_injected_faults(
    tmp_path: Path, make_intent: Callable[..., Intent], make_record: Callable[..., Record]
) -> None:
    results, here, me = Results(tmp_path), read_host(REAL_ROOT), ProcessId.mine()
    results.begin(make_intent("on", host=here, owner_pid=me.pid, owner_started=me.started))
    results.begin(make_intent("lost", host=here, owner_pid=me.pid, owner_started=me.started - 1))
    injected = make_record("injected", injected_fault="segv@3")
    results.begin(injected.intent)
    results.finish(injected)
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, env={RUN_MARK: str(tmp_path / "runs/lost")}):
        lines = matrix_command("--results", str(tmp_path), "status").stderr.splitlines()
    assert [line.split()[1] for line in lines] == ["lost", "on", "1"]
    assert "its harness is gone, though its processes run on; the next" in lines[0]
    assert "train` ends what is left" in lines[0]
    watch = f"`.venv/bin/matrix --results {tmp_path} watch` shows it"
    assert lines[1].endswith(f"continues, in process {me.pid}; {watch}")
    assert "1 run with an injected fault, not counted" in lines[2]


def test_status_tells_a_run_whose_host_went_down_from_one_whose_harness_is_gone(
    tmp_path: Path, make_intent: Callable[..., Intent]
) -> None:
    before = read_host(REAL_ROOT).model_copy(update={"boot_id": "an earlier boot"})
    Results(tmp_path).begin(make_intent("down", host=before))
    (line,) = matrix_command("--results", str(tmp_path), "status").stderr.splitlines()
    assert ", and this host went down before it ended; the next `" in line
    assert line.endswith("train` records it as failed")


@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        ("status", "cpu-plain"),
        ("watch",),
        ("explain", "latest"),
        ("report-bug", "latest"),
        ("compare", "cpu-plain", "cpu-no-sdma"),
        ("compare", "--across", "kernel"),
        ("tags",),
        ("export", "records.tar.gz"),
    ],
)
def test_a_results_folder_that_is_not_there_is_no_empty_one(words: tuple[str, ...], tmp_path: Path) -> None:
    done = matrix_command("--results", str(tmp_path / "none"), *words, expected=2)
    assert done.stderr.startswith(f"matrix: --results {tmp_path / 'none'}: no such folder; name the one that")
    assert not (tmp_path / "none").exists()


def test_a_command_that_is_named_has_the_options_that_were_given(tmp_path: Path) -> None:
    done = matrix_command("--results", str(tmp_path), "explain", "latest", expected=2)
    assert f"`.venv/bin/matrix --results {tmp_path} run` makes some" in done.stderr


@pytest.mark.slow
def test_status_and_report_without_any_record(tmp_path: Path) -> None:
    assert "No records yet" in matrix_command("--results", str(tmp_path), "status").stdout
    assert json.loads(matrix_command("--results", str(tmp_path), "status", "--json").stdout) == {
        "schema": 2,
        "verdicts": [],
        "unfinished_trainings": [],
    }
    matrix_command("--results", str(tmp_path), "report")
    assert "Nothing was run yet" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_a_reader_that_stops_early_is_no_error() -> None:
    done = subprocess.run(
        "set -o pipefail; .venv/bin/matrix show | head -1",
        shell=True,
        executable="/bin/bash",
        check=False,
        capture_output=True,
        text=True,
        cwd=CHECKOUT,
    )
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "begins", "remedy"),
    [
        (("run", "cpu-plan"), "unknown-name", "unknown cell 'cpu-plan'", "cpu-plain"),
        (("rum",), "usage", "No such command 'rum'", "matrix --help"),
        (("status", "--wrong"), "usage", "No such option", "matrix status --help"),
        (("--matrix", "nowhere.yaml", "show"), "no-such-file", "nowhere.yaml", ""),
    ],
)
def test_an_error_is_an_object_where_json_is_asked_for(
    words: tuple[str, ...], code: str, begins: str, remedy: str
) -> None:
    done = matrix_command(*words, "--json", expected=2)
    printed = json.loads(done.stdout)
    assert (printed["schema"], printed["error"]["code"]) == (2, code)
    assert printed["error"]["message"].startswith(begins)
    assert remedy in (printed["error"]["remedy"] or "")
    # Users still read one line.
    assert done.stderr.startswith("matrix: ")
