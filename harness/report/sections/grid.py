"""Arrange rows and verdicts in grids of stacks x presets. Pure."""

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.evidence.row import Row, data_in_words
from harness.evidence.verdicts.counting import Counts
from harness.evidence.verdicts.verdict import Verdict
from harness.evidence.verdicts.words import hours_in_words, mtbf_in_words
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix
from harness.report.model import GridPlace, Group, PassCount, RunLine, VerdictLine

Key = tuple[str, str, str, str]
Work = tuple[str, str, str, str, str | None, bool]
NOTHING = PassCount(tier="untested", passes=0, runs=0)
NOT_COUNTED = "none of its runs counts"
# Longest detail of a run, in characters: one line of a program's output can be a page long.
LONGEST = 400
OF_TOTALS = ("started", "starts", "failures", "hours", "longest", "boots")
IN_WORDS = ("trained", "mtbf")
NOT_AS_THEY_ARE = ("group", "low", "high", "start_low", "mtbf_low", "diagnoses", "not_counted", *OF_TOTALS, *IN_WORDS)


@dataclass(frozen=True)
class GridVerdicts:
    """The verdicts on `every` run, and on the runs made with this folder (`own`), without imported ones."""

    every: Sequence[Verdict]
    own: Sequence[Verdict]


def group_ids(rows: Iterable[Row]) -> dict[Key, str]:
    """Return an id for each group of comparable runs, the newest first.

    The id depends only on the group's key, so links to it stay valid. `rows` are ordered by time.
    """
    keys = dict.fromkeys(key_of(row) for row in reversed(list(rows)))
    return {key: hashlib.sha256("\n".join(key).encode()).hexdigest()[:8] for key in keys}


def groups(
    rows: Sequence[Row],
    verdicts: GridVerdicts,
    matrix: Matrix,
    hosts: Mapping[str, HostFacts],
    told: Mapping[str, str],
) -> tuple[Group, ...]:
    """Return the grids; `hosts` are by kind of host, `told` distinguishes families of a workload of the same name."""
    ids = group_ids(rows)
    together: dict[Key, list[Row]] = {key: [] for key in ids}
    for row in rows:
        together[key_of(row)].append(row)
    every, own = _current(verdicts.every), _current(verdicts.own)
    return tuple(
        _group(id_, runs, every.get(key, {}), own.get(key, {}), matrix, hosts, told)
        for (key, id_), runs in zip(ids.items(), together.values(), strict=True)
    )


def verdict_lines(verdicts: Iterable[Verdict], ids: Mapping[Key, str]) -> tuple[VerdictLine, ...]:
    """Return the verdicts in the report's form; `ids` are the ids of the groups."""
    return tuple(
        VerdictLine(
            group=ids[key_of(verdict)],
            **{name: getattr(verdict, name) for name in VerdictLine.model_fields if name not in NOT_AS_THEY_ARE},
            low=math.floor(verdict.low * 1000) / 1000,
            high=math.ceil(verdict.high * 1000) / 1000,
            start_low=math.floor(verdict.start_low * 1000) / 1000,
            mtbf_low=math.floor(verdict.mtbf_low * 10_000) / 10_000,
            trained=hours_in_words(verdict.totals.hours),
            mtbf=mtbf_in_words(verdict.totals, verdict.mtbf_low),
            **{name: getattr(verdict.totals, name) for name in OF_TOTALS},
            diagnoses=dict(verdict.diagnoses),
            not_counted=dict(verdict.not_counted),
        )
        for verdict in verdicts
    )


def run_lines(
    rows: Iterable[Row],
    verdicts: Iterable[Verdict],
    ids: Mapping[Key, str],
    counts: Counts,
    again: Mapping[str, int],
) -> tuple[RunLine, ...]:
    """Return the runs, newest first; `again`: the number of the command that repeats each run."""
    stale = {run_id for verdict in verdicts if verdict.stale for run_id in verdict.run_ids}
    return tuple(
        RunLine(
            run_id=row.run_id,
            group=ids[key_of(row)],
            cell=row.cell,
            environment_hash=row.environment_hash[:12],
            outcome=row.outcome,
            diagnosis=counts[row.run_id].diagnosis or row.diagnosis,
            detail=row.detail[:LONGEST],
            ran_on=row.ran_on,
            started=round(row.started),
            seconds=round(row.seconds, 1),
            samples_per_second=_rounded(row.samples_per_second),
            uncounted=counts[row.run_id].kind or ("stale" if row.run_id in stale else None),
            failed=counts[row.run_id].counts_as == "failed",
            why_counted_so=counts[row.run_id].why,
            imported=row.imported,
            again=again.get(row.run_id),
        )
        for row in sorted(rows, key=lambda row: (row.started, row.run_id), reverse=True)
    )


def _rounded(speed: float | None) -> float | None:
    """Return a speed rounded for display; None if the app wrote one that is not finite."""
    return None if speed is None or not math.isfinite(speed) else round(speed, 1)


def work_of(row: Row) -> Work:
    """Return the values that are equal for runs that one command repeats."""
    return row.cell, row.workload_hash, row.executor, row.scope, row.injected_fault, row.imported


def key_of(one: Row | Verdict) -> Key:
    """Return the values that must be equal for runs to be comparable."""
    return one.family, one.host_kind, one.executor, one.scope


def _current(verdicts: Iterable[Verdict]) -> dict[Key, dict[str, Verdict]]:
    """Return the verdicts that are not stale, by group and cell.

    Of a cell that ran both with uncommitted changes and without, it is the verdict without.
    """
    found: dict[Key, dict[str, Verdict]] = {}
    for verdict in sorted(verdicts, key=lambda one: (one.runs > 0, not one.uncommitted)):
        if not verdict.stale:
            found.setdefault(key_of(verdict), {})[verdict.cell] = verdict
    return found


def _group(
    id_: str,
    rows: Sequence[Row],
    every: Mapping[str, Verdict],
    own: Mapping[str, Verdict],
    matrix: Matrix,
    hosts: Mapping[str, HostFacts],
    told: Mapping[str, str],
) -> Group:
    newest = rows[-1]
    data = data_in_words(rows)
    work = f"{newest.workload} on {data}" if data else newest.workload
    stacks = _in_order((row.stack for row in rows), matrix.stacks)
    presets = _in_order((row.preset for row in rows), matrix.presets)
    ran = {row.cell for row in rows}
    host = hosts.get(newest.host_kind)
    gpus = ", ".join(gpu.gfx for gpu in host.gpus) or "no GPU" if host else ""
    made_of = f"simulated {gpus}" if host and host.simulated else gpus
    return Group(
        id=id_,
        workload=newest.workload,
        work=f"{work} ({told[newest.family]})" if newest.family in told else work,
        family=newest.family[:12],
        host_kind=newest.host_kind,
        host=f"{made_of}, kernel {host.kernel} ({newest.host_kind[:6]})" if host else f"kind {newest.host_kind}",
        executor=newest.executor,
        scope=newest.scope,
        stacks=stacks,
        presets=presets,
        places=tuple(
            GridPlace(
                cell=f"{stack}-{preset}",
                stack=stack,
                preset=preset,
                count=_count(f"{stack}-{preset}", every, matrix),
                own=_count(f"{stack}-{preset}", own, matrix),
                reason=_reason(f"{stack}-{preset}", every, ran, matrix),
            )
            for preset in presets
            for stack in stacks
        ),
    )


def _count(cell: str, verdicts: Mapping[str, Verdict], matrix: Matrix) -> PassCount:
    if verdict := verdicts.get(cell):
        return PassCount(tier=verdict.tier, passes=verdict.passes, runs=verdict.runs)
    excluded = cell in matrix.cells and matrix.cells[cell].excluded
    return PassCount(tier="excluded", passes=0, runs=0) if excluded else NOTHING


def _reason(cell: str, verdicts: Mapping[str, Verdict], ran: Collection[str], matrix: Matrix) -> str | None:
    if cell in verdicts and verdicts[cell].runs:
        return None
    if cell in ran:
        return NOT_COUNTED
    return matrix.cells[cell].excluded if cell in matrix.cells else None


def _in_order(used: Iterable[str], order: Iterable[str]) -> tuple[str, ...]:
    """Return the names in the order of the matrix file; names that it no longer has come last."""
    given = dict.fromkeys(used)
    return tuple(dict.fromkeys([*(name for name in order if name in given), *given]))
