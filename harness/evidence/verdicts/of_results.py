"""The verdicts on all records of a results folder."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from harness.base.durations import when
from harness.base.wording import many
from harness.environments.environment_hashes import current_hashes
from harness.evidence.host_state import changed_kind, settings_of, state_from_json, state_of
from harness.evidence.index import Index
from harness.evidence.records import Results
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import Counts, counts_of
from harness.evidence.verdicts.scope import is_simulated_scope
from harness.evidence.verdicts.verdict import Verdict, judge
from harness.evidence.verdicts.words import runs_in_words
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix


def verdicts(results: Results, matrix: Matrix, host: HostFacts | None = None, *, pooled: bool = True) -> list[Verdict]:
    """Return the verdicts on all records. `host`, `pooled`: as in `verdicts_on`."""
    everything = Index(results).rows()
    return verdicts_on(everything, matrix, counts_of(results, everything), host, pooled=pooled)


def verdicts_on(
    rows: Sequence[Row], matrix: Matrix, counts: Counts, host: HostFacts | None = None, *, pooled: bool = True
) -> list[Verdict]:
    """Return the verdicts on these rows of the index.

    `counts`: of all rows of the index.
    `host`: this host as it is now; its runs with other settings are stale.
    `pooled`: as in `judge`.
    """
    current = current_hashes(matrix, {(row.cell, row.executor) for row in rows})
    return judge(rows, current, matrix.verdicts, counts, pooled=pooled, settings=settings_of(host))


def changes_in_words(verdicts: Iterable[Verdict]) -> list[str]:
    """Return why verdicts are stale: a line for each set of changes of the host, and one for changed environments."""
    of_cells: dict[tuple[str, ...], list[str]] = {}
    for one in verdicts:
        if one.stale:
            of_cells.setdefault(one.changed, []).append(one.cell)
    return [
        f"runs of {', '.join(dict.fromkeys(cells))} before this host changed are stale: {', '.join(changed)}; "
        "`matrix compare --across parameters` (or firmware) compares them with those since"
        if changed
        else "stale: of runs before the app, its packages or the preset changed; they are not counted"
        for changed, cells in of_cells.items()
    ]


def changed_kind_in_words(rows: Iterable[Row], host: HostFacts) -> str | None:
    """Return why earlier runs of this machine are of another kind of host; None where there are none."""
    before = [row for row in rows if row.machine == host.machine and not row.imported and row.host_kind != host.kind]
    if not before:
        return None
    newest = max(before, key=lambda row: row.started)
    changed = changed_kind(state_from_json(newest.host_state), state_of(host, gpus_used=newest.device != "cpu"))
    if not changed:
        return None
    return (
        f"this machine is another kind of host since {', '.join(changed)}: its runs of before do not count for it; "
        "`matrix compare --across kernel` (or driver, firmware) compares them with those since"
    )


def left_out_of_verdicts(rows: Sequence[Row], results: Results, machine: str) -> list[str]:
    """Return what verdicts on all rows of the index leave out, one line each.

    These are unfinished runs, injected faults, runs that were not verified, and damaged records. `machine`: this one,
    as in `HostFacts`.
    """
    lines: list[str] = []
    damaged: list[str] = []
    others = results.begun(besides={row.run_id for row in rows})
    for intent in results.unfinished(damaged, among=others):
        # Imported here, because most folders have no such run and these modules take time to import.
        from harness.evidence.records import owner_alive  # noqa: PLC0415
        from harness.host.processes.processes import boot_id  # noqa: PLC0415
        from harness.host.processes.run_processes import marked_runs  # noqa: PLC0415

        told = f"{intent.run_id} began {when(intent.started)}"
        if owner_alive(intent):
            lines.append(f"{told} and continues, in process {intent.owner_pid}; `matrix watch` shows it")
        elif intent.host.machine == machine:
            left = ", though its processes run on" if intent.run_id in marked_runs(results.runs) else ""
            ends = "the next `matrix run` or `matrix train`"
            if intent.host.boot_id != boot_id():
                lines.append(f"{told}, and this host went down before it ended; {ends} records it as failed")
            else:
                ends += " ends what is left and records it as interrupted"
                lines.append(f"{told}, and its harness is gone{left}; {ends}")
    lines += damaged
    if injected := [row for row in rows if row.injected_fault is not None]:
        lines.append(f"{runs_in_words(injected)} with an injected fault, not counted")
    if rehearsed := sum(row.rehearsal for row in rows):
        lines.append(f"{many(rehearsed, 'rehearsal')}, not counted")
    if own := sum(row.own_program for row in rows):
        lines.append(f"{many(own, 'run')} of programs of your own: numbers not checked, qualifying for nothing")
    if unverified := sum(row.is_unverified for row in rows):
        lines.append(f"{many(unverified, 'run')} not verified by the host, qualifying for nothing")
    unreadable = sum(map(results.has_record, others))
    if unreadable:
        lines.append(f"{many(unreadable, 'record')} cannot be read; `matrix index` says why")
    return lines


def describe_verdict(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as plain values."""
    totals = verdict.totals
    hours = {"hours": totals.hours, "longest_hours": totals.longest}
    return {
        **asdict(verdict),
        "totals": {**asdict(totals), **hours},
        "diagnosis": verdict.diagnosis,
        "simulated": is_simulated_scope(verdict.scope),
    }
