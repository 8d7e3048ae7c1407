"""Tests of what `vpoc train` refuses, and how it ends."""

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from tests.app.commands.in_process import SMALL, vpoc


@pytest.mark.parametrize(
    "option",
    [
        ["--learning-rate", "nan"],
        ["--learning-rate", "1.5"],
        ["--learning-rate", "0"],
        ["--data-fraction", "NaN"],
        ["--seed", 2**63],
        ["--batch-size", 2**31],
        ["--epochs", 5_001],
        ["--hidden-layers", "9" * 5000],
        ["--hidden-layers", ",".join("1" * 257)],
        ["--checkpoint-every", "inf"],
        ["--checkpoint-every", "nan"],
    ],
)
def test_numbers_out_of_bounds_are_usage_errors(capsys, merged, tmp_path, option):
    code, _, err = vpoc(capsys, "train", "--data", merged, "--output", tmp_path / "out", *option)
    assert code == 2
    assert f"Invalid value for '{option[0]}'" in err
    assert not (tmp_path / "out").exists()


def test_the_largest_numbers_are_taken(capsys, merged, tmp_path):
    options = ["--learning-rate", 1, "--seed", 2**63 - 1, "--batch-size", 2**31 - 1]
    assert vpoc(capsys, "train", "--data", merged, *SMALL, *options, "--epochs", 1, "--output", tmp_path)[0] == 0


def test_an_output_that_cannot_be_written_is_found_before_training(capsys, merged, tmp_path):
    (tmp_path / "file").touch()
    arguments = ["train", "--data", merged, *SMALL, "--run-dir", tmp_path / "run"]
    code, out, err = vpoc(capsys, *arguments, "--output", tmp_path / "file")
    assert (code, out, err.count("\n")) == (2, "", 1)
    (tmp_path / "out" / "m.pt").mkdir(parents=True)
    code, out, err = vpoc(capsys, *arguments, "--output", tmp_path / "out", "--name", "m")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert not (tmp_path / "run").exists()


def test_what_a_checkpoint_says_of_itself_is_no_command_to_a_terminal(capsys, merged, tmp_path):
    command = ["train", "--data", merged, *SMALL, "--epochs", 1, "--output", tmp_path, "--name", "m"]
    assert vpoc(capsys, *command)[0] == 0
    (file,) = (tmp_path / "m_checkpoints").iterdir()
    document = torch.load(file, weights_only=True)
    document["manner"]["strategy"] = "\x1b]0;title\x07\nvpoc: all is well"
    content = io.BytesIO()
    torch.save(document, content)
    digest = hashlib.sha256(content.getvalue()).hexdigest()
    file.rename(file.with_name(f"{file.name.split('.')[0]}.{digest}.pt")).write_bytes(content.getvalue())
    code, out, err = vpoc(capsys, *command, "--resume")
    assert code == 0
    (line,) = [line for line in (out + err).split("\n") if "all is well" in line]
    assert line.startswith("--resume: with strategy single (was ")
    assert line.isprintable()


def test_a_run_folder_used_again(capsys, merged, tmp_path):
    """The command deletes the old result at once; features and training append to one progress file."""
    run, features = tmp_path / "run", tmp_path / "f.parquet"
    run.mkdir()
    (run / "result.json").write_text("old")
    assert vpoc(capsys, "features", "--data", merged, "--lookback", 20, "--output", features, "--run-dir", run)[0] == 0
    assert not (run / "result.json").exists()
    before = (run / "progress-0.jsonl").read_text()
    (run / "result.json").write_text("old")
    arguments = ["--data", merged, *SMALL, "--output", tmp_path, "--run-dir", run]
    code, _, _ = vpoc(capsys, "train", *arguments, "--features", tmp_path / "none.parquet")
    assert code == 2
    assert not (run / "result.json").exists()
    assert vpoc(capsys, "train", *arguments, "--features", features)[0] == 0
    assert json.loads((run / "result.json").read_text())["schema"] == 2
    assert (run / "progress-0.jsonl").read_text().startswith(before)


@pytest.mark.slow
def test_no_gpu_exits_3_also_by_environment(merged, tmp_path):
    command = [sys.executable, "-m", "vpoc", "train", "--data", merged, "--output", tmp_path]
    environment = {**os.environ, "VPOC_DEVICE": "cuda", "CUDA_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signum", "send"),
    [
        pytest.param(signal.SIGTERM, os.kill, marks=pytest.mark.long),
        (signal.SIGINT, os.killpg),
        pytest.param(signal.SIGTERM, os.killpg, marks=pytest.mark.long),
        pytest.param(signal.SIGINT, os.kill, marks=pytest.mark.long),
    ],
)
def test_a_signal_ends_the_workers_and_says_one_line(merged, tmp_path, signum, send):
    command = [sys.executable, "-m", "vpoc", "train", "--data", merged, "--output", tmp_path / "out"]
    options = [
        "--lookback",
        "20",
        "--target",
        "prior_vpoc_touched",
        "--epochs",
        "5000",
        "--run-dir",
        tmp_path / "run",
    ]
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
        # The pipes close only after the loader workers, which inherited them, have ended too.
        _, err = process.communicate(timeout=30)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == 128 + signum
    assert err == f"vpoc: interrupted by {signal.Signals(signum).name}\n"
    # There may be a checkpoint, unless the loader workers ended before the step did.
    assert {path.name for path in (tmp_path / "out").iterdir()} <= {"merged_checkpoints"}


@pytest.mark.slow
def test_the_notes_command_works_from_an_empty_folder(capsys, merged, tmp_path, monkeypatch):
    """The command is the notes', without --output; other options that give the same batches give the same model."""
    data = tmp_path / "merged_es_vix_test.csv"
    data.write_text(merged.read_text().replace("ts,open", "timestamp,open"))
    monkeypatch.chdir(tmp_path)
    notes = ["--data", data, *SMALL, "--epochs", 1, "--learning_rate", 0.001, "--hidden_layers", "32,16"]
    assert vpoc(capsys, "train", *notes, "--batch_size", 8, "--accumulation_steps", 4)[0] == 0
    same = ["--batch-size", 32, "--micro-batch-size", 8, "--output", tmp_path / "other"]
    assert vpoc(capsys, "train", *notes, *same)[0] == 0
    models = [
        vpoc(capsys, "check-model", folder / f"{data.stem}.pt", "--json")[1]
        for folder in (tmp_path / "TRAINING", tmp_path / "other")
    ]
    assert len({json.loads(model)["weights_sha256"] for model in models}) == 1
    code, _, err = vpoc(capsys, "train", *notes, "--accumulation-steps", 4, "--micro-batch-size", 8)
    assert (code, "say the same; give one of them" in err) == (2, True)


@pytest.mark.slow
def test_ranks_import_nothing_from_the_working_folder(merged, tmp_path):
    script = tmp_path / "bin" / "vpoc"
    script.parent.mkdir()
    script.write_text("from vpoc.cli import main\nmain()\n")
    (tmp_path / "vpoc.py").write_text("raise SystemExit(99)\n")
    options = ["--data", merged, *SMALL, "--strategy", "ddp", "--devices", "2"]
    command = [sys.executable, script, "train", *map(str, options)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
