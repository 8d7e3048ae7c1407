"""What each command does, between parsing and printing: puts this host, the matrix and the results together."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from harness.base.errors import UserError
from harness.base.storage import file_hash
from harness.campaign.bench import Bench, Display
from harness.campaign.campaign import Campaign, begin_or_continue, carry_out
from harness.campaign.plain_cells import first_plain_cell
from harness.campaign.plan import Plan, PlannedRun, make_plan, placements, too_few_gpus
from harness.campaign.pursue import runs_made, search
from harness.campaign.recovery import recover
from harness.campaign.tallies import Tallies
from harness.environments.capabilities import Capabilities, capabilities_of, choose_engine, why_not
from harness.environments.environment import (
    ensure_environment,
)
from harness.environments.executors.docker import DockerExecutor
from harness.environments.executors.job import Executor
from harness.environments.executors.process import ProcessExecutor
from harness.environments.images import cell_tag
from harness.evidence.discounted_runs import discounted_runs
from harness.evidence.index import Index
from harness.evidence.records import Results, check_run_id, new_run_id
from harness.evidence.run_files import Intent, Record
from harness.evidence.verdicts import of_results
from harness.evidence.verdicts.verdict import Verdict, judge
from harness.host.displays import headless_first
from harness.host.engine import Engine, Notify, find_engine
from harness.host.fingerprint import read_host, training_gpus
from harness.matrix.cells import Cell, ExecutorName, Matrix, Workload
from harness.matrix.workload_options import workload_hash
from harness.run.process_environment import SCRATCH, SCRATCH_PLACES, visible_devices
from harness.run.workload_data import synthetic_place
from harness.search.conclusion import Conclusion, conclude
from harness.search.goal import Goal

# What `matrix exec` runs, as arguments of the interpreter.
PROGRAMS = {"vpoc": ("-m", "vpoc"), "python": ()}


@dataclass(frozen=True)
class Prepared:
    """A plan with everything needed to carry it out."""

    plan: Plan
    capabilities: Capabilities
    bench: Bench
    matrix: Matrix


@dataclass(frozen=True)
class Ended:
    """How a campaign stands. `total` is None where the number of runs was left open; then there is a conclusion.

    With a conclusion `succeeded` tells whether the goal was reached, otherwise whether every run completed.
    """

    campaign: str
    done: int
    total: int | None
    interrupted: bool
    succeeded: bool
    conclusion: Conclusion | None
    verdicts: list[Verdict]


def prepare(
    results: Results,
    matrix: Matrix,
    cells: Sequence[Cell],
    workload: Workload,
    repeats: int,
    *,
    goal: Goal | None,
    named: bool,
    data: Path | None,
    interpreter: Path | None,
    executor: ExecutorName | None,
) -> Prepared:
    """Look at this host and plan the runs.

    Raises:
        UserError: when the data or the interpreter does not exist.
    """
    engine = choose_engine(cells, executor)
    bench = _bench(results, engine, data, interpreter)
    capabilities = capabilities_of(bench.host, engine, cells, interpreter)
    past = _past_seconds(bench, workload)
    plan = make_plan(cells, workload, repeats, capabilities, past, named=named, goal=goal)
    return Prepared(plan, capabilities, bench, matrix)


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
        raise UserError(f"{plan.place}: the plan {need}; free some or choose fewer stacks")


def run_campaign(prepared: Prepared, display: Display) -> Ended:
    """Carry out a plan, going on with an unfinished campaign of the same plan; says how it stands, also after Ctrl-C.

    Raises:
        UserError: when the data cannot be trained on, or the results folder cannot be written.
    """
    bench, plan = prepared.bench, prepared.plan
    conclusion, interrupted = None, False
    settle(bench, display)
    with begin_or_continue(plan, bench) as (campaign, continued):
        if continued:
            of_all = "" if plan.goal else f" of {len(plan.runs)}"
            done = len(runs_made(bench, campaign))
            display.problem(f"going on with campaign {campaign.id}, interrupted after {done}{of_all} runs")
        try:
            if plan.goal:
                conclusion = _pursue(plan.goal, prepared, campaign, display)
            else:
                carry_out(plan, bench, campaign, display)
        except KeyboardInterrupt:
            interrupted = True
        rows = runs_made(bench, campaign)
        all_completed = len(rows) >= len(plan.runs) and all(row.outcome == "completed" for row in rows)
        return Ended(
            campaign=campaign.id,
            done=len(rows) if plan.goal else campaign.done(plan),
            total=None if plan.goal else len(plan.runs),
            interrupted=interrupted,
            succeeded=conclusion.reached if conclusion else all_completed and not plan.goal,
            conclusion=conclusion,
            verdicts=_verdicts_of(prepared, campaign),
        )


def _pursue(goal: Goal, prepared: Prepared, campaign: Campaign, display: Display) -> Conclusion:
    """Run until the goal is reached, cannot be, or the time is over, and say what came of it."""
    plan, bench = prepared.plan, prepared.bench
    tallies = Tallies(plan, bench, prepared.matrix)
    goal = replace(goal, among=len(set(map(tallies.candidate, plan.runs))))
    found = search(plan, goal, bench, campaign, tallies, display)
    tags_at = prepared.matrix.verdicts.confidence if plan.workload.qualifies_for_promotion and bench.engine else None
    return conclude(goal, found.why, found.tallies, found.seconds, tags_at=tags_at)


def verdicts_here(prepared: Prepared) -> list[Verdict]:
    """What is known of the work of a plan on this kind of host."""
    mine = (prepared.plan.workload.name, prepared.bench.host.kind, prepared.capabilities.executor)
    known = of_results.verdicts(prepared.bench.results, prepared.matrix)
    return [one for one in known if (one.workload, one.host_kind, one.executor) == mine]


def _verdicts_of(prepared: Prepared, campaign: Campaign) -> list[Verdict]:
    """What the runs of a campaign show; with a goal, what all runs of its cells show."""
    rows = Index(prepared.bench.results).rows()
    cells = {planned.cell.id for planned in prepared.plan.runs}
    if prepared.plan.goal:
        return [one for one in of_results.verdicts(prepared.bench.results, prepared.matrix) if one.cell in cells]
    mine = [row for row in rows if row.campaign == campaign.id]
    return judge(mine, {}, prepared.matrix.verdicts, discounted_runs(prepared.bench.results, rows))


def run_one(
    results: Results,
    cell: Cell,
    workload: Workload,
    run_id: str | None,
    display: Display,
    *,
    data: Path | None,
    python: Path | None,
    executor: ExecutorName | None,
) -> Record:
    """Run a cell once; with the id of a run that was begun before, return its record instead.

    Raises:
        UserError: when the cell cannot run here, or the run of that id is another's.
        KeyboardInterrupt: after the run was recorded as interrupted.
    """
    if run_id:
        check_run_id(run_id)
    engine = choose_engine([cell], executor)
    bench = _bench(results, engine, data, python)
    settle(bench, display)
    if run_id and (intent := results.intent(run_id)):
        if results.imported(run_id):
            raise UserError(f"--run-id {run_id}: is a run that was imported; choose another id")
        if intent.cell != cell.id:
            raise UserError(f"--run-id {run_id}: is a run of {intent.cell}; choose another id")
        record = results.record(run_id)
        if record is None:
            raise UserError(f"--run-id {run_id}: is being run by process {intent.owner_pid}; wait for its record")
        return record
    planned = _first_run(bench, engine, cell, workload, python)
    run_id = run_id or new_run_id(cell.id)
    display.preparing(cell.stack)
    bench.data_of(workload, bench.environment(cell, display.step))
    with bench.gpus_for([(planned, run_id)], display.step):
        display.started(planned, 1, 1)
        return bench.make(bench.run(planned, run_id, workload), display)


def place(
    results: Results,
    cells: Sequence[Cell],
    workload: Workload,
    *,
    data: Path | None,
    python: Path | None,
    executor: ExecutorName | None,
) -> tuple[Bench, dict[str, PlannedRun]]:
    """Where runs of these cells are made, and the run of each, by its id, where it is least risky.

    Raises:
        UserError: when one of them cannot run here.
    """
    engine = choose_engine(cells, executor)
    bench = _bench(results, engine, data, python)
    return bench, {cell.id: _first_run(bench, engine, cell, workload, python) for cell in cells}


def print_command(results: Results, cell: Cell, workload: Workload, notify: Notify, *, data: Path | None) -> str:
    """The `docker run` that trains a cell by hand as a run would, in a folder to be chosen.

    Raises:
        UserError: when there is no engine, or the image cannot be built.
    """
    engine = choose_engine([cell], "docker")
    bench = _bench(results, engine, data, None)
    planned = _first_run(bench, engine, cell, workload, None)
    bench.environment(cell, notify)
    run = bench.run(planned, "by-hand", workload)
    folder = results.folder / "by-hand"
    intent, container = run.intent(folder), run.container(folder)
    if container is None:
        raise UserError(f"cell {cell.id} only runs as a process")
    places = [folder / "output", *(folder / SCRATCH / place for place in SCRATCH_PLACES)]
    lines = [shlex.join(["mkdir", "-p", *map(str, places)])]
    for phase in cell.preset.phases:
        words = intent.commands[phase]
        by_entry_point = words[len(run.environment.app()) :]
        named = replace(container, image=cell_tag(cell))
        lines.append(named.command_line(intent.variables[phase], by_entry_point))
    return "\n".join(lines)


def _first_run(bench: Bench, engine: Engine | None, cell: Cell, workload: Workload, python: Path | None) -> PlannedRun:
    """The run of a cell where it is least risky.

    Raises:
        UserError: when the cell cannot run here.
    """
    host = capabilities_of(bench.host, engine, [cell], python)
    if reason := why_not(cell, host, named=True) or too_few_gpus(cell, workload, bench.gpus):
        raise UserError(f"cell {cell.id} cannot run here: {reason}")
    return placements(cell, workload, 1, bench.gpus)[0]


def settle(bench: Bench, display: Display) -> None:
    """What a command that runs cells does first: close what an earlier one left."""
    damaged: list[str] = []
    for record in recover(bench.results, bench.host, partial(_executor_of, bench), damaged):
        Index(bench.results).add(record)
        display.problem(f"{record.intent.run_id}: {record.detail}; recorded as {record.outcome}")
    for text in damaged:
        display.problem(text)
    if isinstance(bench.executor, DockerExecutor):
        bench.executor.remove_leftovers(bench.results.record)


def _executor_of(bench: Bench, intent: Intent) -> Executor | None:
    """What started a run, whatever runs are started with now; None where no engine answers."""
    if intent.executor == "process":
        return ProcessExecutor(bench.results.runs)
    try:
        engine = bench.engine or find_engine()
    except UserError:
        return None
    return DockerExecutor(engine, bench.results.runs) if engine else None


def by_hand(
    matrix: Matrix, cell_id: str, command: Sequence[str], notify: Notify
) -> tuple[str, list[str], dict[str, str]]:
    """Program, arguments and environment of a command of the app in a cell's environment.

    Raises:
        UserError: when the cell cannot run here, or the command is not `vpoc` or `python`.
    """
    best = cell_id == "best"
    chosen = matrix.select("default") if best else [matrix.cells[cell_id]]
    capabilities = capabilities_of(read_host(), None, chosen, None)
    cell = first_plain_cell(matrix, capabilities) if best else chosen[0]
    if reason := why_not(cell, capabilities, named=not best):
        raise UserError(f"cell {cell.id} cannot run here: {reason}")
    if command[0] not in PROGRAMS:
        raise UserError(f"{command[0]}: only {' and '.join(PROGRAMS)} can be run in a cell's environment")
    environment = ensure_environment(cell.stack, notify)
    phase: Literal["features", "train"] = "features" if command[1:2] == ("features",) else "train"
    gpus = visible_devices(cell.preset.devices or capabilities.gpus[:1]) if environment.device == "cuda" else {}
    variables = {**os.environ, **environment.variables, **cell.preset.variables_of(phase), **gpus}
    python = str(environment.python)
    return python, [python, *PROGRAMS[command[0]], *command[1:]], {**variables, "VPOC_DEVICE": environment.device}


def _bench(results: Results, engine: Engine | None, data: Path | None, interpreter: Path | None) -> Bench:
    for option, file in (("--data", data), ("--python", interpreter)):
        if file is not None and not file.is_file():
            raise UserError(f"{option} {file}: {'is not a file' if file.exists() else 'no such file'}")
    host = read_host()
    gpus = headless_first(training_gpus(host))
    executor: Executor = DockerExecutor(engine, results.runs) if engine else ProcessExecutor(results.runs)
    return Bench(results, executor, host, gpus, interpreter, data, engine)


def _past_seconds(bench: Bench, workload: Workload) -> dict[str, list[float]]:
    """How long completed runs of the very same work took on this host; of data not made yet nothing is known."""
    data = bench.data or synthetic_place(workload)
    if not data.is_file():
        return {}
    past: dict[str, list[float]] = {}
    known = ("completed", workload_hash(workload, file_hash(data)), bench.host.fingerprint)
    for row in Index(bench.results).rows():
        if (row.outcome, row.workload_hash, row.host_fingerprint) == known and not row.imported:
            past.setdefault(row.cell, []).append(row.seconds)
    return past
