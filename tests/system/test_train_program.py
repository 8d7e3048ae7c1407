"""Tests of `matrix train` with the user's own program: it ends although it is killed, stopped or broken."""

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.evidence.files.run_files import Record
from harness.evidence.records import Results

STEPS = 20
# This program restores its state only from its checkpoints, and keeps all of them.
RESUMES = """
import os, sys, time
step, keeps = 0, "--resume" in sys.argv
if keeps:
    step = int(open(sys.argv[-1]).read())
    print("resumed after", step)
os.makedirs("out", exist_ok=True)
while step < 20:
    step += 1
    time.sleep(0.1)
    print(f"step {step}/20 loss {1 / step}")
    with open("out/half", "w") as file:
        file.write(str(step))
    os.replace("out/half", f"out/step-{step:03}")
    if step == 5 and "kill" in sys.argv and not keeps:
        os.kill(os.getpid(), 9)
open("made.txt", "w").write("".join(sorted(os.listdir("out"))))
"""
PROGRESS = r"step (?P<step>\d+)/(?P<total>\d+) loss (?P<loss>\S+)"
WORKLOAD = {
    "description": "mine",
    "time_limit": 100,
    "program": {
        "command": "python train.py",
        "source": "code",
        "progress": PROGRESS,
        "produces": [{"file": "made.txt"}],
        "resume": "--resume {checkpoint}",
        "checkpoint": "out/step-*",
        "stall_limit": 3,
    },
}


@dataclass
class Trainer:
    """`matrix train --workload mine`, with a results folder and an output folder of its own."""

    results: Results
    output: Path
    words: Sequence[str]

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start `matrix train` in the background."""
        command = [*self.words, "train", "--output", str(self.output), "--cell", "cpu-plain", "--executor", "process"]
        return subprocess.Popen([*command, *words], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, *words: str, status: int = 0) -> str:
        """Run `matrix train` to its end and return its output."""
        process = self.start(*words)
        printed, errors = process.communicate(timeout=100)
        assert process.returncode == status, errors
        return printed + errors

    @property
    def records(self) -> list[Record]:
        """Return the records of the attempts, in order."""
        lines = (self.output / "attempts.jsonl").read_text(encoding="utf-8").splitlines()
        return [record for line in lines if (record := self.results.record(json.loads(line)["run"]))]

    def log(self, record: Record) -> str:
        """Return what an attempt printed."""
        return self.results.folder_of(record.intent.run_id).log.read_text(encoding="utf-8")


@pytest.fixture
def make(tmp_path: Path, matrix_file: Path) -> Callable[..., Trainer]:
    """Return a function that writes a program, and a matrix file whose workload has the program and these keys."""

    def make(text: str = RESUMES, **keys: Any) -> Trainer:
        (tmp_path / "code").mkdir()
        (tmp_path / "code/train.py").write_text(text, encoding="utf-8")
        program: Mapping[str, Any] = {**WORKLOAD["program"], **keys}  # type: ignore[dict-item]
        mine = json.dumps({**WORKLOAD, "program": {key: one for key, one in program.items() if one is not None}})
        text = matrix_file.read_text(encoding="utf-8").replace("workloads:\n", f"workloads:\n  mine: {mine}\n", 1)
        (tmp_path / "matrix.yaml").write_text(text, encoding="utf-8")
        results = Results(tmp_path / "results")
        words = [".venv/bin/matrix", "--matrix", str(tmp_path / "matrix.yaml"), "--results", str(results.folder)]
        return Trainer(results, tmp_path / "OUT", words)

    return make


def processes(trainer: Trainer, left_running: Callable[[Path], list[psutil.Process]]) -> list[psutil.Process]:
    return [one for one in left_running(trainer.results.folder) if "train.py" in one.cmdline()]


def output_files(trainer: Trainer) -> list[str]:
    return sorted(file.relative_to(trainer.output).as_posix() for file in trainer.output.rglob("*") if file.is_file())


@pytest.mark.slow
def test_one_that_kills_itself_resumes_from_its_newest_checkpoint(make: Callable[..., Trainer]) -> None:
    trainer = make()
    program = "--app", str(trainer.output.parent / "code"), "--progress", PROGRESS, "--produces", "made.txt"
    resumes = "--resume-with", "--resume {checkpoint}", "--checkpoint", "out/step-*"
    printed = trainer.run(*program, *resumes, "--", "python", "train.py", "kill")
    assert f"wrote {trainer.output} in 2 attempts" in printed
    assert "numbers not checked" in printed.splitlines()[0]
    assert "attempt 1 failed (killed), it reported step 5; next: once more, resuming from out/step-005" in printed
    first, second = trainer.records
    assert (first.diagnosis, second.outcome) == ("crash", "completed")
    assert second.intent.commands["train"][-2:] == ("--resume", "out/step-005")
    assert trainer.log(second).startswith("resumed after 5\nstep 6/20")
    steps = [f"out/step-{step:03}" for step in range(1, STEPS + 1)]
    assert output_files(trainer) == ["attempts.jsonl", "made.txt", *steps]
    assert not list(trainer.results.runs.glob("*/work/program"))


@pytest.mark.long
def test_one_that_is_stopped_is_found_to_hang_and_resumes(
    make: Callable[..., Trainer], wait: Callable[..., None], left_running: Callable[[Path], list[psutil.Process]]
) -> None:
    trainer = make()
    process = trainer.start("--workload", "mine")
    wait(lambda: list(trainer.results.runs.glob("*/work/program/out/step-003")))
    (stopped,) = processes(trainer, left_running)
    os.kill(stopped.pid, signal.SIGSTOP)
    printed, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    assert "in 2 attempts" in printed
    first, second = trainer.records
    assert (first.outcome, first.diagnosis, second.outcome) == ("hung", "no-progress", "completed")
    assert "resumed after" in trainer.log(second)
    assert left_running(trainer.results.folder) == []


@pytest.mark.slow
def test_the_same_command_goes_on_after_the_harness_was_killed_though_the_program_was_fixed(
    make: Callable[..., Trainer], wait: Callable[..., None]
) -> None:
    trainer = make()
    process = trainer.start("--workload", "mine")
    wait(lambda: list(trainer.results.runs.glob("*/work/program/out/step-003")))
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=240)
    code = trainer.output.parent / "code/train.py"
    code.write_text(RESUMES.replace("resumed after", "fixed, resumed after"), encoding="utf-8")
    printed = trainer.run("--workload", "mine")
    assert "resuming the training begun" in printed
    first, second = trainer.records
    assert (first.outcome, second.outcome) == ("interrupted", "completed")
    assert trainer.log(second).startswith("fixed, resumed after ")


@pytest.mark.long
def test_what_two_attempts_could_not_resume_from_is_left_out(make: Callable[..., Trainer]) -> None:
    # The last checkpoint is written only in part.
    damage = 'os.replace("out/half", f"out/step-{step:03}")\n    if step == 5 and not keeps:'
    text = RESUMES.replace(damage[: damage.index("\n")], damage + ' open("out/step-005", "w").write("5:")')
    trainer = make(text.replace('"kill" in sys.argv', "True"))
    printed = trainer.run("--workload", "mine")
    assert [record.outcome for record in trainer.records] == ["failed", "failed", "failed", "completed"]
    assert "resuming from out/step-004, without out/step-005" in printed
    assert trainer.log(trainer.records[-1]).startswith("resumed after 4")


@pytest.mark.slow
def test_one_that_cannot_resume_starts_over_and_says_so(make: Callable[..., Trainer]) -> None:
    text = """
import os, pathlib, sys
seen = pathlib.Path(os.environ["MATRIX_DATA"], "shared", "seen")
assert not os.path.exists("begun"), "what the first attempt wrote"
open("begun", "w").write("x")
print("step 1/1 loss 1", flush=True)
if not seen.exists():
    seen.touch()
    sys.exit(1)
open("made.txt", "w").write("x")
"""
    trainer = make(text, resume=None, checkpoint=None, data=["shared"])
    (trainer.output.parent / "shared").mkdir()
    printed = trainer.run("--workload", "mine")
    assert "after a failure it starts over: nothing says how it resumes" in printed
    assert "next: once more, from the beginning" in printed
    assert [record.outcome for record in trainer.records] == ["failed", "completed"]
    assert output_files(trainer) == ["attempts.jsonl", "begun", "made.txt"]
    status = subprocess.run([*trainer.words, "status"], capture_output=True, text=True, check=True).stdout
    assert f"\nNext: {shlex.join(trainer.words)} explain {trainer.records[0].intent.run_id}\n" in status


@pytest.mark.long
def test_one_that_gets_no_further_is_stopped_in_a_line(make: Callable[..., Trainer]) -> None:
    trainer = make("raise SystemExit(1)")
    printed = trainer.run("--workload", "mine", status=1)
    assert (
        "not trained to its end: 4 attempts were made, none of which left a step to continue from, and nothing is left"
        in printed
    )
    assert f"Next: {shlex.join(trainer.words)} explain {trainer.records[-1].intent.run_id}\n" in printed


@pytest.mark.slow
def test_one_without_a_result_is_not_trained_again_from_its_beginning(make: Callable[..., Trainer]) -> None:
    trainer = make("open('model.pt', 'w').write('trained')")
    program = "--app", str(trainer.output.parent / "code"), "--", "python", "train.py"
    printed = trainer.run(*program, status=2)
    assert "and as failed if it prints nothing at all (unless --produces)" in printed.splitlines()[1]
    (record,) = trainer.records
    wrote = trainer.results.folder_of(record.intent.run_id).work.program
    assert printed.splitlines()[-1] == f"matrix: {record.detail}; what it wrote is in {wrote}"
    assert (Path(wrote) / "model.pt").read_text(encoding="utf-8") == "trained"
    trainer.run("--produces", "modle.pt", *program, status=2)
    assert [one.detail for one in trainer.records[1:]] == ["exit 0, but modle.pt is not there"]


@pytest.mark.slow
def test_a_mistake_is_one_line_and_one_attempt(make: Callable[..., Trainer]) -> None:
    trainer = make()
    program = "--app", str(trainer.output.parent / "code")
    printed = trainer.run(*program, "--", "pyhton", "train.py", status=2)
    assert printed.splitlines()[-1].startswith("matrix: pyhton could not be started")
    assert "did you mean train.py?" in trainer.run(*program, "--", "python", "tain.py", status=2).splitlines()[-1]
    assert "not found" in trainer.run(*program, "--", "sh", "-c", "pyhton train.py", status=2).splitlines()[-1]
    assert len(trainer.records) == 2
    # There is nothing to continue, so no later command speaks of these.
    assert not list(trainer.results.folder.glob("trainings/*.json"))
    (trainer.output.parent / "code/train.py").write_text(
        'import os, sys; "--resume" in sys.argv and sys.exit(2); os.mkdir("out"); open("out/step-001", "w")\n'
        'print("step 1/20 loss 1", flush=True); os.abort()'
    )
    for _ in range(3):
        trainer.run("--workload", "mine", status=2)
    # The checkpoint stays, for when the program is corrected.
    resumed = [record.intent.commands["train"][-1] for record in trainer.records[2:]]
    assert resumed == ["train.py", *["out/step-001"] * 3]
