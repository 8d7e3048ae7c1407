"""Tests of the answer of the last campaign, which is remembered until another run is made."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from harness.campaign.answered import Command, LastAnswer, last_answer, remember_answer
from harness.cli.run import _answer
from harness.evidence.files.run_files import Record
from harness.evidence.records import Results
from harness.evidence.verdicts.recommend import NamedCell
from harness.matrix.cells import Matrix
from harness.report.write import built_report

NAMED = NamedCell("cpu-plain", "single")
ANSWER = LastAnswer(
    NAMED, "No stack can be made.", Command(command="matrix run", why="continues, once one can be made")
)


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "results")


def test_another_run_leaves_the_cell_that_was_named_and_so_does_another_user(
    results: Results, make_record: Callable[..., Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    results.finish(make_record("one"))
    remember_answer(results, "m", ANSWER)
    assert last_answer(results, "m") == ANSWER
    with monkeypatch.context() as patched:
        # Another user who shares the folder could make this user type any command.
        patched.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert last_answer(results, "m") == LastAnswer(NAMED)
    assert last_answer(results, "of another machine") == LastAnswer()
    results.finish(make_record("two", started=2e9))
    assert last_answer(results, "m") == LastAnswer(NAMED)


def test_a_run_that_is_struck_out_makes_the_sentence_out_of_date(
    results: Results, make_record: Callable[..., Record]
) -> None:
    results.finish(make_record("one"))
    results.note_changed("of-before")
    remember_answer(results, "m", ANSWER)
    assert last_answer(results, "m") == ANSWER
    results.note_changed("one")
    assert last_answer(results, "m") == LastAnswer(NAMED)


@pytest.mark.parametrize("text", ["", "[]", '{"named": 5}', '{"named": {"cell": "x"}}', "\xff"])
def test_a_damaged_file_is_as_none(results: Results, text: str) -> None:
    remember_answer(results, "m", ANSWER)
    (file,) = (results.folder / "campaigns").iterdir()
    file.write_text(text, encoding="latin-1")
    assert last_answer(results, "m") == LastAnswer()


def test_a_file_of_before_names_the_cell(results: Results) -> None:
    remember_answer(results, "m", ANSWER)
    (file,) = (results.folder / "campaigns").iterdir()
    file.write_text(json.dumps({"schema": 2, "named": {"cell": "cpu-plain", "strategy": "single"}}), encoding="utf-8")
    assert last_answer(results, "m") == LastAnswer(NAMED)


def test_a_report_made_later_says_the_same(
    results: Results, matrix: Matrix, make_record: Callable[..., Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = make_record("one")
    monkeypatch.setattr("harness.report.write.host_of", lambda *_: record.intent.host)
    results.finish(record)
    remember_answer(results, record.intent.host.machine, ANSWER)
    answer = built_report(results, matrix).report.answer
    assert ANSWER.sentence is not None
    assert ANSWER.sentence in answer.sentence
    assert (answer.next.command, answer.next.why) == ("matrix run", "continues, once one can be made")


def test_a_report_says_that_the_runs_of_the_answer_are_stale(
    results: Results, matrix: Matrix, make_record: Callable[..., Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = make_record("one", cell="cpu-plain")
    now = {("cpu-plain", record.intent.executor): "another"}
    monkeypatch.setattr("harness.report.write.host_of", lambda *_: record.intent.host)
    monkeypatch.setattr("harness.evidence.verdicts.of_results.current_hashes", lambda *_: now)
    results.finish(record)
    remember_answer(results, record.intent.host.machine, LastAnswer(NAMED, "It is good."))
    assert built_report(results, matrix).report.answer.sentence.startswith("It is good. But all its runs are stale: ")


@pytest.mark.parametrize("program", [None, "python train.py"])
def test_a_campaign_of_a_program_of_the_users_own_leaves_the_cell_that_was_named_before_it(
    results: Results, program: str | None
) -> None:
    """Like its runs, the campaign of a user's program says nothing about training with this project's app."""
    remember_answer(results, "m", ANSWER)
    other = NamedCell("cpu-no-sdma", "single")
    conclusion = SimpleNamespace(named=other, sentence="It is good.", continues=False)
    ended: Any = SimpleNamespace(conclusion=conclusion, error=None, interrupted=False, succeeded=True)
    plan = SimpleNamespace(workload=SimpleNamespace(program=program))
    prepared: Any = SimpleNamespace(plan=plan, bench=SimpleNamespace(lacks_base=None))
    settings: Any = SimpleNamespace(results=results)
    with click.Context(click.Command("run")):
        told = _answer(ended, prepared, settings, "m")
    assert told == LastAnswer(NAMED if program else other, "It is good.", None, program is not None)
    remember_answer(results, "m", told)
    assert last_answer(results, "m") == told
