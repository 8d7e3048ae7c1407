"""Tests that commands go on when their terminal is closed, because a run that this ended would count."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest.mock import MagicMock

import click
import pytest
from click.testing import CliRunner

from harness.base.closed_terminal import Terminal
from harness.base.paths import CHECKOUT
from harness.cli import inject, isolate, kinds, minimise, run_cell
from harness.cli.in_background import search_shown, through_closed_terminal
from harness.cli.shared import Settings
from harness.evidence.files.run_files import Explanation, Record
from harness.faults.injection import Injection
from harness.faults.kinds import KINDS

T = TypeVar("T")
CELL = "cpu-notes-stable"


def hang_up(result: T) -> T:
    """Send the signal that the kernel sends when a terminal is closed; return `result`."""
    os.kill(os.getpid(), signal.SIGHUP)
    return result


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(CHECKOUT / "matrix.yaml", tmp_path, None)


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a terminal that is closed by the time that the command looks at it."""
    monkeypatch.setattr(Terminal, "is_there", True)
    monkeypatch.setattr(Terminal, "is_closed", lambda _: True)


@pytest.mark.usefixtures("on_terminal")
@pytest.mark.parametrize("watched", ["attaches", "attaches once it has begun", ""])
def test_it_is_said_first_and_what_ends_it_then(
    watched: str, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    with through_closed_terminal(settings, what="search", watched=watched):
        hang_up(None)
    said = capsys.readouterr().err
    assert said.startswith("The search continues if this terminal is closed: ")
    assert f"`kill -INT {os.getpid()}` ends it" in said
    assert (f"watch` {watched}, " in said) is bool(watched)


def test_without_a_terminal_that_was_closed_the_signal_ends_it(settings: Settings) -> None:
    with pytest.raises(KeyboardInterrupt, match="SIGHUP"), through_closed_terminal(settings, what="search"):
        hang_up(None)


def test_a_search_names_the_results_in_which_its_runs_are(
    tmp_path: Path, make_record: Callable[..., Record], capsys: pytest.CaptureFixture[str]
) -> None:
    told = Explanation(rule=None, class_="crash", cause="", remedy="", link=None, presets=(), lines=())
    record = make_record("r1", "failed", "crash").model_copy(update={"explanation": told})
    with search_shown(Settings(CHECKOUT / "matrix.yaml", tmp_path, None, given=("--results", "R"))) as display:
        display.lane(0).finished(record)
    assert "matrix --results R explain r1` says more" in capsys.readouterr().err


@pytest.mark.usefixtures("on_terminal")
@pytest.mark.parametrize(
    ("module", "command", "words", "works"),
    [
        (inject, inject.inject, [KINDS[0].name], {"inject_all": Injection(KINDS[0], "process", skipped="here")}),
        (minimise, minimise.minimise_command, [CELL], {"minimise_cell": SimpleNamespace(conclusion="found")}),
        (minimise, minimise.compare_command, [CELL, "cpu-plain", "--runs", "2"], {"add_runs": "hash"}),
        (run_cell, run_cell.run_cell_command, [CELL], {"run_one": MagicMock(outcome="completed", diagnosis=None)}),
        (isolate, isolate.isolate_command, [CELL], {"isolate_fault": SimpleNamespace(sentence="", answered=True)}),
    ],
)
def test_what_it_runs_is_not_ended_with_the_terminal(
    module: Any,
    command: click.Command,
    words: Sequence[str],
    works: dict[str, Any],
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The search itself is replaced: if the command gets its result, the signal has not ended the command."""
    ((name, result),) = works.items()
    reached: list[str] = []

    def work(*_: object) -> Any:
        found = hang_up(result)
        reached.append(name)
        return [found] if name == "inject_all" else found

    monkeypatch.setattr(module, name, work)
    of_none: dict[str, Callable[..., Any]] = {
        "make_target": lambda *_: None,
        "open_bench_for": lambda *_, **__: (MagicMock(), {CELL: None}),
        "minimum_lines": lambda *_: [],
        "suspect_of": lambda *_: None,
        "question_about": lambda *_: SimpleNamespace(places_in_words=""),
        "plain_cells": lambda *_: [],
    }
    for each, made in of_none.items():
        if hasattr(module, each):
            monkeypatch.setattr(module, each, made)
    done = CliRunner().invoke(command, words, obj=settings)
    assert reached == [name], done.output
    assert done.exit_code != 130


@pytest.mark.usefixtures("on_terminal")
def test_campaigns_of_several_kinds_are_not_told(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    told: list[int] = []

    def start(_: Sequence[str]) -> subprocess.Popen[str]:
        made = subprocess.Popen(
            [sys.executable, "-c", "print('done')"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        monkeypatch.setattr(made, "send_signal", told.append)
        return made

    def wait(processes: Iterable[subprocess.Popen[str]]) -> None:
        hang_up(None)
        for process in processes:
            process.wait()

    monkeypatch.setattr(kinds, "typed_words", lambda: ())
    monkeypatch.setattr(kinds, "_start", start)
    monkeypatch.setattr(kinds, "_wait", wait)
    assert kinds.run_each_kind(settings, {"a": ["n1"], "b": ["n2"]}, as_json=False) == 0
    assert told == []
    assert "n1: done" in capfd.readouterr().err
