"""What counts for the choice of the next run, and what does not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from harness.base.storage import file_hash
from harness.campaign import tallies as reading
from harness.campaign.plan import Plan, placements
from harness.campaign.tallies import Tallies
from harness.evidence.run_files import Record
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix
from harness.matrix.workload_options import workload_hash
from harness.search.schedule import Candidate, Tally
from tests.harness.pretending import Pretending

MakeRecord = Callable[..., Record]
CELL = "cpu-plain"
CANDIDATE = Candidate(CELL, "cpu", "plain", "cpu")


@pytest.fixture
def bench(tmp_path: Path, host: HostFacts) -> Pretending:
    made = Pretending.on(tmp_path, host)
    made.data = tmp_path / "merged.csv"
    made.data.write_text("bars")
    return made


@pytest.fixture
def tallies(bench: Pretending, matrix: Matrix, monkeypatch: pytest.MonkeyPatch) -> Tallies:
    monkeypatch.setattr(reading, "current_hashes", lambda *_: {(CELL, "process"): "now"})
    workload = matrix.workloads["quick"]
    runs = tuple(placements(matrix.cells[CELL], workload, 1, ()))
    return Tallies(Plan(workload, runs, (), 0, 0, None, "", 0, None), bench, matrix)


@pytest.fixture
def leave(bench: Pretending, tallies: Tallies, make_record: MakeRecord) -> Callable[..., None]:
    """Leaves the record of a run that counts, or of one that differs in what is given."""
    hash_ = workload_hash(tallies.plan.workload, file_hash(cast("Path", bench.data)))
    usual = {"cell": CELL, "host": bench.host, "environment_hash": "now", "workload_hash": hash_}

    def made(run_id: str, outcome: str = "completed", diagnosis: str | None = None, **changes: Any) -> None:
        record = make_record(run_id, outcome, diagnosis, **{**usual, **changes})
        bench.results.begin(record.intent)
        bench.results.finish(record)

    return made


def test_passes_failures_and_their_causes_are_counted(tallies: Tallies, leave: Callable[..., None]) -> None:
    assert tallies.read() == ({}, {})
    for n, outcome in enumerate(("completed", "failed", "hung", "completed")):
        leave(f"r{n}", outcome, None if outcome == "completed" else f"why-{outcome}")
    known, seconds = tallies.read()
    assert known == {CANDIDATE: Tally(2, 4, {"why-failed": 1, "why-hung": 1})}
    assert seconds == {CELL: 5.0}


def test_a_failure_counts_as_what_its_evidence_explains(
    bench: Pretending, tallies: Tallies, leave: Callable[..., None]
) -> None:
    leave("r1", "failed", "app-error")
    record = bench.results.record("r1")
    assert record is not None
    told = {"rule": "r", "class": "missing-arch", "cause": "c", "remedy": "r", "link": None, "presets": (), "lines": ()}
    bench.results.finish(Record.model_validate({**record.model_dump(), "explanation": told}))
    assert tallies.read()[0] == {CANDIDATE: Tally(0, 1, {"missing-arch": 1})}


@pytest.mark.parametrize(
    "changes",
    [
        {"outcome": "interrupted"},
        {"outcome": "host-fault"},
        {"drill": "crash@3"},
        {"workload_hash": "w" * 64},
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
    assert tallies.read()[0].get(CANDIDATE, Tally()) == Tally()
    leave("r2")
    assert tallies.read()[0] == {CANDIDATE: Tally(1, 1)}


def test_another_kind_of_host_does_not_count(
    bench: Pretending, tallies: Tallies, leave: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    leave("r1", host=bench.host.model_copy(update={"kind": "other"}))
    leave("r2")
    assert tallies.read()[0] == {CANDIDATE: Tally(1, 1)}
    monkeypatch.setattr(reading, "tainted_runs", lambda results, rows: {"r2"})
    assert tallies.read()[0] == {CANDIDATE: Tally(0, 0)}


def test_of_data_that_is_not_made_yet_nothing_is_known(
    bench: Pretending, tallies: Tallies, leave: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave("r1")
    bench.data = None
    monkeypatch.setattr(reading, "synthetic_place", lambda _: tmp_path / "not-made.csv")
    assert tallies.read() == ({}, {})
