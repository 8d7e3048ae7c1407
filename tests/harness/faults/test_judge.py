"""What counts as found, explained and survived."""

from collections.abc import Callable
from typing import Any

import pytest

from harness.evidence.run_files import Explanation, Record
from harness.faults.judge import Drilled, all_right
from harness.faults.kinds import Drill, Expected
from harness.faults.table import drilled_table, problem_lines

HANG = Drill("hang", "w", Expected("hung", "no-progress", ("hang-forward", "hang")), app="hang@3/1", stuck=1)
HEALTHY = Drill("slow", "w", Expected("failed", "drill"), app="slow@3/0")


@pytest.fixture
def record(make_record: Callable[..., Record]) -> Callable[..., Record]:
    """A record of a drill as it must be; keywords replace what is in it."""

    def make(explained: str | None = "hang", drill: str | None = "hang@3/1", **changes: Any) -> Record:
        made = make_record("r1")
        intent = made.intent.model_copy(update={"drill": drill})
        told = {"rule": None, "cause": "c", "remedy": "r", "link": None, "presets": (), "lines": ()}
        explanation = Explanation(class_=explained, **told) if explained else None
        found = {"outcome": "hung", "diagnosis": "no-progress", "detail": "rank 1 made no progress for 17 s"}
        return made.model_copy(update={"intent": intent, "explanation": explanation, **found, **changes})

    return make


def objections(drill: Drill, record: Record | None, *trouble: str) -> list[str]:
    return Drilled(drill, "process", record, 1.0, trouble).objections


def test_what_is_as_it_must_be_is_right(record: Callable[..., Record]) -> None:
    one = Drilled(HANG, "process", record(), 17.0)
    assert (one.right, one.survived, one.found, one.explained) == (True, True, "hung (no-progress)", "hang")
    assert one.as_dict()["seconds"] == 17.0


def test_another_outcome_diagnosis_class_or_rank_is_wrong(record: Callable[..., Record]) -> None:
    assert "expected hung" in objections(HANG, record(outcome="failed"))[0]
    assert "expected hung" in objections(HANG, record(diagnosis="time-limit"))[0]
    assert objections(HANG, record("kernel-fault")) == ["explained as kernel-fault, expected hang-forward or hang"]
    assert objections(HANG, record(None)) == ["explained as nothing, expected hang-forward or hang"]
    assert "rank 1 is not named first" in objections(HANG, record(detail="rank 0 made no progress; rank 1 too"))[0]
    assert "rank 1 is not named first" in objections(HANG, record(detail="rank 10 made no progress"))[0]


def test_a_record_that_hides_the_drill_is_wrong(record: Callable[..., Record]) -> None:
    assert objections(HANG, record(drill=None)) == ["the record does not say that it was a drill"]


def test_a_healthy_run_that_alarms_is_wrong_and_its_class_does_not_matter(record: Callable[..., Record]) -> None:
    assert "expected failed (drill)" in objections(HEALTHY, record())[0]
    assert objections(HEALTHY, record("unknown", outcome="failed", diagnosis="drill")) == []


def test_what_is_left_behind_or_missing_is_wrong(record: Callable[..., Record]) -> None:
    assert objections(HANG, record(), "left: process 7") == ["left: process 7"]
    assert not Drilled(HANG, "process", record(), 1.0, ("left: process 7",)).survived
    assert objections(HANG, None) == ["there is no record"]
    assert objections(HANG, None, "the disk is full") == ["the disk is full"]


def test_a_skipped_drill_is_neither_right_nor_wrong(record: Callable[..., Record]) -> None:
    skipped = Drilled(HANG, "process", skipped="only in containers")
    assert (skipped.right, skipped.objections, skipped.as_dict()["survived"]) == (False, [], None)
    assert all_right([skipped, Drilled(HANG, "process", record())])
    assert not all_right([skipped, Drilled(HANG, "process", record(outcome="failed"))])


def test_the_table_shows_every_drill_and_the_lines_below_what_is_wrong(record: Callable[..., Record]) -> None:
    drilled = [
        Drilled(HANG, "process", record(), 17.04),
        Drilled(HANG, "process", record(outcome="completed"), 3.0),
        Drilled(HEALTHY, "process", record(None, outcome="failed", diagnosis="drill")),
        Drilled(HANG, "process", skipped="only in containers"),
    ]
    columns = {str(column.header): list(column.cells) for column in drilled_table(drilled).columns}
    assert columns["kind"] == ["hang", "hang", "slow", "hang"]
    assert columns["found"] == ["hung (no-progress)", "completed (no-progress)", "no alarm", ""]
    assert columns["seconds to find"] == ["17.0", "3.0", "", ""]
    verdicts = ("right", "wrong", "right", "skipped: only in containers")
    assert all(verdict in str(cell) for verdict, cell in zip(verdicts, columns[""], strict=True))
    assert len(problem_lines(drilled)) == 1
