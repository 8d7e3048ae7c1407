from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

import pytest
from rich.console import Console

from harness.evidence.index import Row
from harness.evidence.run_files import Record
from harness.evidence.verdicts.verdict import Tier, Verdict, judge, tier_of
from harness.matrix.cells import Verdicts
from harness.screen.tables import verdicts_table

Make = Callable[..., Record]


def judged(rows: Iterable[Row], current: Mapping[tuple[str, str], str], tainted: Collection[str] = ()) -> list[Verdict]:
    return judge(rows, current, Verdicts(), tainted)


@pytest.fixture
def row(make_record: Make) -> Row:
    return Row.of(make_record())


def test_runs_of_one_identity_are_counted_together(row: Row) -> None:
    rows = [row, replace(row, run_id="r2", outcome="failed", diagnosis="crash"), replace(row, run_id="r3")]
    (status,) = judged(rows, {})
    assert (status.passes, status.runs, status.run_ids) == (2, 3, (row.run_id, "r2", "r3"))
    assert {name: n for name, n in status.outcomes.items() if n} == {"completed": 2, "failed": 1}
    assert status.diagnoses == {"crash": 1}


@pytest.mark.parametrize("field", ["environment_hash", "workload_hash", "host_kind", "executor", "scope"])
def test_evidence_of_different_identity_is_never_pooled(field: str, row: Row) -> None:
    changes = {field: "another"}
    assert [s.runs for s in judged([row, replace(row, run_id="r2", **changes)], {})] == [1, 1]  # type: ignore[arg-type]


def test_records_of_an_environment_that_changed_are_stale(row: Row) -> None:
    old = replace(row, run_id="r0", environment_hash="old")
    statuses = judged([old, row], {(row.cell, row.executor): row.environment_hash})
    assert {s.environment_hash: s.stale for s in statuses} == {"old": True, row.environment_hash: False}


def test_where_it_is_not_known_what_a_cell_would_be_now_the_newest_counts(row: Row) -> None:
    old = replace(row, run_id="r0", environment_hash="old", started=row.started - 1)
    statuses = judged([row, old], {})
    assert {s.environment_hash: s.stale for s in statuses} == {"old": True, row.environment_hash: False}


def test_a_drill_is_evidence_of_nothing(row: Row) -> None:
    drilled = replace(row, run_id="r2", outcome="failed", diagnosis="drill", drill="flip-gradient@3/1")
    assert [status.runs for status in judged([row, drilled], {})] == [1]
    assert judged([drilled], {}) == []


def test_tainted_runs_are_counted_apart(row: Row) -> None:
    failed = replace(row, run_id="r2", outcome="failed", diagnosis="crash")
    tainted = replace(failed, run_id="r3", diagnosis="out-of-memory")
    (status,) = judged([row, failed, tainted], {}, {"r3", "r9"})
    assert {name: n for name, n in status.outcomes.items() if n} == {"completed": 1, "failed": 1}
    assert status.diagnoses == {"crash": 1}
    assert (status.not_counted, status.runs) == ({"tainted": 1}, 2)


def test_the_table_says_how_many_are_tainted(row: Row) -> None:
    tainted = replace(row, run_id="r2", outcome="failed", diagnosis="crash")
    console = Console(width=200)
    with console.capture() as shown:
        console.print(verdicts_table(judged([row, tainted], {}, {"r2"})))
    assert "1 of 1" in shown.get()
    assert "1 tainted" in shown.get()
    assert "crash" not in shown.get()


def test_what_is_no_fault_of_the_cell_is_not_counted(row: Row) -> None:
    others = [replace(row, run_id=name, outcome=name, diagnosis="why") for name in ("interrupted", "host-fault")]
    (verdict,) = judged([row, *others], {})
    assert (verdict.passes, verdict.runs, verdict.tier) == (1, 1, "seen")
    assert verdict.not_counted == {"interrupted": 1, "host-fault": 1}
    assert (verdict.diagnoses, verdict.diagnosis) == ({}, None)
    (verdict,) = judged(others, {})
    assert (verdict.runs, verdict.tier, verdict.low, verdict.high) == (0, "untested", 0, 1)


def test_the_dominant_diagnosis_comes_first(row: Row) -> None:
    told = ["crash", "hang-backward", "hang-backward"]
    rows = [replace(row, run_id=f"r{n}", outcome="failed", diagnosis=why) for n, why in enumerate(told)]
    (verdict,) = judged(rows, {})
    assert (verdict.diagnosis, list(verdict.diagnoses.values()), verdict.tier) == ("hang-backward", [2, 1], "failing")


def test_a_run_that_was_imported_does_not_say_what_a_cell_would_be_here(row: Row) -> None:
    elsewhere = replace(row, run_id="r2", environment_hash="other", imported=True, started=row.started + 1)
    here, there = sorted(judged([row, elsewhere], {}), key=lambda verdict: verdict.imported)
    assert (here.stale, here.imported, there.stale, there.imported) == (False, 0, True, 1)


@pytest.mark.parametrize(
    ("passes", "runs", "tier"),
    [
        (0, 0, "untested"),
        (0, 1, "failing"),
        (1, 1, "seen"),
        (4, 4, "seen"),
        (5, 5, "candidate"),
        (15, 15, "candidate"),
        (16, 16, "good"),
        (32, 32, "good"),
        (33, 33, "known-good"),
        (65, 66, "known-good"),
        (31, 32, "good"),
        (41, 43, "good"),
        (40, 42, "flaky"),
        (88, 90, "known-good"),
        (87, 89, "good"),
        (30, 31, "flaky"),
        (1, 2, "flaky"),
        (1, 30, "failing"),
        (50, 100, "flaky"),
    ],
)
def test_tiers(passes: int, runs: int, tier: Tier) -> None:
    assert tier_of(passes, runs, Verdicts()) == tier
