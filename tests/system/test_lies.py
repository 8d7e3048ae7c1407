"""Tests that the harness catches a real run that goes wrong, and an app that lies about a real run."""

import hashlib
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.base.contract import OLD_CONTRACT
from harness.environments.environment import Environment
from harness.environments.executors.job import Exit, Job
from harness.environments.executors.process import ProcessExecutor, ProcessHandle
from harness.evidence.files.run_files import Record
from harness.evidence.outcome.diagnoses import BREACH
from harness.evidence.records import Results
from harness.host.processes.run_processes import processes_of_run
from harness.run.watch.limits import LIMITS

RunTiny = Callable[..., Record]
Tamper = Callable[[Path], object]


class Replaying(ProcessExecutor):
    """An executor that copies what a real training left into the run folder instead of training, and changes it."""

    def __init__(self, original: Path, tamper: Tamper) -> None:
        self._original = original
        self._tamper = tamper

    def start(self, job: Job) -> ProcessHandle:
        if "train" not in job.arguments:
            return super().start(job)
        shutil.copytree(self._original, job.folder / "work", dirs_exist_ok=True)
        _bring_up_to_date(job.folder / "work" / "progress-0.jsonl")
        self._tamper(job.folder / "work")
        return super().start(replace(job, arguments=("true",)))


def _bring_up_to_date(progress: Path) -> None:
    """Move the progress lines to the present, because old times alone would show that they are of another run."""
    lines = [json.loads(line) for line in progress.read_text(encoding="utf-8").splitlines()]
    for clock, now in (("monotonic", time.monotonic()), ("wall", time.time())):
        last = lines[-1][clock]
        for line in lines:
            # The times are compressed, because no training takes place here.
            line[clock] = now - (last - line[clock]) / 1000
    progress.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")


def in_result(change: Callable[[dict[str, Any]], object]) -> Tamper:
    def tamper(folder: Path) -> None:
        file = folder / "result.json"
        values = json.loads(file.read_text(encoding="utf-8"))
        change(values)
        file.write_text(json.dumps(values), encoding="utf-8")

    return tamper


def cut_model(folder: Path) -> None:
    model = folder / "output" / "model.pt"
    os.truncate(model, model.stat().st_size - 1)


def other_model_with_its_hash(folder: Path) -> None:
    model = folder / "output" / "model.pt"
    model.write_bytes(b"not a model")
    digest = hashlib.sha256(b"not a model").hexdigest()
    in_result(lambda values: values["model"].update(sha256=digest, bytes=11))(folder)


def better_validation(folder: Path) -> None:
    """Improve the validation losses in result and progress alike, so that only the saved model contradicts them."""
    told = json.loads((folder / "result.json").read_text(encoding="utf-8"))["epoch_losses"]
    for name in ("result.json", "progress-0.jsonl"):
        text = (folder / name).read_text(encoding="utf-8")
        for epoch in told:
            text = text.replace(f"{epoch['validation']}", f"{epoch['validation'] * 0.9}")
        (folder / name).write_text(text, encoding="utf-8")


# Lies that the result file alone reveals are tested in the harness, and those that a saved state reveals in the app.
LIES: dict[str, tuple[Tamper, str]] = {
    "half a result": (lambda folder: os.truncate(folder / "result.json", 200), "no-result"),
    "model cut by one byte": (cut_model, "model-damaged"),
    "something else as model": (other_model_with_its_hash, "model-does-not-load"),
    "wrong first loss": (in_result(lambda v: v["first_steps"][0].update(loss=0.123)), "wrong-result"),
    "NaN speed": (in_result(lambda v: v["throughput"].update(samples_per_second=float("nan"))), "not-finite"),
    "a better validation loss": (better_validation, "wrong-result"),
}


@pytest.fixture
def same_nonce(completed: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the next run the nonce of the real run, so that the files of the real run count as its own."""
    nonce = completed.intent.nonce
    monkeypatch.setattr("harness.run.spec.token_hex", lambda _: nonce)


@pytest.mark.slow
@pytest.mark.usefixtures("same_nonce")
def test_the_truth_about_a_real_run_is_believed(run_tiny: RunTiny, original: Path) -> None:
    record = run_tiny(executor=Replaying(original, lambda _: None))
    assert (record.outcome, record.diagnosis) == ("completed", None), record.detail
    assert record.detail.endswith(", verified")


@pytest.mark.slow
@pytest.mark.usefixtures("same_nonce")
@pytest.mark.parametrize("name", LIES)
def test_a_lie_about_a_real_run_is_caught(name: str, run_tiny: RunTiny, original: Path, results: Results) -> None:
    tamper, diagnosis = LIES[name]
    record = run_tiny(executor=Replaying(original, tamper))
    assert (record.outcome, record.diagnosis) == ("failed", diagnosis), record.detail
    back = results.record(record.intent.run_id)
    assert back is not None
    assert (back.outcome, back.detail) == (record.outcome, record.detail)


def test_an_app_of_an_old_contract_is_believed_and_its_run_qualifies_for_nothing(
    run_tiny: RunTiny, original: Path, environment: Environment
) -> None:
    older = replace(environment, contract=OLD_CONTRACT)
    record = run_tiny(executor=Replaying(original, lambda _: None), environment=older)
    assert (record.outcome, record.intent.verified) == ("completed", False), record.detail
    # In the old contract a result does not name its run, so nobody can tell whether it belongs to another run.
    assert record.detail.endswith(
        "; old contract, not verified: nothing shows that the result is this run's, and it qualifies for nothing"
    )


def put_nonce_of_run(folder: Path) -> None:
    """Write the nonce of the named run into the files that another run left."""
    nonce = json.loads((folder.parent / "intent.json").read_text(encoding="utf-8"))["nonce"]
    for file in (folder / "progress-0.jsonl", folder / "result.json"):
        file.write_text(re.sub(r'"nonce": ?"[0-9a-f]+"', f'"nonce": "{nonce}"', file.read_text()), encoding="utf-8")


def no_progress(folder: Path) -> None:
    put_nonce_of_run(folder)
    (folder / "progress-0.jsonl").unlink()


def half_of_the_progress(folder: Path) -> None:
    put_nonce_of_run(folder)
    file = folder / "progress-0.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    file.write_text("".join(lines[: len(lines) // 2]), encoding="utf-8")


FABRICATED: dict[str, tuple[Tamper, str]] = {
    "what another run left": (lambda _: None, "rank 0: its progress is of another run"),
    "a result without progress": (no_progress, "rank 0 reported no progress"),
    "half of the progress": (half_of_the_progress, "rank 0: it did not report its end"),
}


@pytest.mark.parametrize("name", FABRICATED)
def test_a_result_that_its_run_does_not_account_for_is_wrong(name: str, run_tiny: RunTiny, original: Path) -> None:
    tamper, words = FABRICATED[name]
    record = run_tiny(executor=Replaying(original, tamper))
    assert (record.outcome, record.diagnosis) == ("failed", "wrong-result"), record.detail
    assert record.detail.startswith(f"{BREACH}{words}")
    assert "the log is empty" not in record.detail


def test_an_interpreter_that_is_gone_is_a_failed_run(run_tiny: RunTiny, environment: Environment) -> None:
    record = run_tiny(environment=replace(environment, python=Path("/none/python")))
    assert (record.outcome, record.diagnosis) == ("failed", "not-started")
    assert "/none/python" in record.detail


@pytest.mark.slow
def test_a_loss_that_explodes_is_a_failed_run(run_tiny: RunTiny, results: Results) -> None:
    record = run_tiny(learning_rate=1.0, hidden_layers=(256,) * 12, epochs=20)
    assert (record.outcome, record.diagnosis) == ("failed", "not-finite"), record.detail
    assert record.exit == {"train": "exit 4"}
    assert "no model was written" in record.detail
    assert "no model was written" in (results.run_folder(record.intent.run_id) / "log.txt").read_text()


class Signalling(ProcessExecutor):
    """An executor that sends a signal to the training as soon as it trains."""

    def __init__(self, number: signal.Signals) -> None:
        self._number = number

    def start(self, job: Job) -> ProcessHandle:
        handle = super().start(job)
        number = self._number

        class Struck(ProcessHandle):
            struck = False

            def poll(self) -> Exit | None:
                lines = job.folder / "work" / "progress-0.jsonl"
                if not self.struck and lines.exists() and '"step"' in lines.read_text():
                    self._process.send_signal(number)
                    self.struck = True
                return super().poll()

        handle.__class__ = Struck
        return handle


OTHERS = (signal.SIGKILL, signal.SIGABRT)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGSEGV, *(pytest.param(one, marks=pytest.mark.long) for one in OTHERS)])
def test_a_crash_is_failed(number: signal.Signals, run_tiny: RunTiny, results: Results) -> None:
    record = run_tiny(executor=Signalling(number), epochs=5_000)
    assert (record.outcome, record.diagnosis) == ("failed", "crash")
    assert record.exit == {"train": number.name}
    assert processes_of_run(results.run_folder(record.intent.run_id)) == []


@pytest.mark.slow
def test_a_process_that_is_stalled_is_hung(run_tiny: RunTiny, results: Results) -> None:
    # The process may be stopped in any of the phases that alternate. The limit of the first step is also that of the
    # first one after a validation; without stacks, twice the limit has to pass.
    limits = {**LIMITS, "first-step": 60.0, "step": 2.0, "validate": 2.0, "checkpoint": 2.0}
    record = run_tiny(executor=Signalling(signal.SIGSTOP), epochs=5_000, limits=limits, time_limit=600)
    assert (record.outcome, record.diagnosis) == ("hung", "no-progress")
    assert "rank 0 made no progress" in record.detail
    assert processes_of_run(results.run_folder(record.intent.run_id)) == []
