"""How the soak measures, and what it keeps."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import watching

COMMAND = ["python", "train", "--run-dir", "/run", "--epochs", "2"]


@pytest.mark.parametrize("watched_first", [True, False])
def test_what_watching_adds_is_the_same_in_either_order(watched_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[bool] = []

    def seconds(command: Sequence[str], variables: dict[str, str]) -> float:
        order.append("--run-dir" in command)
        return 1.5 if order[-1] else 1.0

    monkeypatch.setattr(watching, "processor_seconds", seconds)
    assert watching.added_percent(COMMAND, {}, watched_first=watched_first) == 50
    assert order == [watched_first, not watched_first]


def test_every_other_pair_is_made_in_the_other_order(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[bool] = []

    def added(_command: Sequence[str], _variables: dict[str, str], *, watched_first: bool) -> float:
        order.append(watched_first)
        return 0.0

    intent = SimpleNamespace(commands={"train": COMMAND}, variables={"train": {}})
    record = SimpleNamespace(outcome="completed", seconds=1.0, intent=intent)
    place: Any = SimpleNamespace(run=lambda *_: None, make=lambda _: record)
    monkeypatch.setattr(watching, "added_percent", added)
    watching.cost(place, pairs=4, epochs=1)
    assert order == [True, False, True, False]


def test_figures_that_make_no_page_leave_those_of_before(tmp_path: Path) -> None:
    file = tmp_path / "figures.md"
    watching.write({}, file)
    page = file.read_text(encoding="utf-8")
    with pytest.raises(KeyError):
        watching.write({"healthy": {}}, file)
    assert file.read_text(encoding="utf-8") == page
    assert json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))["parts"] == {}
