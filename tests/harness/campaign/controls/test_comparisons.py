"""Tests of trials on a bench: why one is not run, and what is shown of them. Nothing is really run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.campaign.bench.plan import PlannedRun
from harness.campaign.controls.comparisons import PlacedTrials
from harness.campaign.runner import Runner
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.files.run_files import HealthStep, Record
from harness.evidence.gpus.health_log import append_steps
from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix
from harness.search.trials import RecountedError, Trials
from tests.harness.pretending import RecordingDisplay
from tests.harness.scripted_bench import ScriptedBench


@pytest.fixture
def script(
    tmp_path: Path, dual_host: HostFacts, make_record: Callable[..., Record], matrix: Matrix
) -> Callable[..., "OnBench"]:
    """Return a function that makes trials whose runs have these outcomes; all trials share one results folder."""

    def make(*outcomes: str) -> OnBench:
        results = Results(tmp_path / "results")
        bench = ScriptedBench(results, ProcessExecutor(), dual_host, (0,))
        script = iter(outcomes)
        bench.make_record, bench.outcome_of, bench.made = make_record, lambda _: next(script), []
        planned = PlannedRun(matrix.cells["rocm6.3-torch2.9.1-plain"], 1, (0,))
        return OnBench(bench, planned, matrix)

    return make


class OnBench:
    def __init__(self, bench: ScriptedBench, planned: PlannedRun, matrix: Matrix) -> None:
        self.bench = bench
        self.cell = planned.cell
        runner = Runner(bench, matrix.workloads["quick"], RecordingDisplay(), "c", 9)
        self.trials = Trials(PlacedTrials(runner, planned), "c", 9)

    def passed(self, runs: int = 1) -> list[bool]:
        return [self.trials.passed(self.cell) for _ in range(runs)]


def test_the_repeat_of_a_run_is_in_its_record(script: Callable[..., OnBench]) -> None:
    one = script("completed", "failed", "hung")
    assert one.passed(3) == [True, False, False]
    records = [one.bench.results.record(run_id) for run_id in one.bench.made]
    assert [record.intent.repeat for record in records if record] == [1, 2, 3]


def test_the_time_left_is_shown(script: Callable[..., OnBench], monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[float | None] = []
    monkeypatch.setattr(RecordingDisplay, "time_left", lambda _, seconds: left.append(seconds), raising=False)
    first = script("completed", "failed")
    assert first.passed(2) == [True, False]
    assert left == [None, 8.0]
    again = script("completed")
    assert again.passed(3) == [True, False, True]
    # Each run takes a second, and seven of nine are left.
    assert left[2:] == [1.0 * 7]


def test_a_lost_engine_ends_it_and_the_run_is_made_again(script: Callable[..., OnBench]) -> None:
    one = script("interrupted")
    with pytest.raises(UserError, match="continues where it stopped"):
        one.passed()
    again = script("failed")
    assert again.passed() == [False]
    assert again.bench.made == [f"{one.bench.made[0]}-again2"]


def test_an_unhealthy_gpu_takes_no_runs(script: Callable[..., OnBench], make_step: Callable[..., HealthStep]) -> None:
    one = script("completed")
    append_steps(one.bench.results, [make_step(good=False, detail="the probe failed")])
    with pytest.raises(UserError, match="GPU 0 takes no more runs: the probe failed"):
        one.passed()


def test_a_run_that_turns_out_to_have_poisoned_its_gpu_is_taken_back(
    script: Callable[..., OnBench], make_step: Callable[..., HealthStep]
) -> None:
    one = script("completed", "completed")
    assert one.passed() == [True]
    # The probe before the second run finds the damage; that run begins after a reset.
    second = f"c-0002-{one.bench.made[0].split('-')[2]}"
    found = {"at": 1e9 + 50, "run_id": second, "when": "before-run"}
    append_steps(one.bench.results, [make_step(good=False, **found), make_step(good=True, **found)])
    with pytest.raises(RecountedError):
        one.passed()
    again = script()
    assert again.passed(2) == [False, True]
    assert again.bench.made == []
