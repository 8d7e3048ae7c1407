"""What the report says. Pure."""

import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.contracts import HostFacts, Record
from harness.index import Row
from harness.matrix import Matrix
from harness.presets import Finding, beyond_cpu, lint
from harness.status import Status, summarise


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
class RunView:
    """One run as the report shows it."""

    record: Record
    command: str
    last_train_loss: float | None
    last_validation_loss: float | None


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
    records: Sequence[Record], matrix: Matrix, current: Mapping[tuple[str, str], str], made: float
) -> Report:
    """The report on all records of a results folder; `current` as in `summarise`, `made` in seconds since 1970."""
    records = sorted(records, key=lambda record: record.intent.started)
    statuses = summarise((Row.of(record) for record in records), current)
    presets = {record.intent.preset for record in records}
    excluded = {c.id: c.excluded for c in matrix.cells.values() if c.excluded}
    return Report(
        made=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(made)),
        headline=_headline(records),
        cautions=tuple(_cautions(records, statuses, matrix)),
        hosts=tuple({r.intent.host.fingerprint: r.intent.host for r in records}.values()),
        grids=tuple(_grids(records, statuses, matrix, excluded)),
        statuses=tuple(statuses),
        runs=tuple(_run_view(record) for record in reversed(records)),
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
    counted = status.runs - status.outcomes["interrupted"] - status.outcomes["host-fault"]
    why = ", ".join(f"{name} x{count}" for name, count in status.diagnoses.items())
    kind = "untested" if not counted else "all" if completed == counted else "some" if completed else "none"
    return GridCell(f"{completed} of {counted}", kind, why)


def _grouped(excluded: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    by_reason: dict[str, list[str]] = {}
    for cell, reason in excluded.items():
        by_reason.setdefault(reason, []).append(cell)
    return tuple((", ".join(cells), reason) for reason, cells in by_reason.items())


def _run_view(record: Record) -> RunView:
    losses = record.result.epoch_losses if record.result else ()
    commands = [shlex.join(command) for command in record.intent.commands.values()]
    return RunView(
        record=record,
        command=" && ".join(commands),
        last_train_loss=losses[-1].train if losses else None,
        last_validation_loss=losses[-1].validation if losses else None,
    )
