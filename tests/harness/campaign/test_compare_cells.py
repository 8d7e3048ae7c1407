"""Tests of making the runs that a comparison lacks. Nothing is really run."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.base.errors import UserError
from harness.campaign.bench.plan import PlannedRun
from harness.campaign.controls import comparisons
from harness.campaign.controls.comparisons import add_runs
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.files.run_files import Record
from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix
from tests.harness.pretending import RecordingDisplay
from tests.harness.scripted_bench import ScriptedBench

CELLS = ("cpu-plain", "cpu-no-sdma")


@pytest.fixture
def bench(
    tmp_path: Path, host: HostFacts, make_record: Callable[..., Record], monkeypatch: pytest.MonkeyPatch
) -> ScriptedBench:
    monkeypatch.setattr(comparisons, "resolve_run", lambda run, _: SimpleNamespace(intent=run.intent(None)))
    results = Results(tmp_path / "results")
    bench = ScriptedBench(results, ProcessExecutor(), host, ())
    bench.make_record, bench.outcome_of, bench.made = make_record, lambda _: "completed", []
    return bench


def add(bench: ScriptedBench, matrix: Matrix, runs: int) -> str:
    placed = {cell: PlannedRun(matrix.cells[cell], 1) for cell in CELLS}
    return add_runs(bench, placed, matrix.workloads["quick"], runs, RecordingDisplay())


def counted(bench: ScriptedBench) -> Counter[tuple[str, str]]:
    return Counter((record.intent.cell, record.outcome) for record in bench.results.records())


def test_runs_are_made_until_each_has_so_many(bench: ScriptedBench, matrix: Matrix) -> None:
    assert add(bench, matrix, 3) == "b" * 64
    assert counted(bench) == {(cell, "completed"): 3 for cell in CELLS}
    add(bench, matrix, 5)
    assert counted(bench) == {(cell, "completed"): 5 for cell in CELLS}
    bench.made = []
    add(bench, matrix, 4)
    assert bench.made == []


def test_cells_take_turns(bench: ScriptedBench, matrix: Matrix) -> None:
    order: list[str] = []
    bench.outcome_of = lambda cell: order.append(cell.id) or "failed"  # type: ignore[func-returns-value]
    add(bench, matrix, 20)
    assert all(set(order[at : at + 2]) == set(CELLS) for at in range(0, 40, 2))
    assert len({order[at] for at in range(0, 40, 2)}) == 2


def test_what_says_nothing_does_not_count(bench: ScriptedBench, matrix: Matrix) -> None:
    interrupted = iter(["interrupted", "interrupted"])
    bench.outcome_of = lambda _: next(interrupted, "completed")
    for _ in range(2):
        with pytest.raises(UserError, match="continues"):
            add(bench, matrix, 3)
    add(bench, matrix, 3)
    assert sum(n for (_, outcome), n in counted(bench).items() if outcome == "completed") == 6
    assert sum(counted(bench).values()) == 8
