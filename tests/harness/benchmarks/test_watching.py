"""How the soak measures, and what it keeps."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import watching


def test_a_run_that_did_not_complete_costs_nothing_that_is_reported() -> None:
    record = SimpleNamespace(outcome="failed", seconds=1.0, detail="why", intent=SimpleNamespace(run_id="r1"))
    target: Any = SimpleNamespace(run=lambda *_: record)
    with pytest.raises(SystemExit, match="r1: failed: why"):
        watching.cost(target, runs=4, epochs=1)


def test_figures_that_make_no_page_leave_those_of_before(tmp_path: Path) -> None:
    file = tmp_path / "figures.md"
    watching.write({}, file)
    page = file.read_text(encoding="utf-8")
    with pytest.raises(KeyError):
        watching.write({"healthy": {}}, file)
    assert file.read_text(encoding="utf-8") == page
    assert json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))["parts"] == {}
