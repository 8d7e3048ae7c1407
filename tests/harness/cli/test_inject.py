"""Tests of `matrix inject`, without the faults themselves."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.base.durations import span
from harness.base.errors import UserError
from harness.base.paths import CHECKOUT
from harness.cli import inject
from harness.cli.shared import Settings
from harness.evidence.files.run_files import Record
from harness.faults.injection import Injection
from harness.faults.kinds import KINDS


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(CHECKOUT / "matrix.yaml", tmp_path, None, given=("--matrix", "M", "--results", "R"))


def test_the_list_has_every_kind_and_makes_none(settings: Settings, tmp_path: Path) -> None:
    done = CliRunner().invoke(inject.inject, ["--list", "--json"], obj=settings)
    assert done.exit_code == 0, done.output
    assert [kind["kind"] for kind in json.loads(done.output)["kinds"]] == [kind.name for kind in KINDS]
    some = CliRunner().invoke(inject.inject, ["--list", "segv", "slow"], obj=settings)
    assert [line.split()[0] for line in some.output.splitlines()] == ["kind", "segv", "slow"]
    assert "no alarm" in some.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [[], ["segv", "--all"]])
def test_nothing_is_injected_before_it_was_said_what(words: list[str], settings: Settings) -> None:
    done = CliRunner().invoke(inject.inject, words, obj=settings)
    assert isinstance(done.exception, UserError)
    takes = f"{len(KINDS)} faults, each with a healthy run after it: about {span(30 * len(KINDS))}"
    assert str(done.exception) == f"say what to inject: KINDs, or --all ({takes})"
    assert [line.split()[0] for line in done.output.splitlines()] == ["kind", *(kind.name for kind in KINDS)]


def test_a_cell_is_no_kind_of_fault_and_that_is_said(settings: Settings) -> None:
    done = CliRunner().invoke(inject.inject, ["segv", "cpu-plain"], obj=settings)
    assert isinstance(done.exception, UserError)
    assert str(done.exception).startswith(
        "cpu-plain is a cell: each fault is injected into a short training on the CPU"
    )


def test_an_unknown_kind_names_the_nearest(settings: Settings) -> None:
    with pytest.raises(UserError, match=r"unknown kind of fault 'segf'.*segv"):
        CliRunner().invoke(inject.inject, ["segf"], obj=settings, catch_exceptions=False)


@pytest.mark.parametrize(("trouble", "status"), [((), 0), (("left: process 7",), 1)])
def test_the_exit_status_says_whether_all_are_as_expected(
    trouble: tuple[str, ...], status: int, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fine(Injection):
        @property
        def objections(self) -> list[str]:
            return list(self.trouble)

    monkeypatch.setattr(inject, "make_target", lambda *_: None)
    monkeypatch.setattr(inject, "inject_all", lambda *_: iter([Fine(KINDS[0], "process", trouble=trouble)]))
    done = CliRunner().invoke(inject.inject, [KINDS[0].name, "--json"], obj=settings)
    assert done.exit_code == status
    assert json.loads(done.stdout)["as_expected"] is (status == 0)
    assert "1 fault, each with a healthy run after it: about 30 s (assumed" in done.stderr
    assert done.stderr.splitlines()[1].startswith(
        f"{KINDS[0].name}: no record: {'not as expected: left: process 7' if trouble else 'as expected'}"
    )


def test_what_was_made_before_an_interruption_is_shown(
    settings: Settings, make_record: Callable[..., Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> object:
        yield Injection(KINDS[0], "process", skipped="for a reason")
        yield Injection(KINDS[0], "process", make_record("r1", "hung"))
        raise KeyboardInterrupt("SIGINT")

    monkeypatch.setattr(inject, "make_target", lambda *_: None)
    monkeypatch.setattr(inject, "inject_all", interrupted)
    done = CliRunner().invoke(inject.inject, [KINDS[0].name], obj=settings)
    assert done.exit_code == 130
    assert f"{KINDS[0].name}: skipped: for a reason" in done.stderr
    assert "skipped: for a reason" in done.stdout
    assert " (r1)\n" in done.stderr
    assert re.search(r" --matrix M --results /\S+/faults explain r1\n", done.stderr)
