"""Tests of what is said about the length of a training, from records of its cell."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.evidence.files.run_files import Record
from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix
from harness.matrix.workload_options import options_of
from harness.training.length import length_in_words
from harness.training.options import own_workload

UNKNOWN = "3 epochs at most; how long one takes is not known yet: the first one shows it"
Keep = Callable[..., None]


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path)


@pytest.fixture
def keep(results: Results, make_record: Callable[..., Record]) -> Keep:
    """Return a function that keeps a run of 300 s: two epochs, 100 s and 20 s to validate each, and 60 s of other work.

    Keywords replace fields of its intent.
    """

    def one(run_id: str = "r1", *, outcome: str = "completed", resumed_at: tuple[int, ...] = (), **intent: Any) -> None:
        about = {"options": options_of(own_workload({})), "data": {"path": "a.csv", "sha256": "a" * 64}, **intent}
        record = make_record(run_id, outcome, **about)
        if record.result:
            took = record.result.throughput.model_copy(update={"train_seconds": 200.0})
            done = {
                "time": {"device": 200.0, "validate": 40.0},
                "epochs_done": 2,
                "steps_per_epoch": 5000,
                "throughput": took,
                "resumed_at": resumed_at,
            }
            record = record.model_copy(update={"result": record.result.model_copy(update=done), "seconds": 300.0})
        results.begin(record.intent)
        results.finish(record)

    return one


@pytest.fixture
def told(matrix: Matrix, host: HostFacts, results: Results) -> Callable[..., str]:
    def tell(**options: Any) -> str:
        return length_in_words(matrix.cells["cpu-plain"], own_workload(options), "a" * 64, results, host)

    return tell


def test_a_run_on_the_same_data_says_how_long_it_is(keep: Keep, told: Callable[..., str]) -> None:
    assert told() == UNKNOWN
    keep()
    by = "by the last run of cpu-plain on this data"
    assert told() == f"3 epochs at most, each of about 5,000 steps: about 7 min, {by}"
    assert told(epochs=1, patience=0) == f"1 epoch, each of about 5,000 steps: about 3 min, {by}"
    # Without sessions that choose the epoch there are more steps in it.
    assert told(epochs=1, patience=0, keep="last") == f"1 epoch: about 3 min, {by}"
    assert told(learning_rate=0.5, epochs=60) == f"60 epochs at most, each of about 5,000 steps: about 2.0 h, {by}"
    # A run with another number of rows or of steps says nothing.
    for other in ({"lookback": 25}, {"batch_size": 8}, {"model": ("attention",)}):
        assert told(**other) == UNKNOWN


@pytest.mark.parametrize(
    "other",
    [
        {"data": {"path": "a.csv", "sha256": "b" * 64}},
        {"cell": "cpu-no-sdma"},
        {"outcome": "failed"},
        {"resumed_at": (7,)},
        {"options": {}},
    ],
    ids=str,
)
def test_a_run_of_something_else_does_not(keep: Keep, told: Callable[..., str], other: dict[str, Any]) -> None:
    keep(**other)
    assert told() == UNKNOWN


def test_nor_does_one_of_another_host(keep: Keep, told: Callable[..., str], host: HostFacts) -> None:
    keep(host=host.model_copy(update={"machine": "n" * 16}))
    assert told() == UNKNOWN
