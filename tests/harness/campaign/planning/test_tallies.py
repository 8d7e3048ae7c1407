"""Tests of which runs count for the choice of the next run."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from harness.base.errors import UserError
from harness.campaign.bench.plan import Plan, placements
from harness.campaign.planning import tallies as reading
from harness.campaign.planning.prepare import PreparedCampaign
from harness.campaign.planning.tallies import Tallies
from harness.environments.capabilities import capabilities_of
from harness.evidence.files.run_files import Record
from harness.evidence.records import Results
from harness.evidence.verdicts import of_results
from harness.evidence.verdicts.counting import FAILED, NOT_BEGUN
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix
from harness.screen.live import squares_of
from harness.search.schedule import Candidate, Tally
from harness.search.stages.runs import StageHost
from harness.search.stages.search import StageSearch
from tests.harness.pretending import FakeEnvironment, InstantBench

if TYPE_CHECKING:
    from harness.environments.environment import Environment

MakeRecord = Callable[..., Record]
CELL = "cpu-plain"
CANDIDATE = Candidate(CELL, "cpu", "plain", "cpu")


@pytest.fixture
def bench(tmp_path: Path, host: HostFacts) -> InstantBench:
    made = InstantBench.on(tmp_path, host)
    made.data = tmp_path / "merged.csv"
    made.data.write_text("bars")
    return made


@pytest.fixture
def tallies(bench: InstantBench, matrix: Matrix, monkeypatch: pytest.MonkeyPatch) -> Tallies:
    monkeypatch.setattr(reading, "current_hashes", lambda *_: {(CELL, "process"): "now"})
    workload = matrix.workloads["quick"]
    runs = tuple(placements(matrix.cells[CELL], workload, 1, ()))
    return Tallies(Plan(workload, runs, (), 0, 0, None, "", 0, None), bench, matrix)


@pytest.fixture
def leave(bench: InstantBench, tallies: Tallies, make_record: MakeRecord) -> Callable[..., None]:
    """Return a function that leaves the record of a run that counts; keywords change fields of its intent."""
    (planned,) = tallies.plan.runs
    usual = {"cell": CELL, "host": bench.host, "environment_hash": "now", "family": tallies.family_of(planned)}

    def made(run_id: str, outcome: str = "completed", diagnosis: str | None = None, **changes: Any) -> None:
        record = make_record(run_id, outcome, diagnosis, **{**usual, **changes})
        bench.results.begin(record.intent)
        bench.results.finish(record)

    return made


def counted(tallies: Tallies) -> dict[Candidate, tuple[int, int, dict[str, int]]]:
    return {one: (tally.passes, tally.runs, dict(tally.diagnoses)) for one, tally in tallies.read()[0].items()}


def test_passes_failures_and_their_causes_are_counted(tallies: Tallies, leave: Callable[..., None]) -> None:
    assert tallies.read() == ({}, {})
    for n, outcome in enumerate(("completed", "failed", "hung", "completed")):
        leave(f"r{n}", outcome, None if outcome == "completed" else f"why-{outcome}")
    known, seconds = tallies.read()
    assert counted(tallies) == {CANDIDATE: (2, 4, {"why-failed": 1, "why-hung": 1})}
    assert (known[CANDIDATE].shown.starts, known[CANDIDATE].shown.hours) == (4, 2.0)
    assert seconds == {CELL: 3605.0}


def test_a_failure_counts_as_what_its_evidence_explains(
    bench: InstantBench, tallies: Tallies, leave: Callable[..., None]
) -> None:
    leave("r1", "failed", "app-error")
    record = bench.results.record("r1")
    assert record is not None
    told = {"rule": "r", "class": "missing-arch", "cause": "c", "remedy": "r", "link": None, "presets": (), "lines": ()}
    bench.results.finish(Record.model_validate({**record.model_dump(), "explanation": told}))
    assert counted(tallies) == {CANDIDATE: (0, 1, {"missing-arch": 1})}


def test_a_failure_whose_record_is_damaged_counts_by_its_diagnosis(
    tallies: Tallies, leave: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*_: object) -> None:
        raise UserError("record.json: is damaged")

    leave("r1", "failed", "app-error")
    assert tallies.tried()
    monkeypatch.setattr(Results, "record", damaged)
    assert counted(tallies) == {CANDIDATE: (0, 1, {"app-error": 1})}


@pytest.mark.parametrize(
    "changes",
    [
        {"outcome": "interrupted"},
        {"outcome": "host-fault", "diagnosis": NOT_BEGUN},
        {"injected_fault": "crash@3"},
        {"family": "w" * 64},
        {"executor": "docker"},
        {"environment_hash": "older"},
        {"options": {"strategy": "ddp", "devices": 2}},
        {"cell": "cpu-no-sdma"},
    ],
)
def test_what_is_no_evidence_of_this_does_not_count(
    changes: dict[str, Any], tallies: Tallies, leave: Callable[..., None]
) -> None:
    leave("r1", **changes)
    assert tallies.read()[0].get(CANDIDATE, Tally()).runs == 0
    leave("r2")
    assert counted(tallies) == {CANDIDATE: (1, 1, {})}


def test_imported_runs_count_neither_as_runs_nor_as_candidates(
    bench: InstantBench, tallies: Tallies, leave: Callable[..., None]
) -> None:
    leave("r1")
    bench.results.folder_of("r1").imported.write_text("{}", encoding="utf-8")
    assert tallies.read() == ({}, {})
    assert tallies.tried() == set()
    leave("r2")
    assert counted(tallies) == {CANDIDATE: (1, 1, {})}
    assert tallies.tried()


def test_another_kind_of_host_does_not_count(
    bench: InstantBench, tallies: Tallies, leave: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    leave("r1", host=bench.host.model_copy(update={"kind": "other"}))
    leave("r2")
    assert counted(tallies) == {CANDIDATE: (1, 1, {})}
    monkeypatch.setattr(reading, "counts_of", lambda results, rows: dict.fromkeys(["r1", "r2"], FAILED))
    assert counted(tallies) == {CANDIDATE: (0, 1, {})}


def test_runs_of_other_lengths_and_data_are_counted_together(tallies: Tallies, leave: Callable[..., None]) -> None:
    """Failures are counted per hour of training, whatever the runs trained on."""
    leave("r1", workload_hash="1" * 64)
    leave("r2", "failed", workload_hash="2" * 64)
    assert [(tally.passes, tally.runs) for tally in tallies.read()[0].values()] == [(1, 2)]


def test_cells_that_were_tried_are_those_of_the_family_here(
    bench: InstantBench, tallies: Tallies, leave: Callable[..., None]
) -> None:
    leave("r1", cell="another")
    leave("r2", cell="other-family", family="w" * 64)
    leave("r3", cell="elsewhere", host=bench.host.model_copy(update={"kind": "other"}))
    assert tallies.tried() == {("another", "cpu")}


def test_whether_a_run_was_made_since_the_boot_is_known(
    bench: InstantBench, tallies: Tallies, leave: Callable[..., None]
) -> None:
    leave("r1", host=bench.host.model_copy(update={"boot_id": "the boot before"}))
    assert [(tally.shown.boots, tally.on_this_boot) for tally in tallies.read()[0].values()] == [(1, False)]
    leave("r2")
    assert [(tally.shown.boots, tally.on_this_boot) for tally in tallies.read()[0].values()] == [(2, True)]


def test_runs_in_an_image_of_uncommitted_changes_count_only_where_there_are_no_others(
    tallies: Tallies, leave: Callable[..., None]
) -> None:
    leave("dirty1", revision=f"{'c' * 40}-dirty")
    leave("dirty2", revision=f"{'c' * 40}-dirty")
    assert counted(tallies) == {CANDIDATE: (2, 2, {})}
    leave("clean", revision="c" * 40)
    assert counted(tallies) == {CANDIDATE: (1, 1, {})}


def test_runs_in_an_image_of_uncommitted_changes_count_where_the_next_runs_use_one(
    bench: InstantBench, tallies: Tallies, leave: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    dirty = FakeEnvironment("cpu", revision=f"{'c' * 40}-dirty")
    monkeypatch.setattr(bench, "made_hashes", lambda *_: {})
    monkeypatch.setattr(bench, "environment", lambda *_: dirty)
    leave("clean1", revision="c" * 40)
    leave("clean2", revision="c" * 40)
    leave("dirty", "failed", "app-error", revision=dirty.revision)
    assert counted(tallies) == {CANDIDATE: (2, 2, {})}
    bench.use_environment(tallies.plan.runs[0].cell, cast("Environment", dirty))
    assert counted(tallies) == {CANDIDATE: (0, 1, {"app-error": 1})}


def test_the_grid_of_a_campaign_shows_its_own_workload_on_its_own_data(
    bench: InstantBench, tallies: Tallies, leave: Callable[..., None], matrix: Matrix
) -> None:
    prepared = PreparedCampaign(tallies.plan, capabilities_of(bench.host, None, [], None), bench, matrix)
    leave("another-lookback", family="f")
    leave("other-data", data={"path": "/x/other.csv", "sha256": "a" * 64})
    leave("synthetic", data={"path": "/x/synthetic-100-7-ab.csv", "sha256": "b" * 64})
    assert prepared.verdicts_here() == []
    leave("mine", workload="under-an-older-name")
    assert [one.run_ids for one in prepared.verdicts_here()] == [("mine",)]
    # The name of the file, after links are resolved, tells synthetic bars from the user's.
    assert bench.data is not None
    bench.data = Path(shutil.copy(bench.data, bench.data.with_name("synthetic-90.csv")))
    assert [one.run_ids for one in prepared.verdicts_here()] == [("synthetic",)]
    bench.data = bench.data.with_name("link.csv")
    bench.data.symlink_to("merged.csv")
    assert [one.run_ids for one in prepared.verdicts_here()] == [("mine",)]


def test_the_grid_of_a_campaign_in_stages_shows_the_last_stage_that_each_cell_came_to(
    bench: InstantBench,
    tallies: Tallies,
    leave: Callable[..., None],
    matrix: Matrix,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(of_results, "current_hashes", lambda *_: {(CELL, "process"): "now"})
    cell = matrix.cells[CELL]
    able = capabilities_of(bench.host, None, [], None)
    stages = StageSearch(matrix, {cell.stack.name: [cell]}, StageHost((), ()))
    prepared = PreparedCampaign(tallies.plan, able, bench, matrix, stages)
    leave("smoke")
    leave("one-gpu", "failed", family="of another stage", started=2e9)
    leave("other-data", data={"path": "/x/other.csv", "sha256": "a" * 64}, started=3e9)
    [square] = squares_of([cell], prepared.verdicts_here())
    assert (square.tier, square.passes, square.runs) == ("failing", 0, 1)
    # What a stage tries where the plan's cells fail belongs to the grid, too.
    leave("tried", cell="cpu-no-sdma")
    leave("other-stack", cell="rocm6.3-torch2.9.1-plain", stack="rocm6.3-torch2.9.1")
    leave("of-a-search", cell="cpu-no-sdma~HSA_ENABLE_SDMA")
    assert {one.cell for one in prepared.verdicts_here()} == {CELL, "cpu-no-sdma"}
    assert {one.cell for one in replace(prepared, stages=None).verdicts_here()} == {CELL}
