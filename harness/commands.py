"""What each command does, between parsing and printing: puts this host, the matrix and the results together."""

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from harness import environments
from harness.campaign import Bench, Display, begin_or_continue, carry_out
from harness.contracts import HostFacts, Record
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
from harness.status import Status, summarise
from harness.storage import file_hash, write_durably
from harness.workloads import synthetic_place, workload_hash

# What `matrix exec` runs, as arguments of the interpreter.
PROGRAMS = {"vpoc": ("-m", "vpoc"), "python": ()}


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
    interrupted: bool
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
    bench = _bench(results, data, interpreter)
    capabilities = _capabilities(bench.host, cells, interpreter)
    plan = make_plan(cells, workload, repeats, capabilities, _past_seconds(bench, workload), named=named)
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
    """Carry out a plan, going on with an unfinished campaign of the same plan; says how it stands, also after Ctrl-C.

    Raises:
        UserError: when the data cannot be trained on, or the results folder cannot be written.
    """
    bench, plan = prepared.bench, prepared.plan
    interrupted = False
    _recover(bench, display)
    with begin_or_continue(plan, bench) as (campaign, continued):
        if continued:
            done = campaign.done(plan)
            display.problem(f"going on with campaign {campaign.id}, interrupted after {done} of {len(plan.runs)} runs")
        try:
            carry_out(plan, bench, campaign, display)
        except KeyboardInterrupt:
            interrupted = True
        rows = [row for row in Index(bench.results).rows() if row.campaign == campaign.id]
        # Of the attempts at one run only the last counts: the others were interrupted.
        final = [row for row in rows if row.outcome != "interrupted"]
        return Ended(
            campaign=campaign.id,
            done=campaign.done(plan),
            total=len(plan.runs),
            interrupted=interrupted,
            all_completed=len(final) >= len(plan.runs) and all(row.outcome == "completed" for row in final),
            statuses=summarise(rows, {}),
        )


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
    """Run a cell once; with the id of a run that was begun before, return its record instead.

    Raises:
        UserError: when the cell cannot run here, or the run of that id is another's.
        KeyboardInterrupt: after the run was recorded as interrupted.
    """
    bench = _bench(results, data, python)
    _recover(bench, display)
    if run_id and (intent := results.intent(run_id)):
        if intent.cell != cell.id:
            raise UserError(f"--run-id {run_id}: is a run of {intent.cell}; choose another id")
        record = results.record(run_id)
        if record is None:
            raise UserError(f"--run-id {run_id}: is being run by process {intent.owner_pid}; wait for its record")
        return record
    if reason := why_not(cell, _capabilities(bench.host, [cell], python), named=True):
        raise UserError(f"cell {cell.id} cannot run here: {reason}")
    display.preparing(cell.stack)
    planned = PlannedRun(cell, 1)
    run = bench.run(planned, run_id or new_run_id(cell.id), workload)
    display.started(planned, 1, 1)
    return bench.make(run, display)


def _recover(bench: Bench, display: Display) -> None:
    for record in recover(bench.results, bench.host, bench.executor):
        Index(bench.results).add(record)
        display.problem(f"{record.intent.run_id}: {record.detail}; recorded as interrupted")


def statuses(results: Results, matrix: Matrix) -> list[Status]:
    """All records, summed up."""
    rows = Index(results).rows()
    return summarise(rows, _current_hashes(matrix, {row.cell for row in rows}))


def runs_of(results: Results, cell: str) -> list[Row]:
    """Every run of a cell, oldest first."""
    return [row for row in Index(results).rows() if row.cell == cell]


def rebuild_index(results: Results) -> tuple[int, list[str]]:
    """Make the index anew; returns the number of records, and what could not be read.

    Raises:
        UserError: when there are no run folders, or the index cannot be written.
    """
    if not results.runs.is_dir():
        raise UserError(f"{results.runs}: no such folder; give --results DIR")
    damaged = Index(results).rebuild()
    return len(Index(results).rows()), damaged


def write_reports(results: Results, matrix: Matrix) -> tuple[list[Path], list[str]]:
    """Write report.html and report.md; returns them, and what could not be read."""
    damaged: list[str] = []
    records = list(results.records(damaged))
    current = _current_hashes(matrix, {record.intent.cell for record in records})
    report = build_report(records, matrix, current, made=time.time())
    files = {"report.html": to_html(report), "report.md": to_markdown(report)}
    for name, text in files.items():
        write_durably(results.folder / name, text.encode())
    return [results.folder / name for name in files], damaged


def by_hand(matrix: Matrix, cell_id: str, command: Sequence[str]) -> tuple[str, list[str], dict[str, str]]:
    """Program, arguments and environment of a command of the app in a cell's environment.

    Raises:
        UserError: when the cell cannot run here, or the command is not `vpoc` or `python`.
    """
    chosen = [c for c in matrix.select("default") if c.preset.name == "plain"] if cell_id == "best" else []
    chosen = chosen or [matrix.cells[cell_id]]
    capabilities = _capabilities(read_host(), chosen, None)
    cell = next((c for c in chosen if why_not(c, capabilities, named=cell_id != "best") is None), None)
    if cell is None:
        reason = why_not(chosen[0], capabilities)
        raise UserError(f"cell {chosen[0].id} cannot run here: {reason}")
    if command[0] not in PROGRAMS:
        raise UserError(f"{command[0]}: only {' and '.join(PROGRAMS)} can be run in a cell's environment")
    environment = environments.ensure_environment(cell.stack)
    phase: Literal["features", "train"] = "features" if command[1:2] == ("features",) else "train"
    gpus = visible_devices(cell.preset.devices or capabilities.gpus[:1]) if environment.device == "cuda" else {}
    variables = {**os.environ, **environment.variables, **cell.preset.variables_of(phase), **gpus}
    python = str(environment.python)
    return python, [python, *PROGRAMS[command[0]], *command[1:]], {**variables, "VPOC_DEVICE": environment.device}


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
    for option, file in (("--data", data), ("--python", interpreter)):
        if file is not None and not file.is_file():
            raise UserError(f"{option} {file}: {'is not a file' if file.exists() else 'no such file'}")
    host = read_host()
    gpus = tuple(gpu.index for gpu in training_gpus(host))
    return Bench(results, ProcessExecutor(results.runs), host, gpus, interpreter, data)


def _capabilities(host: HostFacts, cells: Sequence[Cell], interpreter: Path | None) -> Capabilities:
    versions = {cell.stack.python for cell in cells if cell.stack.accelerator != "any"}
    return Capabilities(
        gpus=tuple(gpu.index for gpu in training_gpus(host)),
        docker=docker_answers(),
        pythons=frozenset(version for version in versions if environments.find_python(version)),
        free_bytes=shutil.disk_usage(next(p for p in (ENVIRONMENTS, *ENVIRONMENTS.parents) if p.exists())).free,
        made=frozenset(c.stack.name for c in cells if (ENVIRONMENTS / c.stack.name / environments.STAMP).is_file()),
        interpreter=str(interpreter) if interpreter else None,
    )


def _past_seconds(bench: Bench, workload: Workload) -> dict[str, list[float]]:
    """How long completed runs of the very same work took on this host; of data not made yet nothing is known."""
    data = bench.data or synthetic_place(workload)
    if not data.is_file():
        return {}
    past: dict[str, list[float]] = {}
    known = ("completed", workload_hash(workload, file_hash(data)), bench.host.fingerprint)
    for row in Index(bench.results).rows():
        if (row.outcome, row.workload_hash, row.host_fingerprint) == known:
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
