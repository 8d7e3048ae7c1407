"""Tests of runs on GPUs on which no stack has passed its probe since the boot. Nothing is really run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.base.errors import UserError
from harness.campaign.bench.plan import Plan, PlannedRun
from harness.campaign.campaign import Campaign
from harness.campaign.gpus.unproven import host_cause
from harness.campaign.runner import Runner
from harness.campaign.sequence.run_plan import run_plan
from harness.doctor.finding import Finding, problem
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.files.run_files import HealthStep, Record
from harness.evidence.gpus.health_log import append_steps
from harness.evidence.index import Index
from harness.evidence.records import Results
from harness.evidence.verdicts.counting import counts_of
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix
from tests.harness.doctor import trees
from tests.harness.pretending import RecordingDisplay
from tests.harness.scripted_bench import ScriptedBench

OLD, NEW = "rocm6.2-torch2.5.1-plain", "rocm6.3-torch2.9.1-plain"


class Probing(ScriptedBench):
    """A bench on which the stacks in `broken` fail their probe; the others pass it, and their runs complete.

    `steps`: those of GPU 0 so far, the last of which decides whether a failed probe is the stack's fault.
    """

    broken: frozenset[str]
    make_step: Callable[..., HealthStep]
    steps: list[HealthStep]

    def run_cell(self, run: Any, *rest: object) -> Record:
        fails = run.cell.stack.name in self.broken
        proven = bool(self.steps) and self.steps[-1].check == "probe" and self.steps[-1].good is True
        self.note(check="probe", environment=run.cell.stack.name, gpu=run.gpus[0], good=None if fails else True)
        outcome, diagnosis = ("completed", None) if not fails else ("failed", "missing-arch")
        if fails and not proven:
            outcome, diagnosis = "host-fault", "not-begun"
        intent = run.intent(None)
        record = self.make_record(run.run_id, outcome, diagnosis, "its probe failed").model_copy(
            update={"intent": intent, "finished": intent.started + 1}
        )
        self.results.begin(record.intent)
        self.results.finish(record)
        self.made.append(run.run_id)
        return record

    def note(self, **about: object) -> None:
        self.steps.append(self.make_step(**about))
        append_steps(self.results, self.steps[-1:])


@pytest.fixture
def bench(
    tmp_path: Path, dual_host: HostFacts, make_record: Callable[..., Record], make_step: Callable[..., HealthStep]
) -> Probing:
    bench = Probing(Results(tmp_path / "results"), ProcessExecutor(), dual_host, (0, 1))
    bench.make_record, bench.make_step, bench.made = make_record, make_step, []
    bench.steps = []
    return bench


def run(bench: Probing, matrix: Matrix, *cells: str, cause: Finding | None = None) -> RecordingDisplay:
    display, workload = RecordingDisplay(), matrix.workloads["quick"]
    plan = Plan(
        workload, tuple(PlannedRun(matrix.cells[cell], 1, (0,)) for cell in cells), (), 0.0, 0.0, None, "", 0.0, None
    )
    run_plan(plan, Campaign("c", bench.results), Runner(bench, workload, display, "c", 2), lambda: cause)
    return display


def test_a_stack_is_put_off_until_anothers_probe_has_passed(bench: Probing, matrix: Matrix) -> None:
    bench.broken = frozenset({"rocm6.2-torch2.5.1"})
    display = run(bench, matrix, OLD, NEW)
    assert bench.made == [f"c-{OLD}-1", f"c-{NEW}-1", f"c-{OLD}-1-again2"]
    rows = {row.run_id: row for row in Index(bench.results).rows()}
    counts = counts_of(bench.results)
    assert [counts[run_id].counts_as for run_id in bench.made] == ["not-counted", "passed", "failed"]
    assert rows[bench.made[2]].diagnosis == "missing-arch"
    assert any("other stacks are tried first" in line for line in display.lines)


def test_where_no_probe_passes_failures_are_recorded_against_none(bench: Probing, matrix: Matrix) -> None:
    bench.broken = frozenset({"rocm6.2-torch2.5.1", "rocm6.3-torch2.9.1"})
    display = run(bench, matrix, OLD, NEW, "rocm6.3-torch2.9.1-no-sdma")
    assert bench.made == [f"c-{OLD}-1", f"c-{NEW}-1"]
    assert not any(one.counts for one in counts_of(bench.results).values())
    said = "no stack's probe has passed on GPU 0 since the boot: "
    assert display.lines[-1].startswith(f"{said}3 runs there left out")
    assert run(bench, matrix, OLD).lines[-1].startswith(f"{said}1 run there left out")


def test_a_stack_whose_probe_fails_after_anothers_run_is_put_off_until_that_ones_passes_again(
    bench: Probing, matrix: Matrix
) -> None:
    """Without a probe since that run, it may have left the GPU unhealthy."""
    bench.broken = frozenset({"rocm6.2-torch2.5.1"})
    for check, good in (("probe", True), ("memory", None)):
        bench.note(check=check, environment="rocm6.3-torch2.9.1", gpu=0, good=good)
    display = run(bench, matrix, OLD, NEW)
    assert bench.made == [f"c-{OLD}-1", f"c-{NEW}-1", f"c-{OLD}-1-again2"]
    assert any("other stacks are tried first" in line for line in display.lines)
    bench.note(check="memory", environment="rocm6.3-torch2.9.1", gpu=0, good=None)
    assert (
        run(bench, matrix, f"{OLD.removesuffix('plain')}no-sdma")
        .lines[-1]
        .startswith("no stack's probe has passed on GPU 0 since the last run there: 1 run there left out")
    )


def test_a_cause_in_the_host_stops_the_campaign_with_its_remedy(bench: Probing, matrix: Matrix) -> None:
    bench.broken = frozenset({"rocm6.2-torch2.5.1"})
    cause = problem("there is no /dev/kfd", "every ROCm program opens it", "sudo modprobe amdgpu")
    with pytest.raises(UserError, match=r"^there is no /dev/kfd; sudo modprobe amdgpu, then the same command"):
        run(bench, matrix, OLD, NEW, cause=cause)
    assert len(bench.made) == 1


def test_the_doctor_names_a_missing_group_and_a_missing_device(bench: Probing, matrix: Matrix, tmp_path: Path) -> None:
    tree = trees.dual_7900xt(tmp_path / "root")
    bench.root = tree.root
    assert host_cause(matrix, bench) is None
    tree.groups(4, 27)
    cause = host_cause(matrix, bench)
    assert cause is not None
    assert "may not open /dev/kfd" in cause.what
    tree.remove("dev/kfd")
    cause = host_cause(matrix, bench)
    assert cause is not None
    assert cause.what.startswith("there is no /dev/kfd")
