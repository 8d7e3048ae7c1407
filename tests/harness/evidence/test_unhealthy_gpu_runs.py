from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.evidence.health_log import append_steps, machines_with_bad_signs
from harness.evidence.index import Index, Row
from harness.evidence.records import Results
from harness.evidence.run_files import HealthStep, Record
from harness.evidence.unhealthy_gpu_runs import tainted, tainted_runs
from harness.host.facts import HostFacts

MakeRecord = Callable[..., Record]
MakeStep = Callable[..., HealthStep]


class History:
    """Runs and probes of GPU 0 one after the other, a minute each."""

    def __init__(self, make_record: MakeRecord, make_step: MakeStep, host: HostFacts) -> None:
        self._make_record, self._make_step, self._host = make_record, make_step, host
        self._at = 1e9
        self.records: list[Record] = []
        self.steps: list[HealthStep] = []

    def run(self, run_id: str, outcome: str, boot: str = "boot", gpus: tuple[int, ...] = (0,)) -> "History":
        self._at += 60
        host = self._host.model_copy(update={"boot_id": boot})
        record = self._make_record(run_id, outcome, host=host, gpus=gpus, started=self._at - 50)
        self.records.append(record.model_copy(update={"finished": self._at}))
        return self

    def probe(self, good: bool | None, run_id: str = "r0", **changes: Any) -> "History":
        self._at += 60
        self.steps.append(self._make_step(good=good, run_id=run_id, at=self._at, when="recheck", **changes))
        return self

    def then_probe(self, good: bool | None) -> "History":
        """The probe that followed the last run, before its record was written."""
        last = self.records[-1]
        steps = [self._make_step(check="memory", good=True, seconds=5, at=self._at - 20)]
        steps += [self._make_step(good=good, seconds=9, at=self._at - 10)]
        self.steps += [step.model_copy(update={"run_id": last.intent.run_id}) for step in steps]
        return self

    @property
    def tainted(self) -> frozenset[str]:
        return tainted(map(Row.of, self.records), self.steps)


@pytest.fixture
def history(make_record: MakeRecord, make_step: MakeStep, host: HostFacts) -> History:
    return History(make_record, make_step, host)


def test_runs_since_the_last_good_sign_are_tainted_by_a_probe_that_fails(history: History) -> None:
    history.run("a", "failed").probe(True).run("b", "failed").run("c", "hung").probe(False)
    assert history.tainted == {"b", "c"}


def test_a_run_that_completed_is_a_good_sign(history: History) -> None:
    history.run("a", "failed").run("b", "completed").run("c", "failed").probe(False)
    assert history.tainted == {"c"}


def test_a_host_fault_taints_those_before_it_and_is_none_of_them(history: History) -> None:
    assert history.run("a", "failed").run("b", "host-fault").tainted == {"a"}


def test_what_failed_on_a_sick_gpu_is_tainted_too(history: History) -> None:
    assert history.probe(False).run("a", "failed").probe(True).run("b", "failed").tainted == {"a"}


def test_without_a_bad_sign_nothing_is(history: History) -> None:
    assert history.run("a", "failed").run("b", "hung").probe(None).probe(True).tainted == frozenset()


def test_a_probe_after_a_run_clears_that_run(history: History) -> None:
    history.run("a", "failed").then_probe(True).run("b", "failed").then_probe(False)
    assert history.tainted == {"b"}


def test_a_boot_is_a_good_sign(history: History) -> None:
    assert history.run("a", "failed", boot="before").probe(False).tainted == frozenset()


def test_another_gpu_or_machine_taints_nothing(history: History) -> None:
    history.run("a", "failed").probe(False, gpu=1).probe(False, machine="another")
    assert history.tainted == frozenset()


def test_a_run_on_two_gpus_is_tainted_by_either(history: History) -> None:
    assert history.run("a", "failed", gpus=(0, 1)).probe(True).probe(False, gpu=1).tainted == {"a"}


def test_a_run_on_the_cpu_never_is(history: History) -> None:
    assert history.run("a", "failed", gpus=()).probe(False).tainted == frozenset()


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kinds=st.lists(
        st.sampled_from(["good", "bad", "unclear", "completed", "failed", "hung", "host-fault"]), max_size=12
    )
)
def test_it_is_what_lies_between_two_good_signs_with_a_bad_one(
    make_record: MakeRecord, make_step: MakeStep, host: HostFacts, kinds: list[str]
) -> None:
    history = History(make_record, make_step, host)
    for number, kind in enumerate(kinds):
        if kind in ("good", "bad", "unclear"):
            history.probe({"good": True, "bad": False}.get(kind))
        else:
            history.run(f"r{number}", kind)
    expected = set()
    for number, kind in enumerate(kinds):
        if kind in ("failed", "hung"):
            good = [n for n, other in enumerate(kinds) if other in ("good", "completed")]
            start = max((n for n in good if n < number), default=-1)
            end = min((n for n in good if n > number), default=len(kinds))
            if {"bad", "host-fault"} & set(kinds[start + 1 : end]):
                expected.add(f"r{number}")
    assert history.tainted == expected


def test_a_results_folder_is_read_as_a_whole(
    tmp_path: Path, make_record: MakeRecord, make_step: MakeStep, host: HostFacts
) -> None:
    results = Results(tmp_path)
    assert tainted_runs(results, Index(results).rows()) == frozenset()
    record = make_record("a", "failed", gpus=(0,))
    results.begin(record.intent)
    results.finish(record)
    assert tainted_runs(results, Index(results).rows()) == frozenset()
    append_steps(results, [make_step(good=False, at=record.finished + 60)])
    assert tainted_runs(results, Index(results).rows()) == {"a"}


def test_a_host_fault_is_a_bad_sign_where_no_probe_was_made(tmp_path: Path, make_record: MakeRecord) -> None:
    results = Results(tmp_path)
    for record in (make_record("a", "failed", gpus=(0,)), make_record("b", "host-fault", gpus=(0,), started=1e9 + 1)):
        results.begin(record.intent)
        results.finish(record.model_copy(update={"finished": record.intent.started + 5}))
    assert tainted_runs(results, Index(results).rows()) == {"a"}


def test_what_another_machine_saw_is_not_read(tmp_path: Path, make_record: MakeRecord, make_step: MakeStep) -> None:
    results = Results(tmp_path)
    record = make_record("a", "failed", gpus=(0,))
    results.begin(record.intent)
    results.finish(record)
    append_steps(results, [make_step(good=True), make_step(machine="another", good=False)])
    assert machines_with_bad_signs(results) == {"another"}
    assert tainted_runs(results, Index(results).rows()) == frozenset()
