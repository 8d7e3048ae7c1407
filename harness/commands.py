"""What each command does, between parsing and printing: puts this host, the matrix and the results together."""

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness import environments
from harness.campaign import Bench, Campaign, Display, begin_or_continue, carry_out
from harness.contracts import Record
from harness.errors import UserError
from harness.executors.process import ProcessExecutor
from harness.host.fingerprint import docker_answers, read_host, training_gpus
from harness.index import Index, Row
from harness.job_environment import visible_devices
from harness.matrix import Cell, Matrix, Workload
from harness.paths import ENVIRONMENTS
from harness.plan import Capabilities, Plan, PlannedRun, make_plan, why_not
from harness.records import Results, new_run_id
from harness.recovery import recover
from harness.report import build_report, to_html, to_markdown
from harness.run_cell import run_cell
from harness.status import Status, summarise
from harness.storage import write_durably


@dataclass(frozen=True)
class Prepared:
    """A plan with everything needed to carry it out."""

    plan: Plan
    capabilities: Capabilities
    bench: Bench


@dataclass(frozen=True)
class Ended:
    """How a campaign stands."""

    campaign: str
    done: int
    total: int
    all_completed: bool
    statuses: list[Status]


def prepare(
    results: Results,
    cells: Sequence[Cell],
    workload: Workload,
    repeats: int,
    *,
    named: bool,
    data: Path | None,
    interpreter: Path | None,
) -> Prepared:
    """Look at this host and plan the runs.

    Raises:
        UserError: when the data or the interpreter does not exist.
    """
    for option, file in (("--data", data), ("--python", interpreter)):
        if file is not None and not file.is_file():
            raise UserError(f"{option} {file}: no such file")
    capabilities = _capabilities(cells, interpreter)
    bench = _bench(results, data, interpreter)
    plan = make_plan(cells, workload, repeats, capabilities, _past_seconds(results, bench, workload), named=named)
    return Prepared(plan, capabilities, bench)


def check_feasible(plan: Plan) -> None:
    """Refuse a plan with nothing to run or no room for it.

    Raises:
        UserError: saying which.
    """
    if not plan.runs:
        reasons = sorted({skipped.reason for skipped in plan.skipped})
        raise UserError(f"no cell can run on this host: {'; '.join(reasons) or 'none was chosen'}")
    if not plan.fits:
        need = f"needs {plan.disk_gb:.0f} GB, {plan.free_gb:.0f} GB are free"
        raise UserError(f"{ENVIRONMENTS}: the plan {need}; free some or choose fewer stacks")


def run_campaign(prepared: Prepared, display: Display) -> Ended:
    """Carry out a plan, going on with an unfinished campaign of the same plan.

    Raises:
        KeyboardInterrupt: after the current run was recorded.
    """
    bench = prepared.bench
    index = Index(bench.results)
    for record in recover(bench.results, bench.host, bench.executor):
        index.add(record)
        display.problem(f"{record.intent.run_id}: its harness was gone; recorded as interrupted")
    campaign, continued = begin_or_continue(prepared.plan, bench)
    if continued:
        display.problem(f"going on with campaign {campaign.id}, which was interrupted")
    carry_out(prepared.plan, bench, campaign, display)
    return _ended(prepared, campaign)


def after_interrupt(prepared: Prepared) -> Ended:
    """How the campaign stands that was just interrupted."""
    campaign, _ = begin_or_continue(prepared.plan, prepared.bench)
    return _ended(prepared, campaign)


def run_one(
    results: Results,
    cell: Cell,
    workload: Workload,
    run_id: str | None,
    display: Display,
    *,
    data: Path | None,
    python: Path | None,
) -> Record:
    """Run a cell once; with the id of a run that has its record, return that record instead.

    Raises:
        UserError: when the cell cannot run here.
        KeyboardInterrupt: after the run was recorded as interrupted.
    """
    if run_id and (record := results.record(run_id)):
        return record
    if data is not None and not data.is_file():
        raise UserError(f"--data {data}: no such file")
    reason = why_not(cell, _capabilities([cell], python), named=True)
    if reason:
        raise UserError(f"cell {cell.id} cannot run here: {reason}")
    bench = _bench(results, data, python)
    display.preparing(cell.stack)
    run = bench.run(run_id or new_run_id(cell.id), cell, workload)
    display.started(PlannedRun(cell, 1), 1, 1)
    try:
        record = run_cell(run, results, bench.executor, display.progress)
    finally:
        if ended := results.record(run.run_id):
            Index(results).add(ended)
            display.finished(ended)
    return record


def statuses(results: Results, matrix: Matrix) -> list[Status]:
    """All records, summed up."""
    rows = Index(results).rows()
    return summarise(rows, _current_hashes(matrix, {row.cell for row in rows}))


def runs_of(results: Results, cell: str) -> list[Row]:
    """Every run of a cell, oldest first."""
    return [row for row in Index(results).rows() if row.cell == cell]


def rebuild_index(results: Results) -> int:
    """Make the index anew; returns the number of records.

    Raises:
        UserError: when there are no run folders.
    """
    if not results.runs.is_dir():
        raise UserError(f"{results.runs}: no such folder; give --results DIR")
    return Index(results).rebuild()


def write_reports(results: Results, matrix: Matrix) -> tuple[Path, Path]:
    """Write report.html and report.md."""
    records = list(results.records())
    current = _current_hashes(matrix, {record.intent.cell for record in records})
    report = build_report(records, matrix, current, made=time.time())
    html, markdown = results.folder / "report.html", results.folder / "report.md"
    write_durably(html, to_html(report).encode())
    write_durably(markdown, to_markdown(report).encode())
    return html, markdown


def by_hand(matrix: Matrix, cell_id: str, command: Sequence[str]) -> tuple[str, list[str], dict[str, str]]:
    """Program, arguments and environment of a command of the app in a cell's environment.

    Raises:
        UserError: when the cell cannot run here, or the command is not `vpoc` or `python`.
    """
    chosen = [c for c in matrix.select("default") if c.preset.name == "plain"] if cell_id == "best" else []
    capabilities = _capabilities(chosen or [matrix.cells[cell_id]], None)
    cell = next((c for c in chosen if why_not(c, capabilities) is None), None) or matrix.cells.get(cell_id)
    reason = why_not(cell, capabilities, named=True) if cell else "no plain cell of the default selection"
    if cell is None or reason:
        raise UserError(f"cell {cell_id} cannot run here: {reason}")
    environment = environments.ensure_environment(cell.stack)
    programs = {"vpoc": ["-m", "vpoc"], "python": []}
    if command[0] not in programs:
        raise UserError(f"{command[0]}: only {' and '.join(programs)} can be run in a cell's environment")
    python = str(environment.python)
    gpus = visible_devices(cell.preset.devices or capabilities.gpus[:1]) if environment.device == "cuda" else {}
    variables = {**os.environ, **environment.variables, **cell.preset.variables_of("train"), **gpus}
    return python, [python, *programs[command[0]], *command[1:]], {**variables, "VPOC_DEVICE": environment.device}


def describe(cell: Cell) -> dict[str, Any]:
    """A cell as plain values."""
    preset = cell.preset.model_dump(exclude={"name"})
    return {"id": cell.id, "stack": cell.stack.model_dump(), "preset": {"name": cell.preset.name, **preset}} | {
        "excluded": cell.excluded
    }


def describe_plan(plan: Plan, capabilities: Capabilities) -> dict[str, Any]:
    """A plan as plain values."""
    return {
        "host": capabilities.sentence,
        "workload": plan.workload.model_dump(),
        "runs": [{"cell": planned.cell.id, "repeat": planned.repeat} for planned in plan.runs],
        "left_out": [{"cell": skipped.cell.id, "reason": skipped.reason} for skipped in plan.skipped],
        "download_gb": plan.download_gb,
        "disk_gb": plan.disk_gb,
        "free_gb": plan.free_gb,
        "seconds_at_most": plan.seconds_at_most,
        "seconds_expected": plan.seconds_expected,
    }


def describe_campaign(ended: Ended) -> dict[str, Any]:
    """How a campaign stands, as plain values."""
    return {**asdict(ended), "statuses": [describe_status(status) for status in ended.statuses]}


def describe_status(status: Status) -> dict[str, Any]:
    """A status as plain values."""
    return {**asdict(status), "runs": status.runs}


def _bench(results: Results, data: Path | None, interpreter: Path | None) -> Bench:
    host = read_host()
    gpus = tuple(gpu.index for gpu in training_gpus(host))
    return Bench(results, ProcessExecutor(results.runs), host, gpus, interpreter, data)


def _capabilities(cells: Sequence[Cell], interpreter: Path | None) -> Capabilities:
    host = read_host()
    versions = {cell.stack.python for cell in cells if cell.stack.accelerator != "any"}
    stacks = {cell.stack.name: cell.stack for cell in cells}
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    return Capabilities(
        gpus=tuple(gpu.index for gpu in training_gpus(host)),
        docker=docker_answers(),
        pythons=frozenset(version for version in versions if environments.find_python(version)),
        free_bytes=shutil.disk_usage(ENVIRONMENTS).free,
        made=frozenset(name for name in stacks if (ENVIRONMENTS / name / environments.STAMP).is_file()),
        interpreter=str(interpreter) if interpreter else None,
    )


def _past_seconds(results: Results, bench: Bench, workload: Workload) -> dict[str, list[float]]:
    past: dict[str, list[float]] = {}
    for row in Index(results).rows():
        if (row.outcome, row.workload, row.host_fingerprint) == ("completed", workload.name, bench.host.fingerprint):
            past.setdefault(row.cell, []).append(row.seconds)
    return past


def _current_hashes(matrix: Matrix, cells: set[str]) -> Mapping[str, str]:
    known: dict[str, dict[str, Any] | None] = {}
    hashes = {}
    for cell_id in cells & set(matrix.cells):
        cell = matrix.cells[cell_id]
        if cell.stack.accelerator == "any" or cell.stack.framework != "torch":
            continue
        if cell.stack.name not in known:
            known[cell.stack.name] = environments.identify(cell.stack)
        if identity := known[cell.stack.name]:
            hashes[cell_id] = environments.environment_hash(identity, cell.preset)
    return hashes


def _ended(prepared: Prepared, campaign: Campaign) -> Ended:
    results, plan = prepared.bench.results, prepared.plan
    rows = [row for row in Index(results).rows() if row.campaign == campaign.id]
    # Of the attempts at one run only the last counts: the others were interrupted.
    final = [row for row in rows if row.outcome != "interrupted"]
    return Ended(
        campaign=campaign.id,
        done=len(final),
        total=len(plan.runs),
        all_completed=len(final) == len(plan.runs) and all(row.outcome == "completed" for row in final),
        statuses=summarise(rows, {}),
    )
