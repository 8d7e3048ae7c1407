"""Tests of `matrix minimise RUN --over ...`, without the runs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness.base.errors import UserError
from harness.base.paths import CHECKOUT
from harness.campaign.controls.shrink_over import Shrunk
from harness.cli.minimise import minimise_command
from harness.cli.minimise_run import cell_meant, minimise_run, next_command, shrunk_lines
from harness.cli.shared import Settings
from harness.evidence.files.run_files import Record
from harness.matrix.programs import Program

FOUND = Shrunk(
    over="data",
    conclusion="found",
    whole="40 sessions",
    smallest="3 sessions (2024-01-03 to 2024-01-05)",
    rate=0.5,
    runs=31,
    others=0,
    results=Path("results/minimise/data-x"),
    file=Path("part.csv"),
)
NONE: dict[str, Any] = dict.fromkeys(("python", "executor"))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(CHECKOUT / "matrix.yaml", tmp_path, None)


@pytest.fixture
def crashed(settings: Settings, make_record: Callable[..., Record]) -> Record:
    record = make_record("the-run", "failed", workload="quick").model_copy(update={"diagnosis": "crash"})
    settings.results.begin(record.intent)
    settings.results.finish(record)
    return record


@pytest.mark.parametrize(
    ("changes", "said", "next_"),
    [
        ({}, "still failed (crash) with 3 sessions (2024-01-03 to 2024-01-05), of 40", "run-cell cpu-plain --workload"),
        ({"conclusion": "not-localised", "file": None}, "it is not the data", "--over steps"),
        ({"conclusion": "not-seen-again", "file": None, "smallest": None}, "was not seen again", "status cpu-plain"),
        ({"conclusion": "not-enough-runs", "file": None, "smallest": None}, "did not suffice", "--max-runs 600"),
        ({"over": "steps", "file": None}, "still failed", "--over shape"),
        ({"over": "shape", "file": None}, "still failed", "report-bug the-run"),
    ],
)
def test_every_answer_is_a_sentence_and_one_command(
    changes: dict[str, Any], said: str, next_: str, settings: Settings, crashed: Record
) -> None:
    found = replace(FOUND, **changes)
    assert said in list(shrunk_lines(crashed, found))[-1]
    assert next_ in next_command(settings, crashed, found, 300, NONE)


def test_what_failed_otherwise_is_counted(crashed: Record) -> None:
    assert "2 of them failed in another way" in next(shrunk_lines(crashed, replace(FOUND, others=2)))


def test_a_failed_run_stands_for_its_cell(
    settings: Settings, crashed: Record, make_record: Callable[..., Record]
) -> None:
    assert cell_meant(settings, crashed.intent.run_id, None) == ("cpu-plain", crashed.intent)
    for mistyped in ("cpu-plan", "2026"):
        with pytest.raises(UserError, match=f"unknown cell or run '{mistyped}'"):
            cell_meant(settings, mistyped, None)
    again = make_record("the-run-again", "failed")
    settings.results.begin(again.intent)
    settings.results.finish(again)
    with pytest.raises(UserError, match="2 runs begin with 'the-', the first "):
        cell_meant(settings, "the-", None)
    gone = make_record("gone", "failed", workload="gone")
    settings.results.begin(gone.intent)
    settings.results.finish(gone)
    with pytest.raises(UserError, match="gone: ran workload gone that the matrix file does not have; put it under"):
        cell_meant(settings, "gone", None)
    stopped = make_record("stopped", "interrupted")
    settings.results.begin(stopped.intent)
    settings.results.finish(stopped)
    with pytest.raises(UserError, match="interrupted: there is no failure to look for"):
        cell_meant(settings, "stopped", None)


def test_of_a_program_of_the_users_own_variables_alone_can_be_left_out(
    settings: Settings, make_record: Callable[..., Record]
) -> None:
    program = Program(command=("python", "x.py"), source="code")
    record = make_record("own", "failed", workload="app-code", program=program).model_copy(
        update={"diagnosis": "crash"}
    )
    settings.results.begin(record.intent)
    settings.results.finish(record)
    with pytest.raises(UserError, match="of whose data, steps and shape nothing is known here; --over variables"):
        minimise_run(settings, "own", "steps", 9, {**NONE, "workload": None, "lookback": None}, as_json=False)
    with pytest.raises(UserError, match="that the matrix file does not have; put it under `workloads:`"):
        cell_meant(settings, "own", None)
    assert cell_meant(settings, "own", "mine") == ("cpu-plain", None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("cpu-plain", "--over", "data"), "is a cell"),
        (("the-run", "--over", "data", "--workload", "quick"), "leave it out"),
        (("nowhere", "--over", "steps"), "nowhere"),
    ],
)
@pytest.mark.usefixtures("crashed")
def test_what_cannot_be_meant_is_refused(words: tuple[str, ...], said: str, settings: Settings) -> None:
    with pytest.raises(UserError, match=said):
        CliRunner().invoke(minimise_command, words, obj=settings, catch_exceptions=False)
