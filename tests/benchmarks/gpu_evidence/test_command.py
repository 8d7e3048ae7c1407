"""Tests of the command line of `python -m benchmarks.gpu_evidence`."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.gpu_evidence.__main__ import main
from benchmarks.gpu_evidence.rows import ROWS

CHECKOUT = Path(__file__).parents[3]
BLOCKED = "import sys; sys.modules.update(dict.fromkeys(['polars', 'click', 'matplotlib', 'vpoc.data.load']))\n"
NEEDS_GPU = {row.name for row in ROWS if row.needs_gpu}
KEYS = {"row", "shows", "verdict", "detail", "numbers", "seconds", "gpu_only", "shown_red", "last_lines"}


def kit(*words, arrays=None, output=None, **more):
    command = [sys.executable, "-m", "benchmarks.gpu_evidence", *map(str, words)]
    command += ["--arrays", str(arrays)] if arrays else []
    command += ["--output", str(output)] if output else []
    return subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)


def ended(process):
    out, err = process.communicate(timeout=1800)
    return process.returncode, out, err


def rows_of(folder):
    document = json.loads((folder / "gpu-evidence.json").read_text())
    return document, {row["row"]: row for row in document["rows"]}


@pytest.mark.long
def test_rows_are_run_written_and_shown(arrays, tmp_path):
    """A short form: one row of each kind, in an interpreter that lacks the packages that only the app needs."""
    (tmp_path / "sitecustomize.py").write_text(BLOCKED)
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONWARNINGS": "error"}
    chosen = ("environment", "profile-chunked", "train-mlp-float32-resident", "probe-peer-copy", "device-assert")
    process = kit(*chosen, "--steps", 4, arrays=arrays, output=tmp_path / "out", env=environ)
    status, out, err = ended(process)
    assert status == 0, err
    document, rows = rows_of(tmp_path / "out")
    assert sorted(rows) == sorted(chosen)
    assert {name: row["verdict"] for name, row in rows.items()} == {
        "environment": "held",
        "profile-chunked": "held",
        "train-mlp-float32-resident": "held",
        "probe-peer-copy": "not-applicable",
        "device-assert": "not-applicable",
    }
    assert all(row.keys() == KEYS for row in rows.values())
    assert rows["train-mlp-float32-resident"]["numbers"]["steps"] == 4
    assert (document["schema"], document["kind"], document["device"]) == (2, "gpu-evidence", "cpu")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["gpu-evidence.json", "gpu-evidence.md"]
    page = (tmp_path / "out" / "gpu-evidence.md").read_text()
    assert "**On a CPU: this says nothing about any GPU.**" in page
    assert "| device-assert † | not applicable | needs a GPU |  |" in page
    assert "profile-chunked" in out


@pytest.mark.long
def test_every_row_on_a_cpu(tmp_path):
    """In the full form no row differs, and only rows that need a GPU are left out."""
    subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_evidence.prepare", tmp_path / "arrays.npz"],
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": f"app{os.pathsep}."},
        check=True,
    )
    output = tmp_path / "out"
    status, _, err = ended(kit("--budget", 3600, "--destructive", arrays=tmp_path / "arrays.npz", output=output))
    _, rows = rows_of(output)
    assert {name: row["detail"] for name, row in rows.items() if row["verdict"] == "differs"} == {}
    assert status == 0, err
    # A speed that is measured while other tests run says nothing.
    left_out = {name for name, row in rows.items() if row["verdict"] == "not-applicable"}
    assert left_out - {"probe-compile"} == NEEDS_GPU


@pytest.mark.long
def test_what_the_time_does_not_reach_is_said(arrays, tmp_path):
    output = tmp_path / "out"
    status, _, err = ended(kit("probe-import", "profile-*", "--budget", 4, "--json", arrays=arrays, output=output))
    assert status == 0, err
    _, rows = rows_of(output)
    assert {row["verdict"] for row in rows.values()} == {"not-reached"}
    assert rows["profile-naive"]["detail"] == "the time was up"


@pytest.mark.long
def test_ctrl_c_keeps_what_is_known(arrays, tmp_path):
    process = kit("probe-import", "train-*", "--steps", 4, arrays=arrays, output=tmp_path / "out")
    assert process.stdout.readline().startswith("probe-import")
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    status, _, err = ended(process)
    assert status == 130, err
    _, rows = rows_of(tmp_path / "out")
    assert rows["probe-import"]["verdict"] == "held"
    assert rows["train-mlp-float32-plain"]["detail"] == "interrupted"
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--device", "cuda"], 3, "gpu-evidence: --device cuda: torch sees no GPU"),
        (["no-such-row"], 2, "gpu-evidence: no-such-row: no such row; --list names them"),
        (["--budget", "0"], 2, "0 is not between 0 and 86400 seconds"),
        (["--steps", "x"], 2, "x is not between 1 and 10000"),
        (["--arrays", "nowhere.npz"], 2, "gpu-evidence: nowhere.npz: no prepared arrays"),
    ],
)
def test_mistakes_are_a_line(arrays, tmp_path, capsys, words, status, said):
    try:
        found = main(["--arrays", str(arrays), "--output", str(tmp_path / "out"), *words])
    except SystemExit as end:
        found = end.code
    assert found == status
    assert said in capsys.readouterr().err


def test_it_lists_its_rows(capsys):
    assert main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [row.name for row in ROWS]
