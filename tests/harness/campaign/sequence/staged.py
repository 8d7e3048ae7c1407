"""A bench for campaigns in stages on a host with two GPUs; the records are real, the runs are not."""

from collections.abc import Callable, Sequence
from typing import Any

from harness.base.files.hashes import json_hash
from harness.campaign.bench.plan import make_plan
from harness.campaign.campaign import begin_or_continue
from harness.campaign.planning.prepare import PreparedCampaign
from harness.campaign.runner import Runner
from harness.campaign.sequence import run_stages as module
from harness.environments.capabilities import Capabilities
from harness.evidence.files.app_files import InputFile
from harness.evidence.files.run_files import Explanation, Record
from harness.evidence.index import Index
from harness.matrix.cells import Matrix
from harness.matrix.workload_options import family, train_options
from harness.run.workload_data import read_data
from harness.search.conclusion import Conclusion
from harness.search.goal import Goal
from harness.search.stages.runs import StageHost
from harness.search.stages.search import StageSearch
from tests.harness.pretending import FakeRun, RecordingDisplay, RecordWritingBench

FIRST, SECOND = "rocm6.3-torch2.9.1", "rocm10.0.0-torch2.13.0"
ALL = (FIRST, SECOND, "rocm7.14.0-torch2.12.0", "rocm7.0-torch2.10.0")
HOURS = {"endurance": 1.25}
MakeRecord = Callable[..., Record]


class Staged(RecordWritingBench):
    """A bench whose runs leave records.

    - `passes`: returns whether a run completes.
    - `refuses`: returns whether the app refuses the command of a run.
    - `begins`: returns whether a run is begun.
    - `stop_after`: the number of runs after which Ctrl-C is pressed.
    - `fails_in`: the last phase of a run that fails.
    - `remedies`: the presets that the explanation of a failure suggests.
    """

    passes: Callable[[FakeRun], bool]
    refuses: Callable[[FakeRun], bool] = staticmethod(lambda _: False)
    begins: Callable[[FakeRun], bool] = staticmethod(lambda _: True)
    stop_after: int | None = None
    fails_in: str | Callable[[FakeRun], str] | None = "first-step"
    remedies: tuple[str, ...] = ()
    fails_after_hours: float = 0.0
    workloads: list[tuple[str, str, str, tuple[int, ...]]]

    def run_cell(self, run: Any, *_: object) -> Any:
        if len(self.workloads) == self.stop_after:
            raise KeyboardInterrupt
        planned, workload = run.planned, run.workload
        self.workloads.append((planned.cell.id, workload.name, workload.strategy, planned.gpus))
        passed = self.passes(run) and not self.refuses(run)
        started = 1e9 + 60.0 * len(self.workloads)
        about = {
            "workload": workload.name,
            "options": train_options(workload, len(planned.gpus)),
            "family": family(workload, len(planned.gpus)),
            "workload_hash": json_hash([workload.name, workload.strategy]),
            "data": read_data(self.data) if self.data else InputFile(path="synthetic-1.csv", sha256="a" * 64),
            "started": started,
        }
        if not self.begins(run):
            return self.leave(run, "host-fault", "not-begun", about, {"finished": started + 0.01})
        update = {
            "finished": started + 0.01,
            "last_phase": "teardown" if passed else self._failed_in(run),
            "explanation": None if passed else explanation(self.remedies),
            "exposure_seconds": 3600 * HOURS.get(workload.name, 0.02) if passed else 3600 * self.fails_after_hours,
            "first_step": True if passed or self.fails_after_hours else None,
        }
        refused: tuple[str, str | None] = ("failed", "refused") if self.refuses(run) else ("hung", "no-progress")
        outcome, diagnosis = ("completed", None) if passed else refused
        return self.leave(run, outcome, diagnosis, about, update)

    def _failed_in(self, run: FakeRun) -> str | None:
        return self.fails_in(run) if callable(self.fails_in) else self.fails_in


def explanation(presets: tuple[str, ...]) -> Explanation:
    return Explanation(rule="r", class_="hang", cause="c", remedy="r", link=None, presets=presets, lines=())


def prepared(
    bench: Staged, matrix: Matrix, free_bytes: int | None = None, stacks: Sequence[str] = (FIRST, SECOND)
) -> PreparedCampaign:
    able = Capabilities(bench.gpus, "process", frozenset({"3.11"}), free_bytes, place=str(bench.results.folder))
    cells = {name: [cell for cell in matrix.select("default") if cell.stack.name == name] for name in stacks}
    chosen = [cell for of_stack in cells.values() for cell in of_stack]
    goal = Goal(0.8, 0.95, budget=36000.0, mtbf_hours=1.0)
    plan = make_plan(chosen, matrix.workloads["quick"], 1, able, {}, goal=goal)
    return PreparedCampaign(plan, able, bench, matrix, StageSearch(matrix, cells, StageHost((0, 1), (0, 1))))


def carried_out(bench: Staged, prepared: PreparedCampaign) -> tuple[Conclusion, RecordingDisplay, bool]:
    """Run a campaign; return its conclusion, its display, and whether it continued an earlier one."""
    display = RecordingDisplay()
    assert prepared.stages is not None
    with begin_or_continue(prepared.plan, bench) as (campaign, continued):
        runner = Runner(bench, prepared.plan.workload, display, campaign.id)
        return module.run_stages(prepared.stages, prepared, campaign, runner), display, continued


def make_imported(bench: Staged) -> None:
    """Make all runs so far those of another results folder."""
    for run_id in bench.results.finished():
        bench.results.folder_of(run_id).imported.write_text("{}", encoding="utf-8")
    Index(bench.results).rebuild()
    bench.workloads.clear()
