"""Tests of the command `isolate`, as far as it chooses what to run. Nothing is really run."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from benchmarks.kill_tester import STAND_IN_BARS
from harness.base.files.storage import write_json
from harness.cli import isolate
from harness.cli.main import cli
from harness.evidence.files.run_files import Record
from harness.evidence.records import Results
from harness.host.fingerprint import machine_of
from harness.host.simulated import dual_7900xt

CELL = "rocm6.3-torch2.9.1-plain"


Ask = Callable[..., tuple[Any, Any, Any, Result]]


@pytest.fixture
def ask(tmp_path: Path, make_record: Callable[..., Record], monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Return a function that asks about a cell with a run that hung; it returns bench, question, workload and output.

    Its keywords are of the run's intent.
    """
    root, results = dual_7900xt(tmp_path / "host").root, Results(tmp_path / "results")
    host = make_record().intent.host.model_copy(update={"machine": machine_of(root)})
    bars = tmp_path / "merged.csv"
    bars.write_text(STAND_IN_BARS)
    asked: list[Any] = [None, None, None]
    causes = [None]

    def isolate_fault(*found: Any) -> Any:
        asked[:] = found[:3]
        return SimpleNamespace(sentence="found", answered=True, cell=CELL, cause=causes[-1])

    monkeypatch.setattr(isolate, "isolate_fault", isolate_fault)

    def make(*options: str, run_id: str = "hung", cause: Any = None, **values: Any) -> tuple[Any, Any, Any, Result]:
        causes.append(cause)
        data = {"path": str(bars), "sha256": "d" * 64}
        known = {"cell": CELL, "device": "cuda", "gpus": (0, 1), "host": host, "executor": "process", "data": data}
        record = make_record(run_id, "hung", "no-progress", **{**known, **values})
        write_json(results.begin(record.intent) / "record.json", record.model_dump(mode="json", by_alias=True))
        words = ["--root", str(root), "--results", str(results.folder), "isolate", CELL, *options]
        done = CliRunner().invoke(cli, [*words, "--other", "rocm6.2-torch2.5.1-plain"])
        return asked[0], asked[1], asked[2], done

    return make


@pytest.mark.parametrize(
    ("failed", "options", "repeated", "said"),
    [
        (
            "standard",
            (),
            ("standard", "ddp", ((0, 1),), "merged.csv", "process"),
            "workload standard by strategy ddp, as in hung, which failed",
        ),
        (
            "own-data",
            (),
            ("own-data", "ddp", ((0, 1),), "merged.csv", "process"),
            "the training of hung by strategy ddp, which failed, with 2 epochs",
        ),
        (
            "standard",
            ("--workload", "quick", "--executor", "process"),
            ("quick", "single", ((1,), (0,)), None, "process"),
            "workload quick",
        ),
    ],
)
def test_it_repeats_what_the_failures_did_unless_a_workload_is_named(
    failed: str, options: tuple[str, ...], repeated: tuple[Any, ...], said: str, ask: Ask
) -> None:
    bench, question, workload, done = ask(*options, workload=failed, options={"strategy": "ddp"})
    data = bench.data and bench.data.name
    assert (workload.name, workload.strategy, question.gpus, data, bench.executor_name) == repeated, done
    assert f"{said}; new runs in {CELL}" in " ".join(done.stderr.split())
    assert "; at most 40, each " in done.stderr


@pytest.mark.parametrize(
    ("cause", "following"),
    [
        ("cell", f"minimise {CELL}\n  It finds which variables of its preset matter."),
        ("stack", "explain hung\n  It says what helps; `"),
        ("other-gpu", "doctor\n  It looks for what is wrong with this host and its GPUs; if it finds nothing, swap"),
        ("host", "doctor\n  It looks for what is wrong with this host and its GPUs."),
        (None, None),
    ],
)
def test_an_answer_names_what_to_type_next(cause: str | None, following: str | None, ask: Ask) -> None:
    *_, done = ask(workload="quick", options={}, gpus=(0,), cause=cause)
    assert ("Next: " in done.stdout) == (following is not None), done
    assert not following or following in done.stdout


def test_the_report_has_the_answer_and_a_folder_that_cannot_be_written_does_not_hide_it(
    ask: Ask, tmp_path: Path
) -> None:
    ask(workload="quick", options={}, gpus=(0,))
    assert (tmp_path / "results/report.html").is_file()
    (tmp_path / "results/report.md").unlink()
    (tmp_path / "results/report.md").mkdir()
    *_, done = ask(run_id="again", workload="quick", options={}, gpus=(0,))
    assert "found" in done.stdout
    assert "the report could not be updated after this search" in done.stderr


def test_an_answer_is_printed_before_the_report_is_written(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(isolate, "report_on", interrupted)
    *_, done = ask(workload="quick", options={}, gpus=(0,))
    assert "found" in done.stdout


def test_without_a_failed_run_there_is_none_to_explain() -> None:
    answer: Any = SimpleNamespace(cause="stack", cell=CELL)
    settings: Any = SimpleNamespace(invocation=SimpleNamespace(command=None))
    assert isolate.command_after(settings, answer, "") is None


def test_a_failed_training_of_the_users_own_data_is_repeated_on_its_gpu_by_its_rules(ask: Ask) -> None:
    options = {"rows": "session", "as_of": "open", "accepted": ["vix_range"], "epochs": 50}
    options |= {"model": ["attention"], "batch_size": 4096, "hidden_layers": [512, 512], "lookback": 40}
    _, question, workload, done = ask(workload="own-data", options=options, gpus=(0,), time_limit=5000)
    assert (question.suspect.failures, question.suspect.last, question.gpus[0]) == (1, "hung", (0,)), done
    assert (workload.rows, workload.as_of, workload.accepted) == ("session", "open", ("vix_range",))
    assert (workload.model, workload.batch_size, workload.hidden_layers) == (("attention",), 4096, (512, 512))
    # Only the number of epochs is smaller, so that the limit on the time of the training is not too short.
    assert (workload.epochs, workload.lookback, workload.time_limit) == (2, 40, 5000)


def test_the_runs_of_a_search_are_not_repeated_by_the_next_one(ask: Ask) -> None:
    options = {"accepted": ["vix_range"]}
    ask(workload="own-data", options=options, gpus=(0,))
    *_, workload, done = ask(
        run_id="later", workload="quick", options={}, gpus=(0,), campaign="minimise-x", started=2e9
    )
    assert workload.accepted == ("vix_range",), done


def test_where_only_the_runs_of_a_search_failed_one_of_them_is_repeated(ask: Ask) -> None:
    _, question, workload, done = ask(workload="standard", gpus=(0,), campaign="minimise-x")
    assert (workload.name, question.suspect.failures, question.gpus[0]) == ("standard", 1, (0,)), done


@pytest.mark.parametrize("options", [{"program": {"command": "x"}}, {"name": "x", "synthetic": {}}])
def test_what_is_no_option_of_the_app_is_not_taken_from_a_record(ask: Ask, options: dict[str, Any]) -> None:
    _, _, workload, done = ask(workload="own-data", options=options, gpus=(0,))
    assert (workload.program, workload.name, workload.synthetic.sessions > 1) == (None, "own-data", True), done


def test_options_of_a_record_that_make_no_workload_are_one_line(ask: Ask) -> None:
    *_, done = ask(workload="own-data", options={"batch_size": {"a": 1}}, gpus=(0,))
    assert "hung: this version does not accept its option batch_size; name a --workload" in str(done.exception)


@pytest.mark.parametrize(
    ("path", "said"), [("/nowhere/gone.csv", "are no longer at /nowhere/gone.csv"), ("<data>", "are on another host")]
)
def test_data_that_are_gone_are_asked_for(ask: Ask, path: str, said: str) -> None:
    *_, done = ask(workload="own-data", options={}, data={"path": path, "sha256": "d" * 64})
    assert f"the data of hung {said}; give them with --data" in str(done.exception)
