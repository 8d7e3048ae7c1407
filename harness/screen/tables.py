"""The tables that commands print."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from harness.base.durations import span
from harness.base.wording import download_in_words, listed, many, size_in_words
from harness.environments.python.interpreters import python_source
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import CountName, Counts, RunCount
from harness.evidence.verdicts.scope import is_simulated_scope
from harness.evidence.verdicts.verdict import Verdict
from harness.evidence.verdicts.words import hours_in_words, shows_mtbf, work_in_words
from harness.host.disk_use import limits_in_words
from harness.matrix.cells import Cell, Matrix
from harness.matrix.stacks import Stack
from harness.matrix.workloads import Workload
from harness.registry.tags.promote import is_about
from harness.registry.tags.promotions import KnownGood
from harness.report.words import at_least
from harness.screen.colours import OUTCOME_COLOURS, TIER_COLOURS

if TYPE_CHECKING:
    from harness.campaign.bench.plan import Plan
    from harness.environments.capabilities import Skipped
    from harness.evidence.by_node import NodeRuns
    from harness.matrix.lint import LintFinding
    from harness.registry.image_commands import BuildPlan
    from harness.search.goal import Goal

# Longest text of a table cell, in characters.
LONGEST_CELL = 4096
# Longest list of names that is written out; a longer one becomes its first name and a count.
LISTED = 3
# Most cells that a plan names; of more cells it states only the number.
NAMED = 6
# Columns that are left out on a narrow terminal, in this order.
OF_CELLS = ("Python", "preset sets", "torch", "ROCm")
OF_WORKLOADS = ("qualifies for promotion",)
OF_VERDICTS = ("ran on", "not counted", "workload", "trained", "starts above", "MTBF above", "note", "why", "scope")
OF_RUNS = ("samples/s", "ran on", "seconds", "workload", "detail", "counts as", "why")


def cells_table(cells: Sequence[Cell]) -> Table:
    """Return a table of cells with their parts, or why they are excluded."""
    table = _table("cell", "ROCm", "torch", "Python", "preset sets", "excluded because")
    for cell in cells:
        preset = cell.preset
        of_phases = [f"{name} ({phase})" for phase in ("features", "train") for name in getattr(preset, phase)]
        sets = ", ".join([*preset.variables, *of_phases]) or "-"
        stack = cell.stack
        row = (cell.id, stack.rocm or "-", stack.torch or "-", stack.python, sets, cell.excluded or "")
        table.add_row(*row)
    return table


def selections_table(matrix: Matrix) -> Table:
    """Return a table of selections: the number of their cells, and their purpose."""
    table = _table("selection", "cells", "what")
    for name, one in matrix.selections.items():
        table.add_row(name, str(len(matrix.select(name))), one.description)
    return table


def stacks_table(stacks: Iterable[Stack]) -> Table:
    """Return a table of stacks by the source of their torch; "-": a base image or an interpreter has torch already."""
    by_source: dict[str, list[str]] = {}
    for one in stacks:
        by_source.setdefault(one.source if one.shown_index else "-", []).append(one.name)
    table = _table("wheels from", "stacks")
    for source, names in by_source.items():
        table.add_row(source, ", ".join(names))
    return table


def workloads_table(workloads: Iterable[Workload], *, wide: bool) -> Table:
    """Return a table of workloads, and whether their runs qualify for promotion; `wide`: with models and strategy."""
    table = _table("workload", "qualifies for promotion", *(("models", "strategy") if wide else ()), "what")
    for one in workloads:
        qualifies = "yes" if one.qualifies_for_promotion else "no"
        how = (", ".join(one.model), one.strategy) if wide else ()
        table.add_row(one.name, qualifies, *how, one.description)
    return table


def findings_table(findings: "Iterable[LintFinding]") -> Table:
    """Return a table of the presets with findings of the linter: the number of variables by kind of finding."""
    presets: dict[str, dict[str, set[str]]] = {}
    for one in findings:
        presets.setdefault(one.preset, {}).setdefault(one.kind, set()).add(one.variable or "all")
    table = _table("preset", "variables")
    for preset, kinds in presets.items():
        table.add_row(preset, ", ".join(f"{len(variables)} {kind}" for kind, variables in kinds.items()))
    return table


def finding_details(findings: "Iterable[LintFinding]") -> list[str]:
    """Return the linter's findings in full, by preset."""
    lines, preset = [], None
    for one in findings:
        if one.preset != preset:
            preset = one.preset
            lines.append(preset)
        variable = f"{one.variable or ''}{f' ({one.key})' if one.key else ''}{f' in {one.phase}' if one.phase else ''}"
        lines += [f"  {variable}: {one.kind} on {_some(one.stacks)}", f"    {one.summary} [{one.source}]"]
    return lines


def mistake_lines(found: "Iterable[LintFinding]") -> list[str]:
    """Return a line of a plan for each variable that is probably a mistake."""
    return [f"  preset {one.preset}: {one.variable}: {one.text} (`matrix lint {one.preset}`)" for one in found]


def plan_lines(plan: "Plan", *, wide: bool = False) -> list[str]:
    """Return the plan of a campaign as a few lines; `wide`: with the cells of every stack."""
    cells = {planned.cell.id: planned.cell for planned in plan.runs}
    workload = plan.workload
    gpus = sorted({planned.gpus for planned in plan.runs if planned.placement})
    each = f", each on GPU {' and on GPU '.join(str(*one) for one in gpus)}" if gpus else ""
    if workload.strategy != "single":
        together = dict.fromkeys(f" on GPU {listed(one.gpus)}" for one in plan.runs if len(one.gpus) > 1)
        each = f",{' or'.join(together)} by strategy {workload.strategy}"
    runs = f"{_until(plan.goal)}: runs" if plan.goal else many(len(plan.runs), "run")
    lines = [
        f"Plan: {many(len(cells), 'cell')}, {runs} of workload {workload.name} ({workload.description}){each}",
        *_cells(cells.values(), wide=wide),
        f"  disk: {disk_in_words(plan)}",
        f"  wheels: {', '.join(dict.fromkeys(plan.indexes.values())) or 'none'}",
        f"  time: {_time(plan)}",
        f"  each run: {limits_in_words(plan.run_bytes, plan.pids)}",
    ]
    if plan.side_by_side:
        lines.append("  runs of one GPU each are made side by side, one on each GPU")
    if workload.program:
        walls = "; as a process it can write wherever you can" if plan.pids is None else ""
        lines.append(f"  your program: its numbers are not checked; {workload.program.hangs_when}{walls}")
    if plan.controls:
        lines.append(
            f"  controls: at most {plan.controls} more runs, if a cell fails twice as a bad GPU or host can cause"
        )
    if plan.pythons_to_fetch:
        versions = " and ".join(plan.pythons_to_fetch)
        lines.append(f"  Python {versions}: not installed, to be fetched from {python_source()}")
    return lines + _left_out(plan.skipped)


def disk_in_words(plan: "Plan | BuildPlan") -> str:
    """Return the disk space that a plan needs, and its download size."""
    free = _free(plan.free_gb, plan.disk_gb)
    at_most = f"{plan.disk_gb:.1f} GB at most" if plan.disk_gb else "nothing more"
    return f"{at_most} on {plan.place}, {free}; to download: {download_in_words(plan.download_gb)}"


def data_line(workload: Workload, data: Path | None) -> str:
    """Return the data of a plan as a line; `data` is the user's file, None for synthetic bars."""
    if workload.program:
        return "  data: your program's own"
    made = f"synthetic bars of {workload.synthetic.sessions} sessions, made here"
    return f"  data: {data.name if data else made}"


def _cells(cells: Collection[Cell], *, wide: bool) -> list[str]:
    """Return the cells of a plan: a few by name; of more their number, or with `wide` the presets of each stack."""
    if len(cells) <= NAMED:
        return [f"  cells: {', '.join(cell.id for cell in cells) or 'none'}"]
    presets: dict[str, list[str]] = {}
    for cell in cells:
        presets.setdefault(cell.stack.name, []).append(cell.preset.name)
    if wide:
        return ["  cells:", *(f"    {stack}: {', '.join(names)}" for stack, names in presets.items())]
    return [f"  cells: {len(cells)} of {many(len(presets), 'stack')} (`matrix plan --wide` lists them)"]


def build_lines(plan: "BuildPlan") -> list[str]:
    """Return the plan of a build as a few lines."""
    lines = [
        f"Build: {many(len(plan.build), 'image')}, {len(plan.there)} there already",
        f"  cells: {', '.join(cell.id for cell in plan.build) or 'none'}",
        f"  disk: {disk_in_words(plan)}",
    ]
    if plan.indexes:
        lines.append(f"  wheels: {', '.join(dict.fromkeys(plan.indexes.values()))}")
    if plan.unlocked:
        lines.append(f"  wheels to be resolved first: {', '.join(plan.unlocked)}")
    return lines + _left_out(plan.skipped)


COUNT_WORDS: Mapping[CountName, str] = {"passed": "passed", "failed": "failed", "not-counted": "not counted"}


def verdicts_table(
    verdicts: Iterable[Verdict],
    tags: Sequence[KnownGood] = (),
    told_apart: Mapping[str, str] | None = None,
    here: str | None = None,
) -> Table:
    """Return a table of verdicts with the number of runs, and the lower bounds of starts and of hours between failures.

    `tags`: known-good tags in force; a verdict that a tag rests on is marked.
    `told_apart`: by the id of a verdict's newest run, what distinguishes it from others on its cell and workload.
    `here`: the kind of this host; verdicts on other kinds are marked.
    """
    results = ("passed", "starts above", "trained", "MTBF above")
    table = _table("cell", "verdict", *results, "scope", "note", "workload", "ran on", "not counted", "why")
    for one in verdicts:
        tagged = any(is_about(evidence, one) for evidence in tags)
        unchecked = ("numbers not checked" if one.own_program else "not verified", not one.verified)
        elsewhere = ("another kind of host", here not in (None, one.host_kind))
        marks = (("tagged", tagged), (f"{one.imported} imported", one.imported), elsewhere, unchecked)
        note = ", ".join(mark for mark, holds in marks if holds)
        totals = one.totals
        starts = at_least(one.start_low) if one.runs else ""
        mtbf = hours_in_words(one.mtbf_low) if shows_mtbf(one.mtbf_low) else "none yet"
        lasts = (hours_in_words(totals.hours), mtbf) if totals.hours else ("", "")
        not_counted = ", ".join(f"{count} {name}" for name, count in one.not_counted.items())
        why = ", ".join(f"{name} x{count}" for name, count in one.diagnoses.items())
        differs = (told_apart or {}).get(one.last)
        workload = f"{work_in_words(one)} ({differs})" if differs else work_in_words(one)
        scope = f"{one.scope}, {one.executor}"
        # The cell did train: without this word `untested` would read as if it had not.
        ended = " (interrupted)" * (not one.runs and totals.hours > 0)
        tier = Text.assemble((one.tier, TIER_COLOURS[one.tier]), ended, " (stale)" * one.stale)
        passed = f"{one.passes} of {one.runs}"
        table.add_row(
            one.cell, tier, passed, starts, *lasts, scope, note, workload, _known(one.ran_on), not_counted, why
        )
    return table


def _known(ran_on: str) -> str:
    """Return the devices that a run used; empty if it ended before it reported them."""
    return "" if ran_on == "unknown" else ran_on


def columns_to_leave_out(verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    """Return the columns that a narrow terminal leaves out: none that tells the verdicts on a cell apart."""
    scopes = {(one.cell, one.scope, one.executor) for one in verdicts}
    telling = {"scope"} if len(scopes) > len({one.cell for one in verdicts}) else set()
    if len(scopes) < len(verdicts):
        telling.add("workload")
    return tuple(name for name in OF_VERDICTS if name not in telling)


def run_columns_to_leave_out(rows: Iterable[Row]) -> tuple[str, ...]:
    """Return the columns that a narrow terminal leaves out, last those that say how and why a run counts.

    If the runs differ in their workload, it stays longer than the detail, which no terminal has room for.
    """
    if len({(work_in_words(row), row.family) for row in rows}) == 1:
        return OF_RUNS
    others = [name for name in OF_RUNS if name != "workload"]
    others.insert(others.index("counts as"), "workload")
    return tuple(others)


def runs_table(rows: Iterable[Row], counts: Counts, told: Mapping[str, str] | None = None) -> Table:
    """Return a table of runs, oldest first, with how each counts; `told` distinguishes families of one workload."""
    table = _table("run", "outcome", "counts as", "why", "workload", "ran on", "seconds", "samples/s", "detail")
    for row in rows:
        count = counts[row.run_id]
        speed = f"{row.samples_per_second:.0f}" if row.samples_per_second else ""
        ran_on = ": ".join(filter(None, [row.node, _known(row.ran_on)]))
        why = count.kind or row.diagnosis or count.diagnosis or ""
        # Of some runs why they count as they do is their detail, with a word before it.
        detail = count.why if row.detail in count.why else "; ".join(filter(None, [count.why, row.detail]))
        differs = (told or {}).get(row.family)
        work = f"{work_in_words(row)} ({differs})" if differs else work_in_words(row)
        place = (work, ran_on, f"{row.seconds:.1f}", speed)
        outcome = Text(row.outcome, OUTCOME_COLOURS[row.outcome])
        run = f"{row.run_id} (simulated)" if is_simulated_scope(row.scope) else row.run_id
        table.add_row(run, outcome, _counts_as(row, count), why, *place, detail)
    return table


def _counts_as(row: Row, count: RunCount) -> str:
    if count.hours_count:
        return "hours only"
    # Of runs that were not verified, only failures count.
    return "not verified" if row.is_unverified and count.counts_as == "passed" else COUNT_WORDS[count.counts_as]


def nodes_table(nodes: "Iterable[NodeRuns]") -> Table:
    """Return a table of the nodes of a cluster, by host kind."""
    table = _table("host kind", "node", "passed", "ran on", "note")
    for one in nodes:
        note = "fails more often than the others" if one.unlike_others else ""
        passed = f"{one.runs - one.failures} of {one.runs}"
        table.add_row(one.host_kind[:8], one.node, passed, one.ran_on, note)
    return table


def _left_out(skipped: "Iterable[Skipped]") -> list[str]:
    reasons: dict[str, list[str]] = {}
    for one in skipped:
        reasons.setdefault(one.reason, []).append(one.cell.id)
    return [f"  left out ({_some(ids)}): {reason}" for reason, ids in reasons.items()]


class _Table(Table):
    """A table that refuses rows with a wrong number of cells, where rich would pad the row or add columns."""

    def add_row(self, *cells: Any, **style: Any) -> None:
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells for the columns {', '.join(str(c.header) for c in self.columns)}")
        # Cells are padded to the width of the longest in their column, so one of megabytes would cost as much for each
        # row.
        super().add_row(*(cell[:LONGEST_CELL] for cell in cells), **style)


def _table(*columns: str) -> Table:
    table = _Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column)
    return table


def _time(plan: "Plan") -> str:
    most = f"at most {span(plan.seconds_at_most)} by the workload's limit{', each run' if plan.goal else ''}"
    if plan.seconds_expected is None:
        return f"{most}; no earlier run of this work and data here to estimate from"
    return f"about {span(plan.seconds_expected)} as measured here before, {most}"


def _until(goal: "Goal") -> str:
    within = f", within {span(goal.budget)}" if goal.budget else ""
    return f"until {'every one is known-good or not' if goal.every else 'one is known-good'}{within}"


def _free(free_gb: float | None, needed_gb: float) -> str:
    if free_gb is None:
        return "free space unknown"
    # As exactly as what is needed: 0.6 GB are not 1 GB where 1.3 GB are needed.
    return f"{size_in_words(free_gb * 1e9)} free: not enough" if needed_gb > free_gb else f"{free_gb:.0f} GB free"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= LISTED else f"{names[0]} and {len(names) - 1} more"
