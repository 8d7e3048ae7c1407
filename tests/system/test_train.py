"""Tests of `matrix train` with the real app: after a crash, hang, kill or Ctrl-C, weights are bitwise identical."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.base.files.hashes import file_hash
from harness.base.paths import CHECKOUT
from harness.evidence.files.app_files import InputFile
from harness.evidence.files.run_files import Record
from harness.evidence.index import Index
from harness.evidence.records import Results
from harness.training.attempts import ATTEMPTS_FILE

# Two epochs of 23 steps each.
OPTIONS = ("--lookback", "20", "--epochs", "2", "--loader-workers", "0", "--name", "mine")
FILES = ["attempts.jsonl", *(f"mine{end}" for end in (".pt", "_checkpoints", "_curves.csv", "_curves.png"))]
SECONDS = 280


@dataclass
class Trainer:
    """`matrix train` with a results folder and an output folder of its own."""

    results: Results
    output: Path
    data: Path
    words: Sequence[str]

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start `matrix train` in the background."""
        command = [*self.words, "train", "--data", str(self.data), "--output", str(self.output), *OPTIONS, *words]
        return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, *words: str, status: int = 0) -> str:
        """Run `matrix train` to its end and return its output."""
        process = self.start(*words)
        printed, told = process.communicate(timeout=SECONDS)
        assert process.returncode == status, told
        return printed + told

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Return the lines of attempts.jsonl."""
        return [json.loads(line) for line in (self.output / ATTEMPTS_FILE).read_text(encoding="utf-8").splitlines()]

    @property
    def records(self) -> list[Record]:
        """Return the records of the attempts, in order."""
        return [record for record in map(self.results.record, (line["run"] for line in self.lines)) if record]

    @property
    def weights(self) -> str:
        """Return the SHA-256 of the weights of the model file, which is loaded again."""
        command = [*self.words, "exec", "cpu-plain", "vpoc", "check-model", "--json", str(self.output / "mine.pt")]
        checked = subprocess.run(command, capture_output=True, text=True, check=True, cwd=CHECKOUT)
        return str(json.loads(checked.stdout)["weights_sha256"])


MakeTrainer = Callable[[Path], Trainer]


@pytest.fixture
def make_trainer(matrix_command: Callable[..., list[str]], data: InputFile) -> MakeTrainer:
    def make(folder: Path) -> Trainer:
        results = Results(folder / "results")
        return Trainer(results, folder / "TRAINING", Path(data.path), matrix_command(results.folder))

    return make


@pytest.fixture
def trainer(make_trainer: MakeTrainer, tmp_path: Path) -> Trainer:
    return make_trainer(tmp_path)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return a list for the weights of an uninterrupted training, filled by the first test that has them."""
    return []


def weights_of_one_go(make_trainer: MakeTrainer, known: list[str], folder: Path) -> str:
    if not known:
        trainer = make_trainer(folder / "one-go")
        printed = trainer.run()
        assert "no cell is shown to train here yet" in printed
        assert f"wrote {trainer.output / 'mine.pt'} in one attempt" in printed
        assert "is kept: validation loss" in printed
        (following,) = (line for line in printed.splitlines() if line.startswith("Next: "))
        does = "evaluate" if "WORSE" in printed else f"predict --model {trainer.output / 'mine.pt'}"
        assert f"exec cpu-plain vpoc {does} --data {trainer.data} --output {trainer.output}/" in following
        assert "always answering the training samples' rate has" in " ".join(printed.split())
        assert sorted(file.name for file in trainer.output.iterdir()) == sorted([*FILES, "mine_metadata.json"])
        (record,) = trainer.records
        assert (record.outcome, record.injected_fault, record.intent.workload) == ("completed", None, "own-data")
        assert [row.run_id for row in Index(trainer.results).rows()] == [record.intent.run_id]
        known.append(trainer.weights)
    return known[0]


@pytest.mark.parametrize(
    ("injected_fault", "outcome", "then"),
    [
        ("segv@35", "failed", "same-again"),
        pytest.param("oom@35", "failed", "fresh-allocator", marks=pytest.mark.long),
        pytest.param("hang-forward@35", "hung", "same-again", marks=pytest.mark.long),
    ],
)
def test_a_fault_is_survived_bitwise_identical(
    injected_fault: str,
    outcome: str,
    then: str,
    trainer: Trainer,
    make_trainer: MakeTrainer,
    uninterrupted: list[str],
    tmp_path: Path,
) -> None:
    trainer.run("--inject-fault", injected_fault)
    assert [(line["begin"], line["outcome"], line["step"]) for line in trainer.lines] == [
        ("first", outcome, 23),
        (then, "completed", 46),
    ]
    first, second = trainer.records
    # A run with an injected fault is no evidence, and neither is the run that follows it.
    kind = injected_fault.split("@", maxsplit=1)[0]
    assert (first.injected_fault, second.injected_fault, second.diagnosis) == (injected_fault, f"after {kind}", None)
    assert second.detail.endswith(f"it comes after the injected fault {kind}, so it does not count")
    assert second.result is not None
    assert second.result.resumed_at == (23,)
    assert trainer.weights == weights_of_one_go(make_trainer, uninterrupted, tmp_path)
    assert not list(trainer.results.runs.glob("*/work/scratch"))


def in_second_epoch(trainer: Trainer) -> bool:
    return any(
        re.search(r'"phase":\s*"step".*"done":\s*(2[3-9]|[34]\d)\b', line)
        for file in trainer.results.runs.glob("*-train-1/work/progress-0.jsonl")
        for line in file.read_text(encoding="utf-8").splitlines()
    )


def has_checkpoint(trainer: Trainer) -> bool:
    return bool(list(trainer.results.runs.glob("*-train-1/work/output/*_checkpoints/*.pt")))


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_what_is_stopped_goes_on_with_the_same_command(
    number: signal.Signals,
    trainer: Trainer,
    make_trainer: MakeTrainer,
    uninterrupted: list[str],
    wait: Callable[..., None],
    left_running: Callable[[Path], list[psutil.Process]],
    tmp_path: Path,
) -> None:
    # Every step from the 24th on takes two seconds, which leaves time to stop the training in it.
    process = trainer.start("--inject-fault", "slow@25")
    wait(lambda: has_checkpoint(trainer))
    time.sleep(1)
    os.kill(process.pid, number)
    process.communicate(timeout=240)
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    if number == signal.SIGINT:
        assert not left_running(trainer.results.folder)
    else:
        # A checkpoint of steps for which there is no progress: nobody knows which process wrote it.
        made = next(trainer.results.runs.glob("*-train-1/work/output/*_checkpoints/*.pt"))
        made.with_name(f"step-{45:09}.{file_hash(made)}.pt").write_bytes(made.read_bytes())
    printed = trainer.run()
    assert "resuming the training begun" in printed
    assert not left_running(trainer.results.folder)
    first, second = trainer.lines
    assert (first["outcome"], second["begin"]) == ("interrupted", "resumed")
    assert 23 <= first["step"] < 45
    assert second["step"] == 46
    assert trainer.weights == weights_of_one_go(make_trainer, uninterrupted, tmp_path)


def test_a_mistake_is_one_line(trainer: Trainer, tmp_path: Path) -> None:
    assert trainer.run("--epochs", "0", status=2).startswith("matrix: --epochs 0: ")
    assert "no such cell" not in trainer.run("--cell", "cpu-plane", status=2)
    trainer.data = tmp_path / "none.csv"
    said = trainer.run(status=2)
    assert said.count("\n") == 1
    assert "none.csv: no such file; give --data" in said


def test_data_that_is_not_plausible_is_refused_before_a_run_and_trained_on_where_that_is_accepted(
    trainer: Trainer, tmp_path: Path
) -> None:
    lines = trainer.data.read_text(encoding="utf-8").splitlines()
    lines[5000] = lines[5000].rsplit(",", 1)[0] + ",900.0"
    trainer.data = tmp_path / "implausible.csv"
    trainer.data.write_text("\n".join(lines) + "\n", encoding="utf-8")
    last = trainer.run(status=2).splitlines()[-1]
    assert last.startswith(f"matrix: --data: {trainer.data}, line 5001: ")
    assert last.endswith("or say --accept vix_range")
    assert not (trainer.output / ATTEMPTS_FILE).exists()
    trainer.run("--accept", "vix-range")
    assert [record.outcome for record in trainer.records] == ["completed"]
    assert all("vix_range" in command for command in trainer.records[0].intent.commands.values())


def test_what_the_app_would_refuse_ends_it_before_anything_is_run(trainer: Trainer) -> None:
    said = trainer.run("--target", "next_up", status=2)
    assert (
        "target next_up is for rows: session; for rows: bar choose up_30 or prior_vpoc_touched" in said.splitlines()[-1]
    )
    assert not trainer.results.runs.exists()


def test_wrong_input_that_only_the_app_finds_ends_it_at_once(trainer: Trainer) -> None:
    said = trainer.run("--inject-fault", "segv@999999", status=2)
    assert "there are only" in said.splitlines()[-1]
    assert len(trainer.lines) == 1


def trains(trainer: Trainer) -> bool:
    watched = subprocess.run([*trainer.words, "watch", "--json"], capture_output=True, text=True, check=True)
    return bool(json.loads(watched.stdout)["trains"])


def has_ended(pid: int) -> bool:
    """Return whether a process has ended, even if nobody has collected its exit status yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.long
def test_a_training_in_the_background_ends_with_a_model_though_its_terminal_is_gone(
    trainer: Trainer, wait: Callable[..., None]
) -> None:
    told, _ = json.JSONDecoder().raw_decode(trainer.run("--detach", "--yes", "--json"))
    pid = int(told["stop"].split()[-1])
    assert os.getsid(pid) == pid
    os.kill(pid, signal.SIGHUP)
    wait(lambda: trains(trainer), SECONDS)
    wait((trainer.output / "mine.pt").exists, SECONDS)
    wait(lambda: has_ended(pid), SECONDS)
