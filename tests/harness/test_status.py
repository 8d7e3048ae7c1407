from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console

from harness.contracts import Record
from harness.index import Row
from harness.status import summarise
from harness.tables import status_table

Make = Callable[..., Record]


@pytest.fixture
def row(make_record: Make) -> Row:
    return Row.of(make_record())


def test_runs_of_one_identity_are_counted_together(row: Row) -> None:
    rows = [row, replace(row, run_id="r2", outcome="failed", diagnosis="crash"), replace(row, run_id="r3")]
    (status,) = summarise(rows, {})
    assert status.runs == 3
    assert {name: n for name, n in status.outcomes.items() if n} == {"completed": 2, "failed": 1}
    assert status.diagnoses == {"crash": 1}


@pytest.mark.parametrize("field", ["environment_hash", "workload_hash", "host_kind", "executor"])
def test_evidence_of_different_identity_is_never_pooled(field: str, row: Row) -> None:
    changes = {field: "another"}
    assert [s.runs for s in summarise([row, replace(row, run_id="r2", **changes)], {})] == [1, 1]  # type: ignore[arg-type]


def test_records_of_an_environment_that_changed_are_stale(row: Row) -> None:
    old = replace(row, run_id="r0", environment_hash="old")
    statuses = summarise([old, row], {(row.cell, row.executor): row.environment_hash})
    assert {s.environment_hash: s.stale for s in statuses} == {"old": True, row.environment_hash: False}


def test_where_it_is_not_known_what_a_cell_would_be_now_the_newest_counts(row: Row) -> None:
    old = replace(row, run_id="r0", environment_hash="old", started=row.started - 1)
    statuses = summarise([row, old], {})
    assert {s.environment_hash: s.stale for s in statuses} == {"old": True, row.environment_hash: False}


def test_a_drill_is_evidence_of_nothing(row: Row) -> None:
    drilled = replace(row, run_id="r2", outcome="failed", diagnosis="drill", drill="flip-gradient@3/1")
    assert [status.runs for status in summarise([row, drilled], {})] == [1]
    assert summarise([drilled], {}) == []


def test_tainted_runs_are_counted_apart(row: Row) -> None:
    failed = replace(row, run_id="r2", outcome="failed", diagnosis="crash")
    tainted = replace(failed, run_id="r3", diagnosis="out-of-memory")
    (status,) = summarise([row, failed, tainted], {}, {"r3", "r9"})
    assert {name: n for name, n in status.outcomes.items() if n} == {"completed": 1, "failed": 1}
    assert status.diagnoses == {"crash": 1}
    assert (status.tainted, status.runs) == (1, 3)


def test_the_table_says_how_many_are_tainted(row: Row) -> None:
    tainted = replace(row, run_id="r2", outcome="failed", diagnosis="crash")
    console = Console(width=200)
    with console.capture() as shown:
        console.print(status_table(summarise([row, tainted], {}, {"r2"})))
    assert "1 completed, 1 tainted" in shown.get()
    assert "crash" not in shown.get()
