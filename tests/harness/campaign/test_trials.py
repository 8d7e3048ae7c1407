"""Runs that are compared with each other. Nothing is really run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from harness.base.errors import UserError
from harness.campaign.plan import PlannedRun
from harness.campaign.trials import TaintedError, Trials
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.health_log import append_steps
from harness.evidence.records import Results
from harness.evidence.run_files import HealthStep, Record
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix
from tests.harness.scripted_bench import Scripted, Silent


@pytest.fixture
def script(
    tmp_path: Path, dual_host: HostFacts, make_record: Callable[..., Record], matrix: Matrix
) -> Callable[..., Trials]:
    """Trials on a bench of which the outcomes are given; all on one results folder."""

    def make(*outcomes: str, cell: str = "rocm6.3-torch2.9.1-plain") -> Trials:
        results = Results(tmp_path / "results")
        bench = Scripted(results, ProcessExecutor(results.runs), dual_host, (0,))
        script = iter(outcomes)
        bench.make_record, bench.outcome_of, bench.made = make_record, lambda _: next(script), []
        planned = PlannedRun(matrix.cells[cell], 1, (0,))
        return Trials(bench, matrix.workloads["quick"], planned, cast("Any", Silent()), "c", 9)

    return make


def made(trials: Trials) -> list[str]:
    return cast("Scripted", trials.bench).made


def test_what_completed_passed_and_what_failed_or_hung_did_not(script: Callable[..., Trials]) -> None:
    trials = script("completed", "failed", "hung")
    assert [trials.passed(trials.placed.cell, position) for position in (1, 2, 3)] == [True, False, False]
    records = [trials.bench.results.record(run_id) for run_id in made(trials)]
    assert [record.intent.repeat for record in records if record] == [1, 2, 3]


def test_what_was_made_before_is_not_made_again(script: Callable[..., Trials]) -> None:
    first = script("completed", "failed")
    assert [first.passed(first.placed.cell, position) for position in (1, 2)] == [True, False]
    again = script("hung")
    assert [again.passed(again.placed.cell, position) for position in (1, 2, 3)] == [True, False, False]
    assert len(made(again)) == 1


def test_the_time_left_is_told_by_the_runs_that_were_made_before(
    script: Callable[..., Trials], monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[float] = []
    monkeypatch.setattr(Silent, "time_left", lambda _, seconds: left.append(seconds), raising=False)
    first = script("completed", "failed")
    assert [first.passed(first.placed.cell, position) for position in (1, 2)] == [True, False]
    assert left == [0.0]
    again = script("completed")
    assert [again.passed(again.placed.cell, position) for position in (1, 2, 3)] == [True, False, True]
    # The bench's first run takes no time, its second one second: so seven of nine are left.
    assert left[1:] == [0.5 * 7]


def test_another_cell_at_the_same_position_is_another_run(script: Callable[..., Trials], matrix: Matrix) -> None:
    trials = script("completed", "failed")
    assert trials.passed(trials.placed.cell, 1)
    assert not trials.passed(matrix.cells["rocm6.3-torch2.9.1-no-sdma"], 1)


def test_a_fault_of_the_host_is_made_again_but_not_for_ever(script: Callable[..., Trials]) -> None:
    trials = script("host-fault", "host-fault", "completed")
    assert trials.passed(trials.placed.cell, 1)
    assert made(trials)[1:] == [f"{made(trials)[0]}-again2", f"{made(trials)[0]}-again3"]
    hopeless = script("host-fault", "host-fault", "host-fault")
    with pytest.raises(UserError, match="mend the host"):
        hopeless.passed(hopeless.placed.cell, 2)


def test_a_lost_engine_ends_it_and_the_run_is_made_again(script: Callable[..., Trials]) -> None:
    trials = script("interrupted")
    with pytest.raises(UserError, match="goes on where it stopped"):
        trials.passed(trials.placed.cell, 1)
    again = script("failed")
    assert not again.passed(again.placed.cell, 1)
    assert made(again) == [f"{made(trials)[0]}-again2"]


def test_a_sick_gpu_takes_no_runs(script: Callable[..., Trials], make_step: Callable[..., HealthStep]) -> None:
    trials = script("completed")
    append_steps(trials.bench.results, [make_step(good=False, detail="the probe failed")])
    with pytest.raises(UserError, match="GPU 0 takes no more runs: the probe failed"):
        trials.passed(trials.placed.cell, 1)


def test_a_run_that_turns_out_to_be_tainted_is_taken_back_and_made_again(
    script: Callable[..., Trials], make_step: Callable[..., HealthStep], make_record: Callable[..., Record]
) -> None:
    trials = script("failed", "failed")
    assert not trials.passed(trials.placed.cell, 1)
    append_steps(trials.bench.results, [make_step(good=False, at=1e9 + 50), make_step(good=True, at=1e9 + 60)])
    with pytest.raises(TaintedError):
        trials.passed(trials.placed.cell, 2)
    again = script("completed", "completed")
    assert again.passed(again.placed.cell, 1)
    assert made(again) == ["c-0001-" + made(trials)[0].split("-")[2] + "-again2"]
