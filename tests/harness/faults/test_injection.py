"""What counts as found, explained and survived."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.evidence.files.run_files import Explanation, Record
from harness.faults.injection import Injection, all_as_expected, last_progress, seconds_to_find
from harness.faults.kinds import Expected, FaultKind
from harness.faults.table import injection_table, problem_lines

HANG = FaultKind("hang", "w", Expected("hung", "no-progress", ("hang-forward", "hang")), app="hang@3/1", stuck=1)
HEALTHY = FaultKind("slow", "w", Expected("failed", "injected-fault"), app="slow@3/0")


@pytest.fixture
def record(make_record: Callable[..., Record]) -> Callable[..., Record]:
    """A record of an injected fault as it must be; keywords replace what is in it."""

    def make(explained: str | None = "hang", fault: str | None = "hang@3/1", **changes: Any) -> Record:
        made = make_record("r1")
        intent = made.intent.model_copy(update={"injected_fault": fault})
        told = {"rule": None, "cause": "c", "remedy": "r", "link": None, "presets": (), "lines": ()}
        explanation = Explanation(class_=explained, **told) if explained else None
        found = {"outcome": "hung", "diagnosis": "no-progress", "detail": "rank 1 made no progress for 17 s"}
        return made.model_copy(update={"intent": intent, "explanation": explanation, **found, **changes})

    return make


def objections(kind: FaultKind, record: Record | None, *trouble: str) -> list[str]:
    return Injection(kind, "process", record, 1.0, trouble).objections


def test_what_is_as_expected_is_said_so(record: Callable[..., Record]) -> None:
    one = Injection(HANG, "process", record(), 17.0)
    assert (one.as_expected, one.survived, one.found, one.explained) == (True, True, "hung (no-progress)", "hang")
    assert one.as_dict()["seconds"] == 17.0


def test_another_outcome_diagnosis_class_or_rank_is_wrong(record: Callable[..., Record]) -> None:
    assert "expected hung" in objections(HANG, record(outcome="failed"))[0]
    assert "expected hung" in objections(HANG, record(diagnosis="time-limit"))[0]
    assert objections(HANG, record("kernel-fault")) == ["explained as kernel-fault, expected hang-forward or hang"]
    assert objections(HANG, record(None)) == ["explained as nothing, expected hang-forward or hang"]
    assert "rank 1 is not named first" in objections(HANG, record(detail="rank 0 made no progress; rank 1 too"))[0]
    assert "rank 1 is not named first" in objections(HANG, record(detail="rank 10 made no progress"))[0]


def test_a_record_that_hides_the_fault_is_wrong(record: Callable[..., Record]) -> None:
    assert objections(HANG, record(fault=None)) == ["the record does not say that a fault was injected"]


def test_a_healthy_run_that_alarms_is_wrong_and_its_class_does_not_matter(record: Callable[..., Record]) -> None:
    assert "expected failed (injected-fault)" in objections(HEALTHY, record())[0]
    assert objections(HEALTHY, record("unknown", outcome="failed", diagnosis="injected-fault")) == []


def test_what_is_left_behind_or_missing_is_wrong(record: Callable[..., Record]) -> None:
    assert objections(HANG, record(), "left: process 7") == ["left: process 7"]
    assert not Injection(HANG, "process", record(), 1.0, ("left: process 7",)).survived
    assert objections(HANG, None) == ["there is no record"]
    assert objections(HANG, None, "the disk is full") == ["the disk is full"]


def test_a_skipped_fault_is_neither_as_expected_nor_not(record: Callable[..., Record]) -> None:
    skipped = Injection(HANG, "process", skipped="only in containers")
    assert (skipped.as_expected, skipped.objections, skipped.as_dict()["survived"]) == (False, [], None)
    assert all_as_expected([skipped, Injection(HANG, "process", record())])
    assert not all_as_expected([skipped, Injection(HANG, "process", record(outcome="failed"))])


def test_the_table_shows_every_fault_and_the_lines_below_what_is_wrong(record: Callable[..., Record]) -> None:
    injections = [
        Injection(HANG, "process", record(), 17.04),
        Injection(HANG, "process", record(outcome="completed"), 3.0),
        Injection(HEALTHY, "process", record(None, outcome="failed", diagnosis="injected-fault")),
        Injection(HANG, "process", skipped="only in containers"),
    ]
    columns = {str(column.header): list(column.cells) for column in injection_table(injections).columns}
    assert columns["kind"] == ["hang", "hang", "slow", "hang"]
    assert columns["found"] == ["hung (no-progress)", "completed (no-progress)", "no alarm", ""]
    assert columns["seconds to find"] == ["17.0", "3.0", "", ""]
    verdicts = ["as expected", "not as expected", "as expected", "skipped: only in containers"]
    assert list(map(str, columns[""])) == verdicts
    assert len(problem_lines(injections)) == 1


def test_a_fault_is_not_older_than_the_last_progress_of_any_rank(tmp_path: Path, line: Callable[..., str]) -> None:
    assert last_progress(tmp_path) is None
    (tmp_path / "progress-0.jsonl").write_text(line(5.0) + line(8.0) + "half a li", encoding="utf-8")
    (tmp_path / "progress-1.jsonl").write_text(line(7.0, rank=1), encoding="utf-8")
    assert last_progress(tmp_path) == 8.0


def test_a_fault_is_found_when_evidence_begins_to_be_collected_else_when_the_run_was_over(tmp_path: Path) -> None:
    fault = time.monotonic() - 50
    assert seconds_to_find(tmp_path, fault) == pytest.approx(50, abs=1)
    (tmp_path / "failure").mkdir()
    for name, ago in (("index.json", 10), ("stacks-1.txt", 20)):
        (tmp_path / "failure" / name).touch()
        os.utime(tmp_path / "failure" / name, (time.time() - ago,) * 2)
    assert seconds_to_find(tmp_path, fault) == pytest.approx(30, abs=1)
