"""Build the report of a results folder: verdicts from the index, details from the run folders of a few runs."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

from harness import __version__
from harness.base.wording import many
from harness.campaign.answered import Command
from harness.environments.docker.dockerfile import render
from harness.evidence.files.run_files import Explanation
from harness.evidence.gpus.gpu_evidence import read_gpu_evidence
from harness.evidence.host_state import HostSettings
from harness.evidence.isolations import read_isolations, sentences
from harness.evidence.records import Results
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import Counts
from harness.evidence.verdicts.distinguishing import families_apart
from harness.evidence.verdicts.recommend import usable_on
from harness.evidence.verdicts.verdict import Verdict, judge
from harness.evidence.verdicts.words import runs_in_words
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix
from harness.matrix.lint import beyond_cpu, lint
from harness.registry.tags.promotions import KnownGood
from harness.report.invocation import Invocation
from harness.report.model import Answer, Answers, DiagnosedFailures, ExcludedCells, FindingLine, Report, RunDetail
from harness.report.of_runs.by_hand import again
from harness.report.of_runs.details import detail_of
from harness.report.reader import Reader
from harness.report.sections.ages import failure_ages
from harness.report.sections.answer import answer_of
from harness.report.sections.cautions import cautions
from harness.report.sections.choice import which_cell
from harness.report.sections.code_evidence import code_evidence
from harness.report.sections.criteria import ReadRecord, states_in_words, which_criteria_are_met
from harness.report.sections.failures import Failure, failures, what_fails
from harness.report.sections.grid import GridVerdicts, group_ids, groups, key_of, run_lines, verdict_lines, work_of
from harness.report.sections.judged_runs import JudgedRuns, judged_runs
from harness.report.sections.notes import what_the_notes_changed
from harness.report.sections.of_host import explanations_of, of_host, record_reader

# How many runs of each cell of each grid are shown in full: the newest, and the newest that did not complete.
NEWEST, NEWEST_FAILED = 3, 2
# Most runs that are shown in full: a page with more opens slowly.
IN_FULL = 500
# Most bytes of the details of one run as JSON, and of all of them, which take several times as much memory. Those of a
# run of eight ranks with very many phases take 0.3 MB, those of a run of minutes on a GPU 20 kB.
LARGEST_DETAIL, LARGEST_DETAILS = 1 << 20, 4 << 20
# Most bytes of the facts of all hosts as JSON: those of some hundreds.
LARGEST_HOSTS = 1 << 20


def build_report(
    results: Results,
    rows: Sequence[Row],
    matrix: Matrix,
    current: Mapping[tuple[str, str], str],
    counts: Counts,
    reader: Reader,
    promoted: Iterable[KnownGood] = (),
    settings: Mapping[str, HostSettings] | None = None,
) -> Report:
    """Return the report on all runs of a folder.

    `current`, `counts`, `settings`: as in `judge`.
    `rows`: the rows of the folder's index.
    `promoted`: the evidence of the known-good tags in force.

    Unreadable records are left out.
    """
    rows = sorted(rows, key=lambda row: (row.started, row.run_id))
    judge_now = partial(judge, current=current, thresholds=matrix.verdicts, counts=counts, settings=settings)
    read, in_text = record_reader(results, reader.invocation), reader.invocation.in_text
    verdicts = judge_now(rows)
    runs = judged_runs(rows, matrix, counts, read, verdicts, judge_now)
    hosts, unseen = _hosts(rows, read)
    found = failures(verdicts, rows, counts)
    explanations = explanations_of(found, read)
    ids = group_ids(rows)
    grids = groups(
        rows,
        GridVerdicts(verdicts, runs.own),
        matrix,
        {host.kind: host for host in hosts},
        families_apart(rows, read),
    )
    known = of_host(runs, promoted, reader)
    gpus = max((len(host.gpus) for host in hosts if reader.host_kind in (None, host.kind)), default=0)
    criteria = which_criteria_are_met(matrix, rows, counts, read)
    # The answer is about this kind of host as it is now.
    ids_here = {run_id for one in known.here if not one.stale for run_id in one.run_ids}
    criteria_here = which_criteria_are_met(matrix, [row for row in rows if row.run_id in ids_here], counts, read)
    answer = answer_of(known, matrix, gpus, reader.last, states_in_words(criteria_here), ids)
    shown = _shown_in_full(rows, [one.newest for one in found])
    repeating = _repeating(rows, set(shown), read, matrix, reader.invocation)
    commands = {command: number for number, command in enumerate(dict.fromkeys(repeating.values()))}
    return Report(
        made=reader.now,
        harness_version=__version__,
        confidence=matrix.verdicts.confidence,
        headline=_headline([row for row in rows if row.can_be_evidence]),
        answer=_as_typed(reader.invocation, answer),
        answers=Answers(
            use=(*which_cell(known.trained_in, matrix, known.tags, runs.own), *_elsewhere(runs, known.here)),
            notes=tuple(map(in_text, what_the_notes_changed(judge_now(rows, pooled=False)))),
            failures=tuple(map(in_text, (*filter(None, [known.resets]), *what_fails(verdicts, found, explanations)))),
            criteria=tuple(in_text(one.sentence) for one in criteria),
            next=known.steps,
        ),
        cautions=(
            *cautions(rows, verdicts, counts, matrix),
            *([f"{many(unseen, 'host')} seen before the others had no room in this report."] if unseen else []),
            *sentences(read_isolations(results)),
        ),
        groups=grids,
        verdicts=verdict_lines(verdicts, ids),
        failures=by_diagnosis(found, explanations),
        failure_ages=failure_ages(verdicts, ids, {one.id: one.work for one in grids}, matrix.verdicts.confidence),
        runs=run_lines(
            rows, verdicts, ids, counts, {run_id: commands[command] for run_id, command in repeating.items()}
        ),
        again=tuple(commands),
        details=_details(results, shown, read),
        dockerfiles=_dockerfiles({place.cell for grid in grids for place in grid.places}, matrix),
        excluded=_excluded(matrix),
        findings=_findings({row.preset for row in rows}, matrix),
        hosts=hosts,
        code=code_evidence(read_gpu_evidence(results)),
    )


def by_diagnosis(
    found: Iterable[Failure], explanations: Mapping[str, Explanation | None]
) -> tuple[DiagnosedFailures, ...]:
    """Return the failures `found` in the report's form; `explanations` are by run id."""
    explained = ((one, explanations.get(one.newest)) for one in found)
    return tuple(
        DiagnosedFailures(
            diagnosis=one.diagnosis,
            runs=one.count,
            cells=one.cells,
            newest=one.newest,
            cause=told.cause if told else one.why,
            remedy=told.remedy if told else "",
        )
        for one, told in explained
    )


def _as_typed(invocation: Invocation, answer: Answer) -> Answer:
    failures = tuple(map(invocation.in_text, answer.failures))
    return answer.model_copy(update={"sentence": invocation.in_text(answer.sentence), "failures": failures})


def _hosts(rows: Sequence[Row], read: ReadRecord) -> tuple[tuple[HostFacts, ...], int]:
    """Return the facts of each host as its newest run found them, and the number of hosts left out for lack of room.

    Those seen last come first, and stay.
    """
    newest: dict[str, str] = {}
    for row in reversed(rows):
        newest.setdefault(row.host_fingerprint, row.run_id)
    hosts, room = list[HostFacts](), LARGEST_HOSTS
    for number, run_id in enumerate(newest.values()):
        if record := read(run_id):
            room -= len(record.intent.host.model_dump_json())
            if room < 0:
                return tuple(hosts), len(newest) - number
            hosts.append(record.intent.host)
    return tuple(hosts), 0


def _elsewhere(runs: JudgedRuns, here: Sequence[Verdict]) -> tuple[str, ...]:
    """Return a sentence on the verdicts of other kinds of hosts, if there are any."""
    usable = usable_on(runs.verdicts, runs.matrix, None)
    kinds = {one.host_kind for one in usable} - {one.host_kind for one in here}
    others = f"{many(len(kinds), 'other kind')} of hosts (GPUs, driver or kernel differ)"
    return (f"Runs on {others} are in the tables below; they say nothing about this host.",) if kinds else ()


def _headline(rows: Sequence[Row]) -> str:
    if not rows:
        return "Nothing was run yet."
    outcomes = Counter(row.outcome for row in rows)
    counts = ", ".join(f"{count:,} {name}" for name, count in outcomes.most_common())
    return f"{runs_in_words(rows)} of {many(len({row.cell for row in rows}), 'cell')}: {counts}."


def _repeating(
    rows: Sequence[Row], shown: Collection[str], read: ReadRecord, matrix: Matrix, invocation: Invocation
) -> dict[str, Command]:
    """Return the command that repeats each run, by run id.

    To avoid reading every record, runs that are not shown in full get the command of the newest run of the same work.
    """
    newest = {work_of(row): row.run_id for row in rows}
    asked = {row.run_id: row.run_id if row.run_id in shown else newest[work_of(row)] for row in rows}
    found = {
        run_id: again(record.intent, matrix, invocation) for run_id in set(asked.values()) if (record := read(run_id))
    }
    return {run_id: command for run_id, one in asked.items() if (command := found.get(one))}


def _shown_in_full(rows: Sequence[Row], named: Sequence[str]) -> list[str]:
    """Return the ids of the `named` runs, then of the newest runs of every cell of every grid, at most IN_FULL."""
    places: dict[tuple[str, ...], list[Row]] = {}
    for row in reversed(rows):
        places.setdefault((*key_of(row), row.cell), []).append(row)
    chosen = [run for runs in places.values() for run in enumerate(runs[:NEWEST])]
    chosen += [
        run
        for runs in places.values()
        for run in enumerate([row for row in runs if row.outcome != "completed"][:NEWEST_FAILED])
    ]
    # Every cell gets its newest run before any cell gets a second one.
    in_order = [row.run_id for _, row in sorted(chosen, key=lambda run: run[0])]
    return list(dict.fromkeys([*named, *in_order]))[:IN_FULL]


def _details(results: Results, run_ids: Iterable[str], read: ReadRecord) -> dict[str, RunDetail]:
    """Return the details of the first of these runs for which there is room, by run id; the page names the others."""
    details: dict[str, RunDetail] = {}
    room = LARGEST_DETAILS
    for run_id in run_ids:
        if not (record := read(run_id)):
            continue
        detail = detail_of(record, results.folder_of(run_id))
        size = len(detail.model_dump_json())
        room -= min(size, LARGEST_DETAIL)
        if room < 0:
            break
        if size <= LARGEST_DETAIL:
            details[run_id] = detail
    return details


def _dockerfiles(cells: Collection[str], matrix: Matrix) -> dict[str, str]:
    known = [matrix.cells[cell] for cell in sorted(cells) if cell in matrix.cells]
    return {cell.id: render(cell) for cell in known if cell.stack.framework == "torch" and cell.stack.torch}


def _excluded(matrix: Matrix) -> tuple[ExcludedCells, ...]:
    by_reason: dict[str, list[str]] = {}
    for cell in matrix.cells.values():
        if cell.excluded:
            by_reason.setdefault(cell.excluded, []).append(cell.id)
    return tuple(ExcludedCells(cells=tuple(cells), reason=reason) for reason, cells in by_reason.items())


def _findings(presets: Collection[str], matrix: Matrix) -> tuple[FindingLine, ...]:
    """Return what `lint` found about the presets that were run."""
    return tuple(
        FindingLine(
            preset=finding.preset,
            variable=f"{finding.variable or ''}{f' ({finding.key})' if finding.key else ''}",
            kind=finding.kind,
            text=finding.summary,
            source=finding.source,
            stacks=tuple(finding.stacks),
        )
        for finding in beyond_cpu(lint(matrix), matrix)
        if finding.preset in presets
    )
