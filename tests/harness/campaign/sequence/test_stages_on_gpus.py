"""Tests of campaigns in stages: GPUs that are in use, lost, or of another host or time."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import pytest

from harness.campaign.bench.plan import PendingRun, PlannedRun
from harness.campaign.campaign import begin_or_continue
from harness.campaign.helpers.together import seconds_spent
from harness.campaign.planning.stage_evidence import StageEvidence
from harness.campaign.runner import Runner
from harness.campaign.sequence import run_stages as module
from harness.evidence.files.run_files import Record
from harness.evidence.row import Row
from harness.matrix.cells import Matrix
from tests.harness.campaign.sequence.staged import ALL, FIRST, MakeRecord, Staged, carried_out, make_imported, prepared
from tests.harness.pretending import RecordingDisplay


def test_the_runs_of_another_machine_of_the_kind_say_nothing_of_the_gpus_here(bench: Staged, matrix: Matrix) -> None:
    carried_out(bench, prepared(bench, matrix))
    seen = StageEvidence(bench, matrix).read().runs
    assert {run.here for run in seen} == {True}
    bench.host = bench.host.model_copy(update={"machine": "f" * 32})
    again = StageEvidence(bench, matrix).read().runs
    assert [run.row for run in again] == [run.row for run in seen]
    assert {run.here for run in again} == {False}


def test_imported_runs_make_no_cell_good(bench: Staged, matrix: Matrix) -> None:
    carried_out(bench, prepared(bench, matrix))
    before = list(bench.workloads)
    make_imported(bench)
    found, _, _ = carried_out(bench, prepared(bench, matrix))
    assert found.reached
    assert bench.workloads == before


def test_a_run_whose_gpu_is_in_use_until_the_time_is_over_is_not_made(
    bench: Staged, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, campaign = [0.0], prepared(bench, matrix)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with ExitStack() as others:
        planned = PlannedRun(matrix.cells[f"{FIRST}-plain"], 1, (0,))
        others.enter_context(bench.gpus_for([(planned, "r9")], print))

        def wait(_: float) -> None:
            now[0] += 60.0
            if now[0] > 2 * 36000.0:
                others.close()

        monkeypatch.setattr(time, "sleep", wait)
        found, _, _ = carried_out(bench, campaign)
    assert bench.workloads == []
    assert "The time is over" in found.sentence
    assert 0.9 * 36000 < now[0] <= 36000


def test_side_by_side_no_run_waits_for_a_gpu_that_is_in_use(
    bench: Staged, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process of a run side by side would wait without end, and the campaign with it."""
    campaign = prepared(bench, matrix, stacks=[FIRST])
    assert campaign.stages
    search = replace(campaign.stages, host=replace(campaign.stages.host, side_by_side=True))
    at_once: list[list[tuple[int, ...]]] = []

    def run_together(runner: Runner, pending: Sequence[PendingRun], _: object) -> list[tuple[PendingRun, Record]]:
        at_once.append([one.planned.gpus for one in pending])
        assert all(bench.has_free_gpus_for(one.planned, one.run_id) for one in pending)
        return [runner.run([one]) for one in pending]

    monkeypatch.setattr(module, "run_together", run_together)
    with ExitStack() as others:
        planned = PlannedRun(matrix.cells[f"{FIRST}-plain"], 1, (1,))
        others.enter_context(bench.gpus_for([(planned, "r9")], print))
        monkeypatch.setattr(time, "sleep", lambda _: others.close())
        found, _, _ = carried_out(bench, replace(campaign, stages=search))
    assert found.reached
    cell = f"{FIRST}-plain"
    assert bench.workloads[1:3] == [(cell, "standard", "single", (0,)), (cell, "standard", "single", (1,))]
    assert at_once == []


@pytest.mark.slow
def test_what_ran_before_the_host_was_set_otherwise_is_run_again(bench: Staged, matrix: Matrix) -> None:
    bench.host = bench.host.model_copy(update={"kernel_parameters": {"iommu": "off"}})
    carried_out(bench, prepared(bench, matrix))
    before = len(bench.workloads)
    carried_out(bench, prepared(bench, matrix))
    assert len(bench.workloads) == before
    bench.host = bench.host.model_copy(update={"kernel_parameters": {"iommu": "pt"}})
    carried_out(bench, prepared(bench, matrix))
    assert len(bench.workloads) == 2 * before


@pytest.mark.slow
def test_good_on_the_one_gpu_that_is_left_does_not_end_a_campaign_of_two(
    bench: Staged, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "unhealthy_gpus", lambda *_: {1})
    monkeypatch.setattr("harness.campaign.gpus.unhealthy.unhealthy_gpus", lambda *_: {1: "its probe failed"})
    monkeypatch.setattr(module, "recheck_unhealthy", lambda *_: None)
    found, display, _ = carried_out(bench, prepared(bench, matrix))
    assert {gpus for *_, gpus in bench.workloads} == {(0,)}
    assert "GPU 1 takes no more runs: its probe failed" in display.problems
    assert not found.reached
    assert found.continues
    assert found.why == "exhausted"
    assert "GPU 1 is unhealthy" in found.sentence
    monkeypatch.setattr(module, "unhealthy_gpus", lambda *_: set())
    again, _, continued = carried_out(bench, prepared(bench, matrix))
    assert continued
    assert again.reached


def make_gpu_unhealthy_after(
    monkeypatch: pytest.MonkeyPatch, bench: Staged, runs: int, healthy_again: int = 10**6
) -> None:
    """Make GPU 1 unhealthy after `runs` more runs, until it has been probed `healthy_again` times."""
    probes: list[object] = []
    start = len(bench.workloads)

    def unhealthy(*_: object) -> dict[int, str]:
        return {1: "its probe failed"} if len(bench.workloads) - start >= runs and len(probes) < healthy_again else {}

    def recheck(pending: list[PendingRun], *_: object) -> None:
        probes.extend(one for one in pending if one.planned.gpus == (1,) and unhealthy())

    monkeypatch.setattr(module, "unhealthy_gpus", unhealthy)
    monkeypatch.setattr("harness.campaign.gpus.unhealthy.unhealthy_gpus", unhealthy)
    monkeypatch.setattr(module, "recheck_unhealthy", recheck)


@pytest.mark.slow
@pytest.mark.parametrize(("every", "probes"), [(0.0, 5), (1e9, 1)])
def test_a_gpu_that_recovers_takes_runs_again(
    every: float, probes: int, bench: Staged, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RECHECK_SECONDS", every)
    make_gpu_unhealthy_after(monkeypatch, bench, runs=3, healthy_again=probes)
    found, display, _ = carried_out(bench, prepared(bench, matrix))
    assert "GPU 1 takes no more runs: its probe failed" in display.problems
    assert "GPU 1 takes runs again: it passes its probe" in display.notices
    assert found.reached
    assert f"{FIRST}-plain on 2 GPUs (ddp) is good" in found.sentence


def test_a_gpu_that_fails_what_the_other_passes_is_said_once_to_be_left_out(bench: Staged, matrix: Matrix) -> None:
    bench.passes = lambda run: 1 not in run.planned.gpus
    found, display, _ = carried_out(bench, prepared(bench, matrix, stacks=ALL))
    [said] = [one for one in display.problems if "GPU 1 is left out from now on" in one]
    assert "failed what another GPU passed" in said
    assert found.sentence.startswith("On one GPU ")


def test_a_bad_gpu_that_runs_are_still_made_on_is_not_said_to_be_left_out(
    bench: Staged, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "bad_gpus", lambda _: (0, 1))
    _, display, _ = carried_out(bench, prepared(bench, matrix))
    assert not [one for one in display.problems if "left out" in one]


def test_where_the_host_may_be_rebooted_a_campaign_of_two_gpus_ends_when_one_is_lost(
    bench: Staged, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign = prepared(bench, matrix)
    assert campaign.stages is not None
    make_gpu_unhealthy_after(monkeypatch, bench, runs=3)
    with begin_or_continue(campaign.plan, bench) as (begun, _):
        runner = Runner(bench, campaign.plan.workload, RecordingDisplay(), begun.id)
        found = module.run_stages(campaign.stages, campaign, begun, runner, lambda: True)
    assert len(bench.workloads) == 3
    assert (found.why, found.continues) == ("exhausted", True)
    assert "GPU 1 is unhealthy" in found.sentence
    make_gpu_unhealthy_after(monkeypatch, bench, runs=10**6)
    again, _, continued = carried_out(bench, campaign)
    assert continued
    assert again.reached


def test_runs_side_by_side_spend_the_time_once(make_record: MakeRecord) -> None:
    first = Row.of(make_record())._replace(started=1000.0, finished=4600.0)
    beside = first._replace(run_id="beside", started=1001.0, finished=4000.0)
    longer = first._replace(run_id="longer", started=4500.0, finished=5000.0)
    later = first._replace(run_id="later", started=9000.0, finished=9010.0)
    assert seconds_spent([later, beside, first, longer]) == 4010.0
    assert seconds_spent([]) == 0.0
