"""A bench that only pretends to make runs, and a display that listens."""

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self, cast

from harness.campaign.bench import Bench
from harness.campaign.plan import PlannedRun
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.matrix.cells import Cell
from harness.matrix.workloads import Workload
from tests.harness.gpu_tree import a_gpu

if TYPE_CHECKING:
    from harness.environments.environment import Environment


class Pretending(Bench):
    """A bench that makes runs in no time, and remembers on which GPUs."""

    made: list[tuple[str, tuple[int, ...]]]

    @classmethod
    def on(cls, folder: Path, host: HostFacts) -> Self:
        """On a host with two GPUs, whose locks are in a folder of the test's."""
        root, results = folder / "root", Results(folder / "results")
        (root / "run/lock").mkdir(parents=True)
        (root / "run/lock").chmod(0o1777)
        two = host.model_copy(update={"gpus": (a_gpu(0), a_gpu(1))})
        bench = cls(results, ProcessExecutor(), two, (0, 1), root=root)
        bench.made = []
        return bench

    def environment(self, cell: Cell, notify: Any = None) -> Any:
        self._environments[self._name(cell)] = cast("Environment", object())

    def data_of(self, *_: object) -> Any:
        return None

    def run(self, planned: PlannedRun, run_id: str, workload: Workload, campaign: str | None = None) -> Any:
        return SimpleNamespace(planned=planned, run_id=run_id, gpus=planned.gpus)

    def run_cell(self, run: Any, *_: object) -> Any:
        self.made.append((run.planned.cell.id, run.planned.gpus))
        return SimpleNamespace(outcome="completed", diagnosis=None, finished=1.0, intent=SimpleNamespace(started=0.0))


class Listening:
    """A display that remembers what it was given."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.steps: list[str] = []

    def problem(self, text: str) -> None:
        self.problems.append(text)

    def step(self, text: str) -> None:
        self.steps.append(text)

    def lane(self, _number: int) -> Self:
        return self

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None
