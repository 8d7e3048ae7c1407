"""Tests of tags that are suspended by later runs of their image."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.evidence.files.run_files import HealthStep, Record
from harness.evidence.gpus.health_log import append_steps
from harness.evidence.index import Index
from harness.evidence.records import Results
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import count_runs
from harness.evidence.verdicts.verdict import judge
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix, Verdicts
from harness.registry.tags.known_good import NotForThisHostError, resolve_tag
from harness.registry.tags.promotions import KnownGood, TagMove, append_move
from harness.registry.tags.suspension import suspension_by, why_suspended

NOW = 2e9
MakeRecord = Callable[..., Record]


@pytest.fixture
def row(make_record: MakeRecord) -> Row:
    """Return a run of the image in a container, after the promotion."""
    return Row.of(make_record("later", executor="docker", started=NOW))._replace(finished=NOW + 50)


@pytest.fixture
def evidence(make_evidence: Callable[..., KnownGood]) -> KnownGood:
    return make_evidence(promoted_at=NOW - 60, expires_at=NOW + 60, run_ids=("r0",))


def told(evidence: KnownGood, rows: Sequence[Row], steps: Sequence[HealthStep] = ()) -> str | None:
    return why_suspended(evidence, rows, count_runs(rows, steps), [])


def test_runs_that_are_well_suspend_nothing(evidence: KnownGood, row: Row) -> None:
    failed = row._replace(run_id="f", outcome="failed", diagnosis="app-error")
    assert told(evidence, [row, failed]) is None


def test_a_later_run_that_is_a_host_fault_suspends_it(evidence: KnownGood, row: Row) -> None:
    fault = row._replace(outcome="host-fault", diagnosis="unhealthy-gpu", detail="GPU 1 failed its probe")
    assert str(told(evidence, [fault])).startswith("since its promotion run later ended with a GPU fault")
    assert str(told(evidence, [fault])).endswith("GPU 1 failed its probe")
    both = [fault, fault._replace(run_id="last", finished=fault.finished + 1)]
    assert "since its promotion 2 runs, the last one last, ended" in str(told(evidence, both))


@pytest.mark.parametrize(
    ("changes", "suspends"),
    [
        ({"workload_hash": "a training of the user's"}, True),
        ({"host_kind": "another kernel here"}, True),
        ({"started": NOW - 61}, True),
        ({"started": NOW - 3600, "finished": NOW - 61}, False),
        ({"run_id": "r0"}, False),
        ({"cell": "another"}, False),
        ({"environment_hash": "rebuilt"}, False),
        ({"executor": "process"}, False),
        ({"imported": True}, True),
        ({"imported": True, "host_kind": "another"}, False),
        ({"struck": "a power cut"}, False),
        ({"injected_fault": "wedge-gpu@3"}, False),
    ],
)
def test_it_is_suspended_by_later_runs_of_its_image(
    changes: dict[str, Any], suspends: bool, evidence: KnownGood, row: Row
) -> None:
    fault = row._replace(outcome="host-fault", diagnosis="unhealthy-gpu", **changes)
    assert bool(told(evidence, [fault])) is suspends


def test_a_run_that_completed_and_left_its_gpu_unhealthy_suspends_it(
    evidence: KnownGood, row: Row, make_step: Callable[..., HealthStep]
) -> None:
    row = row._replace(gpus="[0]")
    assert told(evidence, [row], [make_step(good=True, at=NOW + 60)]) is None
    assert "failed the next probe after it" in str(told(evidence, [row], [make_step(good=False, at=NOW + 60)]))


def test_a_verdict_below_its_tier_suspends_it(evidence: KnownGood, row: Row) -> None:
    failed = row._replace(outcome="failed", diagnosis="crash", started=NOW - 90)
    verdicts = judge([failed], {}, Verdicts())
    assert why_suspended(evidence, [failed], count_runs([failed]), verdicts) == (
        "its cell is failing now: 0 of 1 runs passed, crash"
    )


def test_it_is_refused_with_the_reason_until_it_is_promoted_again(
    evidence: KnownGood,
    matrix: Matrix,
    host: HostFacts,
    tmp_path: Path,
    make_record: MakeRecord,
    make_step: Callable[..., HealthStep],
) -> None:
    results = Results(tmp_path)
    append_move(results, TagMove(move="promoted", at=NOW - 60, evidence=evidence))
    assert resolve_tag(None, host, results, NOW, suspension=suspension_by(results, matrix)) == evidence
    # The run has another workload, so that it does not change the verdict behind the tag.
    record = make_record("later", executor="docker", gpus=(0,), started=NOW - 30, workload_hash="9" * 64)
    record = record.model_copy(update={"finished": NOW - 20})
    results.begin(record.intent)
    results.finish(record)
    Index(results).add(record)
    append_steps(results, [make_step(good=False, at=NOW - 10, run_id="another", when="before-run")])
    with pytest.raises(NotForThisHostError, match="it is suspended: since its promotion run later ended with a GPU"):
        resolve_tag(None, host, results, NOW, suspension=suspension_by(results, matrix))
    again = evidence.model_copy(update={"promoted_at": NOW - 5})
    append_move(results, TagMove(move="promoted", at=NOW - 5, evidence=again))
    assert resolve_tag(None, host, results, NOW, suspension=suspension_by(results, matrix)) == again
