"""A run that goes wrong for real, or an app that lies about a real run: each is caught."""

import hashlib
import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.environments.environment import Environment
from harness.environments.executors.job import Exit, Job
from harness.environments.executors.process import ProcessExecutor, ProcessHandle
from harness.evidence.records import Results
from harness.evidence.run_files import Record
from harness.evidence.run_folder import RunFolder
from harness.host.run_processes import processes_of_run
from harness.run.watch.limits import LIMITS

RunTiny = Callable[..., Record]
Tamper = Callable[[Path], object]


class Replaying(ProcessExecutor):
    """Lays what a real training left into the run folder, in place of a training, and changes it.

    What the model check said of it is repeated too, as long as the model is the same.
    """

    def __init__(self, original: Path, tamper: Tamper) -> None:
        self._original = original
        self._tamper = tamper

    def start(self, job: Job) -> ProcessHandle:
        if "train" in job.arguments:
            for name in ("progress-0.jsonl", "result.json"):
                shutil.copyfile(self._original / name, job.folder / name)
            shutil.copytree(self._original / "output", job.folder / "output", dirs_exist_ok=True)
            self._tamper(job.folder)
            return super().start(replace(job, arguments=("true",)))
        if "check-model" in job.arguments and self._same_model(job.folder):
            return super().start(replace(job, arguments=("cat", str(RunFolder(self._original).model_check_log))))
        return super().start(job)

    def _same_model(self, folder: Path) -> bool:
        models = [place / "output" / "model.pt" for place in (folder, self._original)]
        return models[0].is_file() and models[0].read_bytes() == models[1].read_bytes()


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


def a_part(values: dict[str, Any]) -> None:
    values.update(samples={**values["samples"], "train": 64}, steps_per_epoch=1, steps_done=2)
    values["first_steps"] = values["first_steps"][:2]


LIES: dict[str, tuple[Tamper, str]] = {
    "no result": (lambda folder: (folder / "result.json").unlink(), "no-result"),
    "half a result": (lambda folder: os.truncate(folder / "result.json", 200), "no-result"),
    "fewer epochs": (in_result(lambda v: v.update(epochs_done=1)), "incomplete-result"),
    "NaN loss": (in_result(lambda v: v["epoch_losses"][0].update(train=float("nan"))), "not-finite"),
    "model cut by one byte": (cut_model, "model-damaged"),
    "model gone": (lambda folder: (folder / "output" / "model.pt").unlink(), "model-damaged"),
    "something else as model": (other_model_with_its_hash, "model-does-not-load"),
    "other data": (in_result(lambda v: v["data"].update(sha256="0" * 64)), "wrong-data"),
    "wrong first loss": (in_result(lambda v: v["first_steps"][0].update(loss=0.123)), "wrong-result"),
    "NaN speed": (in_result(lambda v: v["throughput"].update(samples_per_second=float("nan"))), "not-finite"),
    "trained on a part": (in_result(a_part), "incomplete-result"),
    "other weights than the saved ones": (
        in_result(lambda v: v.update(rank_weights_sha256=["0" * 64])),
        "wrong-result",
    ),
    "another device": (in_result(lambda v: v.update(device="cuda")), "wrong-device"),
}


@pytest.fixture(scope="module")
def original(completed: Record, results: Results) -> Path:
    """The folder of a real run that completed."""
    return results.run_folder(completed.intent.run_id)


def test_the_truth_about_a_real_run_is_believed(run_tiny: RunTiny, original: Path, results: Results) -> None:
    record = run_tiny(executor=Replaying(original, lambda _: None))
    assert (record.outcome, record.diagnosis) == ("completed", None), record.detail


@pytest.mark.parametrize("name", LIES)
def test_a_lie_about_a_real_run_is_caught(name: str, run_tiny: RunTiny, original: Path, results: Results) -> None:
    tamper, diagnosis = LIES[name]
    record = run_tiny(executor=Replaying(original, tamper))
    assert (record.outcome, record.diagnosis) == ("failed", diagnosis), record.detail
    back = results.record(record.intent.run_id)
    assert back is not None
    assert (back.outcome, back.detail) == (record.outcome, record.detail)


def test_an_interpreter_that_is_gone_is_a_failed_run(run_tiny: RunTiny, environment: Environment) -> None:
    record = run_tiny(environment=replace(environment, python=Path("/none/python")))
    assert (record.outcome, record.diagnosis) == ("failed", "not-started")
    assert "/none/python" in record.detail


def test_a_loss_that_explodes_is_a_failed_run(run_tiny: RunTiny, results: Results) -> None:
    record = run_tiny(learning_rate=1.0, hidden_layers=(256,) * 12, epochs=20)
    assert (record.outcome, record.diagnosis) == ("failed", "not-finite"), record.detail
    assert record.exit == {"train": "exit 4"}
    assert "no model was written" in record.detail
    assert "no model was written" in (results.run_folder(record.intent.run_id) / "log.txt").read_text()


class Signalling(ProcessExecutor):
    """Sends a signal to the training as soon as it trains."""

    def __init__(self, number: signal.Signals) -> None:
        self._number = number

    def start(self, job: Job) -> ProcessHandle:
        handle = super().start(job)
        number = self._number

        class Struck(ProcessHandle):
            struck = False

            def poll(self) -> Exit | None:
                lines = job.folder / "progress-0.jsonl"
                if not self.struck and lines.exists() and '"step"' in lines.read_text():
                    self._process.send_signal(number)
                    self.struck = True
                return super().poll()

        handle.__class__ = Struck
        return handle


OTHERS = (signal.SIGKILL, signal.SIGABRT)


@pytest.mark.parametrize("number", [signal.SIGSEGV, *(pytest.param(one, marks=pytest.mark.long) for one in OTHERS)])
def test_a_crash_is_failed(number: signal.Signals, run_tiny: RunTiny, results: Results) -> None:
    record = run_tiny(executor=Signalling(number), epochs=100_000)
    assert (record.outcome, record.diagnosis) == ("failed", "crash")
    assert record.exit == {"train": number.name}
    assert processes_of_run(results.run_folder(record.intent.run_id)) == []


def test_a_process_that_stands_still_is_hung(run_tiny: RunTiny, results: Results) -> None:
    # It is stopped in any of the phases that take turns.
    limits = {**LIMITS, "step": 2.0, "validate": 2.0, "checkpoint": 2.0}
    record = run_tiny(executor=Signalling(signal.SIGSTOP), epochs=100_000, limits=limits)
    assert (record.outcome, record.diagnosis) == ("hung", "no-progress")
    assert "rank 0 made no progress" in record.detail
    assert processes_of_run(results.run_folder(record.intent.run_id)) == []


@pytest.mark.long
def test_the_time_limit_is_failed_and_leaves_nothing(run_tiny: RunTiny, results: Results) -> None:
    record = run_tiny(epochs=100_000, time_limit=8, loader_workers=2)
    assert (record.outcome, record.diagnosis) == ("failed", "time-limit")
    assert "still running after 8 s" in record.detail
    assert processes_of_run(results.run_folder(record.intent.run_id)) == []
