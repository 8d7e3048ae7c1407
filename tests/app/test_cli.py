import csv
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from vpoc.cli import COMMANDS, run
from vpoc.data.synth import BARS

SMALL = ["--warm-up", "20", "--target", "prior_vpoc_touched", "--loader-workers", "0"]


def vpoc(capsys, *arguments):
    """Run the command line in this process: exit status, stdout, stderr."""
    code = run([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help(capsys, command):
    code, out, _ = vpoc(capsys, *command, "--help")
    assert code == 0
    assert "Usage: vpoc" in out


def test_help_imports_neither_torch_nor_polars():
    code = (
        "import sys; from vpoc.cli import run; assert run(['--help']) == 0; assert run(['train', '--help']) == 0; "
        "assert not {'torch', 'polars', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_python_dash_m():
    done = subprocess.run([sys.executable, "-m", "vpoc", "--version"], check=True, capture_output=True, text=True)
    assert done.stdout.startswith("vpoc, version")


def test_usage_errors(capsys, merged):
    assert vpoc(capsys, "lunch")[0] == 2
    code, _, err = vpoc(capsys, "train", "--data", merged, "--output", "x", "--hidden-layers", "32,x")
    assert code == 2
    assert "such as 32,16" in err
    code, _, err = vpoc(capsys, "train", "--data", merged, "--output", "x", "--name", "a/b")
    assert (code, err.count("\n")) == (2, 1)
    code, _, err = vpoc(capsys, "train", "--data", merged, "--output", "x", "--rows", "session", "--target", "up_30")
    assert code == 2
    assert err == "vpoc: --target up_30 is not known for --rows session; choose one of next_up, next_vpoc_touched\n"


def test_synth(capsys, tmp_path):
    path = tmp_path / "s.csv"
    code, out, _ = vpoc(capsys, "synth", "--output", path, "--sessions", 2)
    assert code == 0
    assert f"{2 * BARS} rows, 2 sessions, sha256 " in out
    assert path.read_text().count("\n") == 2 * BARS + 1


def test_check(capsys, merged, tmp_path):
    code, out, err = vpoc(capsys, "check", merged)
    assert (code, err) == (0, "")
    assert "complete rth sessions    26" in out
    code, out, _ = vpoc(capsys, "check", merged, "--json")
    facts = json.loads(out)
    assert (code, facts["rows"], facts["bar_seconds"], facts["errors"]) == (0, 26 * 138, 600, [])
    short = tmp_path / "short.csv"
    short.write_text("".join(merged.read_text().splitlines(keepends=True)[:500]))
    code, _, err = vpoc(capsys, "check", short)
    assert code == 1
    assert "23 complete sessions are needed (20 to warm up, 3 to use), the file has 3" in err


def test_check_counts_for_the_rows_asked_for(capsys, merged, tmp_path):
    short = tmp_path / "short.csv"
    short.write_text("".join(merged.read_text().splitlines(keepends=True)[: 1 + 23 * 138]))
    assert vpoc(capsys, "check", short)[0] == 0
    code, _, err = vpoc(capsys, "check", short, "--rows", "session")
    assert code == 1
    assert "24 complete sessions are needed" in err


def test_merge(capsys, tmp_path):
    (tmp_path / "b.csv").write_text("ts,open,high,low,close,volume\n2024-01-03T15:00:00Z,100,101,99,100.5,7\n")
    (tmp_path / "v.csv").write_text("DATE,OPEN,HIGH,LOW,CLOSE\n2024-01-02,1,1,1,13.20\n")
    arguments = ["--bars", tmp_path / "b.csv", "--vix", tmp_path / "v.csv", "--output", tmp_path / "m.csv"]
    code, out, _ = vpoc(capsys, "merge", *arguments)
    assert code == 0
    assert "1 rows; stamps read as UTC" in out
    assert (tmp_path / "m.csv").read_text().splitlines()[1] == "2024-01-03T15:00:00Z,100.00,101.00,99.00,100.50,7,13.20"


def test_from_data_to_prediction(capsys, merged, other_merged, tmp_path):
    """Options with underscores, features by another process, a model that is checked and used."""
    features, out_dir, run_dir = tmp_path / "f.parquet", tmp_path / "out", tmp_path / "run"
    assert vpoc(capsys, "features", "--data", merged, "--output", features, "--warm_up", 20)[0] == 0
    options = ["--data", merged, "--features", features, *SMALL, "--batch_size", 8, "--hidden_layers", "8,4"]
    code, out, err = vpoc(capsys, "train", *options, "--output", out_dir, "--run_dir", run_dir, "--epochs", 1)
    assert (code, err) == (0, "")
    assert out.startswith("device ")
    result = json.loads((run_dir / "result.json").read_text())
    assert result["options"]["batch_size"] == 8
    assert result["options"]["target"] == "prior_vpoc_touched"
    first = json.loads((run_dir / "progress-0.jsonl").read_text().splitlines()[0])
    assert first["phase"] == "import"

    code, out, _ = vpoc(capsys, "reference", *options, "--output", tmp_path / "r.json", "--steps", 4)
    assert code == 0
    assert json.loads((tmp_path / "r.json").read_text())["steps"] == result["first_steps"][:4]

    model = out_dir / "merged.pt"
    code, out, _ = vpoc(capsys, "check-model", model, "--json")
    facts = json.loads(out)
    assert (code, facts["sha256"], facts["parameters"]) == (0, result["model"]["sha256"], 145)
    assert vpoc(capsys, "check_model", model)[0] == 0

    code, _, _ = vpoc(capsys, "predict", "--model", model, "--data", other_merged, "--output", tmp_path / "p.csv")
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    assert (code, list(rows[0]), len(rows)) == (0, ["trade_date", "ts", "probability"], 6 * 39)
    assert all(0 < float(row["probability"]) < 1 for row in rows)
    assert rows[0]["ts"].endswith("T14:30:00Z")


def test_a_model_for_other_bars_is_refused(capsys, merged, tmp_path):
    vpoc(capsys, "train", "--data", merged, *SMALL, "--epochs", 1, "--output", tmp_path, "--name", "m")
    coarse = tmp_path / "coarse.csv"
    header, *lines = merged.read_text().splitlines(keepends=True)
    coarse.write_text(header + "".join(lines[::3]))
    out = tmp_path / "p.csv"
    code, _, err = vpoc(capsys, "predict", "--model", tmp_path / "m.pt", "--data", coarse, "--output", out)
    assert code == 2
    assert "trained on bars of 600 s, the data has bars of 1800 s" in err


def test_a_truncated_model_is_one_line_and_exit_1(capsys, tmp_path):
    (tmp_path / "m.pt").write_bytes(b"PK\x03\x04")
    code, _, err = vpoc(capsys, "check-model", tmp_path / "m.pt")
    assert (code, err.count("\n")) == (1, 1)


def test_no_gpu_exits_3_also_by_environment(merged, tmp_path):
    command = [sys.executable, "-m", "vpoc", "train", "--data", merged, "--output", tmp_path]
    environment = {**os.environ, "VPOC_DEVICE": "cuda", "CUDA_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)


@pytest.mark.parametrize("send", [os.kill, os.killpg])
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_workers_and_says_one_line(merged, tmp_path, signum, send):
    command = [sys.executable, "-m", "vpoc", "train", "--data", merged, "--output", tmp_path / "out"]
    options = ["--warm-up", "20", "--target", "prior_vpoc_touched", "--epochs", "100000", "--run-dir", tmp_path / "run"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([*command, *options], **pipes, start_new_session=True)
    progress = tmp_path / "run" / "progress-0.jsonl"
    deadline = time.monotonic() + 60
    while not (progress.exists() and '"step"' in progress.read_text()):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    send(process.pid, signum)
    try:
        # The pipes close only when the loader workers, which inherited them, have ended too.
        _, err = process.communicate(timeout=30)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == 128 + signum
    assert err == f"vpoc: interrupted by {signal.Signals(signum).name}\n"
    assert not (tmp_path / "out").exists()
