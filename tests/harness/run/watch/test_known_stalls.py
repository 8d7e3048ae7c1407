from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.evidence.files.app_files import Wait
from harness.evidence.files.run_files import Intent, Record
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.records import Results
from harness.run.watch.limits import MOST_RUNS, known_stalls

MakeRecord = Callable[..., Record]


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path)


def of_kind(results: Results, intent: Intent) -> list[Mapping[Wait, float]]:
    return known_stalls(results, intent, {intent.workload_hash})


def keep(results: Results, record: Record, longest_stall: dict[Wait, float]) -> Record:
    results.begin(record.intent)
    results.finish(record.model_copy(update={"longest_stall": longest_stall}))
    return record


def test_completed_runs_of_the_same_kind_tell_how_long_they_stood(results: Results, make_record: MakeRecord) -> None:
    keep(results, make_record("a"), {"import": 4.0})
    keep(results, make_record("b"), {"import": 5.0, "step": 0.5})
    assert of_kind(results, make_record("c").intent) == [{"import": 4.0}, {"import": 5.0, "step": 0.5}]


@pytest.mark.parametrize(
    "other",
    [
        {"environment_hash": "o" * 64},
        {"workload_hash": "0" * 64},
        {"executor": "docker"},
        {"image": "sha256:" + "1" * 64},
        {"injected_fault": "slow@3"},
        {"rehearsal": True},
    ],
)
def test_runs_of_another_kind_tell_nothing(other: dict[str, Any], results: Results, make_record: MakeRecord) -> None:
    keep(results, make_record("a", **other), {"import": 4.0})
    assert of_kind(results, make_record("b").intent) == []


def test_another_kind_of_host_tells_nothing(results: Results, make_record: MakeRecord) -> None:
    record = make_record("a")
    keep(results, record, {"import": 4.0})
    host = record.intent.host.model_copy(update={"kind": "another"})
    assert of_kind(results, make_record("b", host=host).intent) == []


def test_a_run_that_hung_or_tells_nothing_is_no_measure(results: Results, make_record: MakeRecord) -> None:
    keep(results, make_record("a", "hung"), {"step": 180.0})
    keep(results, make_record("b"), {})
    assert of_kind(results, make_record("c").intent) == []


def test_only_the_newest_are_read(results: Results, make_record: MakeRecord) -> None:
    for number in range(MOST_RUNS + 3):
        keep(results, make_record(f"r{number:02}", started=1e9 + number), {"step": float(number)})
    known = of_kind(results, make_record("next").intent)
    assert [told["step"] for told in known] == [float(n) for n in range(3, MOST_RUNS + 3)]


def test_a_run_that_came_from_another_host_tells_nothing(results: Results, make_record: MakeRecord) -> None:
    record = keep(results, make_record("a"), {"import": 4.0})
    (results.run_folder(record.intent.run_id) / RunFolder.IMPORTED).write_text("{}", encoding="utf-8")
    assert of_kind(results, make_record("b").intent) == []


def test_a_resumed_training_and_a_new_one_tell_of_each_other(results: Results, make_record: MakeRecord) -> None:
    keep(results, make_record("a"), {"step": 4.0})
    keep(results, make_record("b", workload_hash="0" * 64), {"step": 5.0})
    intent = make_record("c").intent
    assert known_stalls(results, intent, {intent.workload_hash, "0" * 64}) == [{"step": 4.0}, {"step": 5.0}]
