"""What the report says. Pure."""

import shlex
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.app_files import MemoryPeaks, TimeKind, Training
from harness.contracts import HostFacts, Record
from harness.index import Row
from harness.matrix import Matrix
from harness.presets import Finding, beyond_cpu, lint
from harness.status import Status, summarise

# Less of the time is not worth a word.
SMALLEST_SHARE = 0.01


@dataclass(frozen=True)
class GridCell:
    """One place of the grid: how often the cell completed, or why it was not run."""

    text: str
    kind: str
    title: str


@dataclass(frozen=True)
class Grid:
    """Stacks x presets of runs that may be counted together: one workload, one kind of host, one executor."""

    title: str
    stacks: tuple[str, ...]
    presets: tuple[str, ...]
    cells: Mapping[tuple[str, str], GridCell]


@dataclass(frozen=True)
class TrainingView:
    """One model of a run; `text` says what was done, `time` where it went; the losses are those of the last epoch."""

    kind: str
    text: str
    train_loss: float | None
    validation_loss: float | None
    time: str


@dataclass(frozen=True)
class RunView:
    """One run as the report shows it. `trainings`: in order, the main model's last; none without a result."""

    record: Record
    command: str
    trainings: tuple[TrainingView, ...]
    memory: str

    @property
    def last_validation_loss(self) -> float | None:
        """That of the main model."""
        return self.trainings[-1].validation_loss if self.trainings else None


@dataclass(frozen=True)
class Report:
    """Everything a report shows."""

    made: str
    headline: str
    cautions: tuple[str, ...]
    hosts: tuple[HostFacts, ...]
    grids: tuple[Grid, ...]
    statuses: tuple[Status, ...]
    runs: tuple[RunView, ...]
    excluded: tuple[tuple[str, str], ...]
    findings: tuple[Finding, ...]


def build_report(
    records: Sequence[Record],
    matrix: Matrix,
    current: Mapping[tuple[str, str], str],
    made: float,
    tainted: Collection[str] = (),
) -> Report:
    """The report on all records of a results folder; `current` and `tainted` as in `summarise`, `made` since 1970."""
    everything = sorted(records, key=lambda record: record.intent.started)
    records = [record for record in everything if record.drill is None]
    statuses = summarise((Row.of(record) for record in records), current, tainted)
    presets = {record.intent.preset for record in records}
    excluded = {c.id: c.excluded for c in matrix.cells.values() if c.excluded}
    return Report(
        made=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(made)),
        headline=_headline(records),
        cautions=(*_cautions(records, statuses, matrix), *_drills(everything), *_tainted(statuses)),
        hosts=tuple({r.intent.host.fingerprint: r.intent.host for r in records}.values()),
        grids=tuple(_grids(records, statuses, matrix, excluded)),
        statuses=tuple(statuses),
        runs=tuple(_run_view(record) for record in reversed(everything)),
        excluded=_grouped(excluded),
        findings=tuple(finding for finding in beyond_cpu(lint(matrix), matrix) if finding.preset in presets),
    )


def _in_order(names: Iterable[str], order: Iterable[str]) -> tuple[str, ...]:
    """Names as in the matrix file; those it no longer has come last."""
    used = dict.fromkeys(names)
    return tuple(dict.fromkeys([*(name for name in order if name in used), *used]))


def _headline(records: Sequence[Record]) -> str:
    if not records:
        return "Nothing was run yet."
    cells = len({record.intent.cell for record in records})
    counts: dict[str, int] = {}
    for record in records:
        counts[record.outcome] = counts.get(record.outcome, 0) + 1
    told = ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))
    return f"{len(records)} runs of {cells} cells: {told}."


def _cautions(records: Sequence[Record], statuses: Sequence[Status], matrix: Matrix) -> list[str]:
    said = []
    if not any(record.result and record.result.device != "cpu" for record in records):
        said.append("No run used a GPU. What is shown here says nothing about any GPU or any ROCm version.")
    if any(status.stale for status in statuses):
        said.append("Runs marked stale were made with an environment that has changed since; they are not counted.")
    pairs = {(matrix.stacks[s].rocm, matrix.stacks[s].torch) for s in _ran(records, matrix) if matrix.stacks[s].rocm}
    if len({rocm for rocm, _ in pairs}) > 1 and len({torch for _, torch in pairs}) > 1:
        said.append(
            "Between these stacks ROCm and torch change together: a difference cannot be laid to one of them. "
            "The selection `neighbours` changes one at a time."
        )
    return said


def _drills(records: Sequence[Record]) -> list[str]:
    drills = sum(record.drill is not None for record in records)
    told = f"{drills} run was a drill" if drills == 1 else f"{drills} runs were drills"
    return [f"{told}, with a fault injected on purpose; shown among the runs, and not counted."] if drills else []


def _tainted(statuses: Sequence[Status]) -> list[str]:
    runs = sum(status.tainted for status in statuses)
    told = "1 run is" if runs == 1 else f"{runs} runs are"
    return [f"{told} tainted: a GPU was sick meanwhile; shown among the runs, and not counted."] if runs else []


def _ran(records: Sequence[Record], matrix: Matrix) -> set[str]:
    return {record.intent.stack for record in records} & set(matrix.stacks)


def _grids(
    records: Sequence[Record], statuses: Sequence[Status], matrix: Matrix, excluded: Mapping[str, str]
) -> Iterator[Grid]:
    """One grid per workload, kind of host and executor, the newest first."""
    together: dict[tuple[str, str, str], list[Record]] = {}
    for record in reversed(records):
        intent = record.intent
        together.setdefault((intent.workload_hash, intent.host.kind, intent.executor), []).append(record)
    for (workload, kind, executor), group in together.items():
        mine = [s for s in statuses if (s.workload_hash, s.host_kind, s.executor) == (workload, kind, executor)]
        stacks = _in_order((record.intent.stack for record in group), matrix.stacks)
        presets = _in_order((record.intent.preset for record in group), matrix.presets)
        first = group[0].intent
        gpus = ", ".join(gpu.gfx for gpu in first.host.gpus) or "no GPU"
        host = f"host with {gpus}, kernel {first.host.kernel}"
        yield Grid(
            title=f"workload {first.workload} ({workload[:8]}), {host}, executor {executor}",
            stacks=stacks,
            presets=presets,
            cells={(s, p): _grid_cell(f"{s}-{p}", mine, excluded) for s in stacks for p in presets},
        )


def _grid_cell(cell: str, statuses: Sequence[Status], excluded: Mapping[str, str]) -> GridCell:
    status = next((status for status in statuses if status.cell == cell and not status.stale), None)
    if status is None:
        return GridCell("excluded", "excluded", excluded[cell]) if cell in excluded else GridCell("-", "untested", "")
    completed = status.outcomes["completed"]
    # An interrupted run or a sick host says nothing about the cell.
    counted = sum(status.outcomes[name] for name in ("completed", "failed", "hung"))
    why = ", ".join(f"{name} x{count}" for name, count in status.diagnoses.items())
    kind = "untested" if not counted else "all" if completed == counted else "some" if completed else "none"
    return GridCell(f"{completed} of {counted}", kind, why)


def _grouped(excluded: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    by_reason: dict[str, list[str]] = {}
    for cell, reason in excluded.items():
        by_reason.setdefault(reason, []).append(cell)
    return tuple((", ".join(cells), reason) for reason, cells in by_reason.items())


def _run_view(record: Record) -> RunView:
    commands = [shlex.join(command) for command in record.intent.commands.values()]
    result = record.result
    return RunView(
        record=record,
        command=" && ".join(commands),
        trainings=tuple(_training_view(told) for told in result.trainings) if result else (),
        memory=_memory(result.memory) if result and result.memory else "",
    )


def _training_view(told: Training) -> TrainingView:
    batch = f" of {told.batch_size}" if told.batch_size else ""
    micro = f" in parts of {told.micro_batch_size}" if told.micro_batch_size not in (None, told.batch_size) else ""
    skipped = f", {told.steps_skipped} of them skipped by the scaler" if told.steps_skipped else ""
    resumed = f", resumed at step {', '.join(map(str, told.resumed_at))}" if told.resumed_at else ""
    return TrainingView(
        kind=told.model_kind,
        text=f"{told.epochs_done} epochs, {told.steps_done} steps{batch}{micro}{skipped}{resumed}, "
        f"{told.throughput.samples_per_second:.0f} samples/s",
        train_loss=told.epoch_losses[-1].train if told.epoch_losses else None,
        validation_loss=told.epoch_losses[-1].validation if told.epoch_losses else None,
        time=_time(told.time or {}),
    )


def _memory(peaks: MemoryPeaks) -> str:
    sizes = {
        "resident": peaks.peak_rss_bytes,
        "allocated on the device": peaks.peak_allocated_bytes,
        "reserved": peaks.peak_reserved_bytes,
        "in use by the driver's word": peaks.peak_driver_bytes,
    }
    said = [f"{size / 1e9:.2f} GB {name}" for name, size in sizes.items() if size is not None]
    owners = [f"{owner.name or 'pid'} {owner.pid}: {owner.bytes / 1e9:.2f} GB" for owner in peaks.owners or ()]
    if peaks.fragmentation is not None:
        said.append(f"fragmentation {peaks.fragmentation:.0%}")
    return ", ".join(said) + (f" (held by {', '.join(owners)})" if owners else "")


def _time(seconds: Mapping[TimeKind, float]) -> str:
    """Where the time went, in shares, the largest first."""
    total = sum(seconds.values())
    shares = sorted(((spent / total, kind) for kind, spent in seconds.items()), reverse=True) if total else []
    return ", ".join(f"{share:.0%} {kind}" for share, kind in shares if share >= SMALLEST_SHARE)
