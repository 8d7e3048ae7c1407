"""Tests of runs side by side: each failure counts, and what explains it changes only the words."""

from collections.abc import Callable
from typing import Any

import pytest

from harness.evidence.files.run_files import Record
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import RunCount, count_runs
from harness.evidence.verdicts.shared_time import shared_time_in_words
from harness.evidence.verdicts.totals import totals_of

LATER = 3600.0


@pytest.fixture
def pair(make_record: Callable[..., Record]) -> tuple[Row, Row]:
    """Return two runs of one cell that failed together after an hour of training, one on each GPU."""
    row = Row.of(make_record())._replace(
        outcome="hung", diagnosis="no-progress", run_id="a", gpus="[0]", beside='["b"]'
    )
    return row, row._replace(run_id="b", gpus="[1]", beside='["a"]', finished=row.finished + 60)


def test_each_failure_counts_and_failures_of_their_own_are_two_incidents(pair: tuple[Row, Row]) -> None:
    totals = totals_of(pair, count_runs(pair))
    assert (totals.failures, totals.incidents) == (2, 2)


@pytest.mark.parametrize("event", ["reset", "host-down"])
def test_what_hits_both_is_one_incident_and_two_failures(pair: tuple[Row, Row], event: str) -> None:
    if event == "host-down":
        pair = tuple(row._replace(outcome="host-fault", diagnosis="host-down") for row in pair)  # type: ignore[assignment]
    counts = {row.run_id: RunCount("failed", gpu_fault=event == "reset") for row in pair}
    totals = totals_of(pair, counts)
    assert (totals.failures, totals.incidents) == (2, 1)
    sentence = shared_time_in_words(pair[0], pair, counts)
    assert (
        sentence
        == "it ran beside b on GPU 1 (failed): one event hit both, which is one incident; each run counts as failed"
    )
    late = (pair[0], pair[1]._replace(finished=pair[0].finished + 901))
    assert totals_of(late, counts).incidents == 2


@pytest.mark.parametrize(
    ("outcome", "words"), [("completed", "alone it passed (c)"), ("hung", "it failed alone, too (c)")]
)
def test_a_repeat_alone_changes_the_words_and_not_the_count(pair: tuple[Row, Row], outcome: str, words: str) -> None:
    counts = count_runs(pair)
    before = shared_time_in_words(pair[0], pair, counts)
    assert before == "it ran beside b on GPU 1 (failed); the same was not repeated alone"
    alone = pair[0]._replace(run_id="c", beside="[]", outcome=outcome, diagnosis=None, started=pair[0].started + LATER)
    rows = [*pair, alone]
    assert words in str(shared_time_in_words(pair[0], rows, count_runs(rows)))
    assert count_runs(rows)["a"].counts_as == "failed"
    assert shared_time_in_words(alone, rows, count_runs(rows)) is None


@pytest.mark.parametrize("changed", [{"machine": "another"}, {"environment_hash": "7"}, {"gpus": "[7]"}])
def test_a_repeat_elsewhere_is_none_of_the_same(pair: tuple[Row, Row], changed: dict[str, Any]) -> None:
    alone = pair[0]._replace(run_id="c", beside="[]", outcome="completed", started=pair[0].started + LATER)
    rows = [*pair, alone._replace(**changed)]
    assert str(shared_time_in_words(pair[0], rows, count_runs(rows))).endswith("the same was not repeated alone")


def test_a_run_of_another_host_ran_beside_none_of_this_one(pair: tuple[Row, Row]) -> None:
    rows = [pair[0], pair[1]._replace(machine="another")]
    assert shared_time_in_words(pair[0], rows, count_runs(rows)) is None
