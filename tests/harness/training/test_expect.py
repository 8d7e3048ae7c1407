"""Tests of what a training can expect, from a tag or from records."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.evidence.files.run_files import Record
from harness.evidence.index import Index
from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix
from harness.registry.tags.promotions import KnownGood
from harness.training import expect
from harness.training.expect import expectation_in_words

COUNTED = {"started": 40, "starts": 40, "failures": 1, "incidents": 1, "hours": 24.0, "mtbf_low": 3.4, "boots": 2}


@pytest.fixture
def told(matrix: Matrix, host: HostFacts, tmp_path: Path) -> Callable[..., str]:
    def tell(evidence: KnownGood | None, hours: float = 10.0, strategy: Any = "single") -> str:
        return expectation_in_words(evidence, "cpu-plain", strategy, matrix, Results(tmp_path), host, hours)

    return tell


def test_a_tag_says_what_a_training_can_expect(
    told: Callable[..., str], make_evidence: Callable[..., KnownGood]
) -> None:
    evidence = make_evidence(**COUNTED, longest_hours=12.0, restart_seconds=120.0)
    said = told(evidence)
    # One failure in 24 hours shows fewer failures than one in 3.48 hours.
    assert said.startswith("10 h of training end uninterrupted with a chance above 5 %, take fewer than 2.9 restarts")
    assert said.endswith("and less than 10.2 h (by known-good-cpu, workload quick)")
    assert "longer than these runs" in told(make_evidence(**COUNTED, longest_hours=2.0))
    # The best of many cells is held to more, and so is what a training in it can expect.
    assert "4.7 restarts" in told(make_evidence(**COUNTED, longest_hours=12.0, among=40))


def test_without_a_tag_the_records_of_the_cell_here_say_it(
    told: Callable[..., str],
    tmp_path: Path,
    make_record: Callable[..., Record],
    make_evidence: Callable[..., KnownGood],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("harness.evidence.verdicts.of_results.current_hashes", lambda *_: {})
    assert told(None).startswith("nothing is known of how long cpu-plain lasts here; `matrix run cpu-plain")
    results = Results(tmp_path)
    for number in range(12):
        record = make_record(f"r{number}", started=1e9 + number)
        results.begin(record.intent)
        results.finish(record)
        Index(results).add(record)
    said = told(None)
    assert "take fewer than 2.9 restarts on average" in said
    assert said.endswith("may be worse (by its runs here, workload quick on merged.csv)")
    # A tag from before hours were counted gives way to the records, and records of another strategy say nothing.
    assert told(make_evidence()) == said
    assert told(None, strategy="ddp").startswith("nothing is known")


def test_what_a_failure_costs_is_measured(
    make_record: Callable[..., Record], make_evidence: Callable[..., KnownGood]
) -> None:
    slow = expect.expect_of_tag(make_evidence(**COUNTED, restart_seconds=1800.0), 10)
    fast = expect.expect_of_tag(make_evidence(**COUNTED, restart_seconds=60.0), 10)
    assert slow is not None
    assert fast is not None
    assert slow.takes - fast.takes == pytest.approx(slow.restarts * 1740 / 3600, rel=0.01)
