"""Makes runs on this host to find how small a part of a failed run still fails: of its data, steps or shape.

These runs have a results folder of their own: they are chosen because they fail, and would distort the verdict of their
cell.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Literal

from harness.base.errors import UserError
from harness.base.files.hashes import file_hash, json_hash
from harness.base.files.storage import cannot_be_written
from harness.base.wording import many
from harness.campaign.bench.bench import Bench
from harness.campaign.bench.display import Display
from harness.campaign.bench.plan import PendingRun, PlannedRun
from harness.campaign.gpus.unhealthy import refuse_unhealthy
from harness.campaign.runner import Runner
from harness.evidence.files.app_files import Progress
from harness.evidence.files.run_files import Record
from harness.evidence.records import Results, attempt_ids
from harness.evidence.verdicts.counting import REFUSED, counts_of
from harness.matrix.cells import Cell
from harness.matrix.workload_options import workload_hash
from harness.matrix.workloads import Workload
from harness.run.data_parts import DataChunks
from harness.run.workload_data import DataRefusedError
from harness.search.least_failing import BudgetSpentError
from harness.search.trials import require_begun

Over = Literal["data", "steps", "shape"]
FOLDER = "minimise"


@dataclass(frozen=True)
class FailedRun:
    """A run that failed, with what is needed to repeat it: the cell, the workload and the data."""

    record: Record
    cell: Cell
    workload: Workload
    data: Path


@dataclass(frozen=True)
class SmallerRun:
    """A smaller version of a failed run.

    Attributes:
        workload: the workload to run.
        chunks: the first chunk of the data and the one after the last; None for all data.
        most_steps: after how many steps the run is ended; None if it is not ended.
    """

    workload: Workload
    chunks: tuple[int, int] | None = None
    most_steps: int | None = None


@dataclass(frozen=True)
class Ended:
    """How an attempt ended. `steps`: the steps that its progress reports; `other`: it failed in a different way."""

    failed: bool
    steps: int | None = None
    other: bool = False


class EnoughSteps(KeyboardInterrupt):
    """Raised to end a run when it has made as many steps as wanted."""


def require_failed(record: Record) -> None:
    """Refuse a run that did not fail.

    Raises:
        UserError: saying so.
    """
    if record.outcome in ("completed", "interrupted"):
        said = f"{record.intent.run_id}: {record.outcome}: there is no failure to look for"
        raise UserError(f"{said}; `matrix status` lists the runs")


def require_shrinkable(record: Record, over: Over = "data") -> None:
    """Refuse a run of which no smaller part can be made, or none that could fail in the same way.

    Raises:
        UserError: saying why.
    """
    run_id = record.intent.run_id
    require_failed(record)
    if record.intent.program:
        raise UserError(
            f"{run_id}: ran a program of your own, of whose data, steps and shape nothing is known here; --over "
            "variables says which variables of its cell matter"
        )
    if record.injected_fault:
        raise UserError(f"{run_id}: a fault was injected into it on purpose: what fails is known")
    if over == "steps" and record.result is not None:
        raise UserError(
            f"{run_id}: trained to its end, and {record.ended} was found after it, which a run that is ended sooner "
            "does not come to; --over data or --over shape makes it smaller"
        )


def failed_run(record: Record, cell: Cell, workloads: dict[str, Workload], data: Path | None) -> FailedRun:
    """Return a run that failed, with what is needed to repeat it.

    `data` is the file with the run's data, if the file is no longer where the run read it.

    Raises:
        UserError: when its data is not there, or its workload cannot be restored from its record.
    """
    intent, file = record.intent, data or Path(record.intent.data.path)
    try:
        # The record may be another user's, and name a pipe or a device, which has no end.
        same = file.is_file() and file_hash(file) == intent.data.sha256
    except OSError:
        same = False
    if not same:
        raise UserError(f"{intent.run_id}: {file} does not hold its data; give the file that it read as --data")
    named = workloads.get(intent.workload)
    made = named and named.model_copy(update=_options(intent.options))
    if made is None:
        made = Workload.model_validate(
            {
                "description": f"that of {intent.run_id}",
                "synthetic": {"sessions": 1},
                "time_limit": intent.time_limit,
                "smoke_test": intent.smoke_test,
                **_options(intent.options),
            }
        ).model_copy(update={"name": intent.workload})
    made = made.model_copy(update={"time_limit": intent.time_limit})
    hashes = [workload_hash(made, intent.data.sha256, resumed=resumed) for resumed in (False, True)]
    if intent.workload_hash not in hashes:
        raise UserError(f"{intent.run_id}: this version makes another workload of its options; run it again")
    return FailedRun(record, cell, made, file)


def _options(options: dict[str, object]) -> dict[str, object]:
    kept = {name: value for name, value in options.items() if name in Workload.model_fields}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in kept.items()}


def steps_of(record: Record) -> int | None:
    """Return the steps that the progress of a run reports, summed over its models; None if that is unknown."""
    return None if record.steps_accounted is None else sum(record.steps_accounted)


def same_failure(record: Record, wanted: Record) -> bool:
    """Return whether two runs failed alike: same outcome and diagnosis, and for an `app-error` also the same class."""
    if (record.outcome, record.diagnosis) != (wanted.outcome, wanted.diagnosis):
        return False
    classes = [one.explanation and one.explanation.class_ for one in (record, wanted)]
    return record.diagnosis != "app-error" or classes[0] == classes[1]


def bench_of_search(bench: Bench, over: Over, failed: FailedRun) -> tuple[Bench, str]:
    """Return a bench with a results folder for one search, and the folder's name, which is the same for that search."""
    intent = failed.record.intent
    what = [intent.run_id, intent.workload_hash, bench.environment(failed.cell).hash(failed.cell.preset)]
    name = f"{over}-{intent.run_id[:60]}-{json_hash([*what, bench.host.fingerprint])[:8]}"
    return replace(bench, results=Results(bench.results.folder / FOLDER / name)), name


@dataclass
class ShrinkingRuns:
    """Makes the runs of one search, at most `max_runs`, and finds those that it made before.

    Attributes:
        bench: the bench, with a results folder of the search's own.
        others: how many runs failed in a different way than `failed`.
        refused: how many runs were not made because their data cannot be trained on.
    """

    bench: Bench
    failed: FailedRun
    name: str
    chunks: DataChunks | None
    max_runs: int
    display: Display
    runs: int = 0
    others: int = 0
    refused: int = 0
    _seconds: list[float] = field(default_factory=list)

    def end(self, attempt: SmallerRun) -> Ended:
        """Return how an attempt ended, from its record if it was made before, or else from a new run.

        Interrupted runs say nothing about the failure and are repeated.

        Raises:
            BudgetSpentError: when all allowed runs were made.
            UserError: when a GPU is unhealthy, or the host fails.
        """
        if self.runs >= self.max_runs:
            raise BudgetSpentError
        self.runs += 1
        what = [attempt.workload.model_dump(mode="json"), attempt.chunks, attempt.most_steps]
        for run_id in attempt_ids(f"{self.name}-{self.runs:04d}-{json_hash(what)[:6]}"):
            record = self.bench.results.record(run_id) or self._run(attempt, run_id)
            if record is None:
                self.refused += 1
                return Ended(failed=False, other=True)
            self._seconds.append(record.finished - record.intent.started)
            if ended := self._judged(record, attempt):
                self.others += ended.other
                return ended
        raise AssertionError("the attempts never end")

    def _judged(self, record: Record, attempt: SmallerRun) -> Ended | None:
        """Return how a run ended; None if it says nothing about the failure."""
        require_begun(record)
        steps = steps_of(record)
        # A run may fail by itself behind the last wanted step, just before it is ended.
        on_its_way = record.outcome in ("interrupted", "failed")
        if on_its_way and attempt.most_steps and (steps or 0) >= attempt.most_steps:
            return Ended(failed=False, steps=steps)
        counted = counts_of(self.bench.results)[record.intent.run_id]
        # A refused run is not repeated: the app does not accept such a command, and would refuse it each time.
        if not counted.counts and record.diagnosis != REFUSED:
            return None
        if counted.counts_as == "passed":
            return Ended(failed=False, steps=steps)
        same = counted.gpu_fault or same_failure(record, self.failed.record)
        return Ended(failed=same, steps=steps, other=not same)

    def _run(self, attempt: SmallerRun, run_id: str) -> Record | None:
        """Make a run and return its record; None if its data cannot be trained on."""
        file = self.failed.data
        part = None
        if attempt.chunks is not None:
            assert self.chunks is not None
            file = part = self.part_file(run_id)
            self.chunks.write(*attempt.chunks, part)
        # Forget the data that the bench has read, because this run has other data.
        bench = replace(self.bench, data=file, _data={}, _ready=set())
        try:
            try:
                bench.make_ready(self.failed.cell, attempt.workload, self.display)
            except DataRefusedError as error:
                if attempt.chunks is None:
                    raise
                self.display.problem(f"{self.words(attempt)}: {error}")
                return None
            self._make(bench, attempt, run_id)
        finally:
            if part:
                part.unlink(missing_ok=True)
        return self.bench.results.record(run_id)

    def _make(self, bench: Bench, attempt: SmallerRun, run_id: str) -> None:
        intent = self.failed.record.intent
        planned = PlannedRun(self.failed.cell, self.runs, intent.gpus)
        pending = PendingRun(planned, run_id, self.runs)
        refuse_unhealthy(pending, bench)
        self.display.step(f"run {self.runs}, of {self.max_runs} at most: {self.words(attempt)}")
        left = median(self._seconds) * (self.max_runs - self.runs + 1) if self._seconds else None
        runner = Runner(bench, attempt.workload, self.display, self.name, self.max_runs)
        enough = _Enough(attempt.most_steps)
        try:
            runner.run([pending], left, observe=enough.saw)
        except EnoughSteps as why:
            record = bench.results.record(run_id)
            if record and (steps_of(record) or 0) < (attempt.most_steps or 0):
                # Such a run would be repeated again and again.
                raise UserError(
                    f"{run_id}: {why}, and its progress does not account for them; leave --over steps out"
                ) from None

    def words(self, attempt: SmallerRun) -> str:
        """Return what an attempt runs, in words."""
        if attempt.chunks is not None and self.chunks is not None:
            first, last = attempt.chunks
            what = "sessions" if self.chunks.are_sessions else "parts"
            return f"{what} {self.chunks.names[first]} to {self.chunks.names[last - 1]}"
        if attempt.most_steps is not None:
            return f"{attempt.most_steps} steps"
        workload = attempt.workload
        layers = f", layers {','.join(map(str, workload.hidden_layers))}" if "mlp" in workload.model else ""
        return f"batches of {workload.batch_size}, model {' then '.join(workload.model)}{layers}"

    def part_file(self, name: str) -> Path:
        """Return the file for a part of the data, and make its folder.

        Raises:
            UserError: when the folder cannot be made.
        """
        folder = self.bench.results.folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_be_written(f"--results {folder}", error) from None
        return folder / f"{name}.csv"


class _Enough:
    """Ends a run when its progress reports so many steps, summed over its models."""

    def __init__(self, most: int | None) -> None:
        self._most, self._before, self._last = most, 0, 0

    def saw(self, line: Progress) -> None:
        """Count the steps of a progress line.

        Raises:
            EnoughSteps: when the run has made enough steps.
        """
        if self._most is None or line.rank or line.phase not in ("first-step", "step"):
            return
        if line.done < self._last:
            self._before += self._last
        self._last = line.done
        if self._before + self._last >= self._most:
            raise EnoughSteps(f"the search after {many(self._before + self._last, 'step')}")
