"""A bench that only pretends to make runs, and a display that records what it is shown."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Self, cast

from harness.base.errors import UserError
from harness.campaign.bench.bench import Bench, StackUnavailableError
from harness.campaign.bench.display import Display
from harness.campaign.bench.plan import PlannedRun
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.files.run_files import Record
from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.matrix.cells import Cell, Preset
from harness.matrix.workloads import Workload
from tests.harness.gpu_tree import a_gpu

if TYPE_CHECKING:
    from harness.environments.environment import Environment

Values = dict[str, Any]


class InstantBench(Bench):
    """A bench whose runs take no time; `made` lists the cell and the GPUs of each."""

    made: list[tuple[str, tuple[int, ...]]]

    @classmethod
    def on(cls, folder: Path, host: HostFacts) -> Self:
        """Return a bench on a host with two GPUs, whose locks are below `folder`."""
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

    def requested_run(self, planned: PlannedRun, run_id: str, workload: Workload, campaign: str | None = None) -> Any:
        return SimpleNamespace(planned=planned, run_id=run_id, gpus=planned.gpus)

    def run_cell(self, run: Any, *_: object) -> Any:
        self.made.append((run.planned.cell.id, run.planned.gpus))
        intent = SimpleNamespace(started=0.0)
        return SimpleNamespace(outcome="completed", diagnosis=None, finished=1.0, first_step=True, intent=intent)


@dataclass(frozen=True)
class FakeEnvironment:
    device: str = "cuda"
    image: str | None = None
    version: str = "3.11"
    revision: str | None = None

    def hash(self, preset: Preset) -> str:
        return preset.name


@dataclass(frozen=True)
class FakeRun:
    planned: PlannedRun
    run_id: str
    workload: Workload
    campaign: str | None


class RecordWritingBench(InstantBench):
    """A bench whose runs leave records.

    - `missing`: the stacks that cannot be made.
    - `unanswered_tries`: how many more times the source of a stack does not answer, by stack.
    """

    make_record: Callable[..., Record]
    missing: tuple[str, ...] = ()
    unanswered_tries: Mapping[str, int] = MappingProxyType({})

    def environment(self, cell: Cell, notify: Any = None) -> Any:
        if cell.stack.name in self.missing:
            raise UserError("its wheels are gone")
        self._environments[self._name(cell)] = cast("Any", FakeEnvironment())
        return self._environments[self._name(cell)]

    def _look_at_source(self, cell: Cell, verifier: Any) -> None:
        if times := self.unanswered_tries.get(cell.stack.name):
            self.unanswered_tries = {**self.unanswered_tries, cell.stack.name: times - 1}
            raise StackUnavailableError(cell.stack, "the registry does not answer", passes=True)

    def requested_run(self, planned: PlannedRun, run_id: str, workload: Workload, campaign: str | None = None) -> Any:
        return FakeRun(planned, run_id, workload, campaign)

    def leave(self, run: FakeRun, outcome: str, diagnosis: str | None, about: Values, update: Values) -> Record:
        """Write the record of a run: `about` holds keywords of `make_record`, `update` fields of the record itself."""
        cell = run.planned.cell
        known: Values = {"cell": cell.id, "stack": cell.stack.name, "preset": cell.preset.name, "device": "cuda"}
        known |= {"environment_hash": cell.preset.name, "campaign": run.campaign, "repeat": run.planned.repeat}
        known |= {"host": self.host, "gpus": run.planned.gpus, **about}
        record = self.make_record(run.run_id, outcome, diagnosis, **known).model_copy(update=update)
        self.results.begin(record.intent)
        self.results.finish(record)
        return record


class RecordingDisplay(Display):
    """A display that keeps the notices, problems, steps and records that it is given."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.notices: list[str] = []
        self.steps: list[str] = []
        self.records: list[Record] = []

    @property
    def lines(self) -> list[str]:
        return [*self.steps, *self.notices, *self.problems]

    def notice(self, text: str) -> None:
        self.notices.append(text)

    def problem(self, text: str) -> None:
        self.problems.append(text)

    def step(self, text: str) -> None:
        self.steps.append(text)

    def finished(self, record: Record) -> None:
        self.records.append(record)
