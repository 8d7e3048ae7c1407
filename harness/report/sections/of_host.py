"""The findings of the records on one kind of host: its verdicts, its failures, and the commands to type next."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from harness.base.files.storage import size_of
from harness.campaign.answered import Command
from harness.diagnosis.device import explanation_in_record
from harness.doctor.compatibility import is_outside
from harness.evidence.files.run_files import Explanation, Record
from harness.evidence.host_state import state_from_json
from harness.evidence.records import Results
from harness.evidence.verdicts.recommend import most_useful, most_useful_before, that_train, usable_on
from harness.evidence.verdicts.verdict import Verdict
from harness.host.facts import GpuFacts
from harness.matrix.workload_options import OWN_DATA
from harness.registry.tags.promotions import KnownGood
from harness.registry.tags.suspension import why_suspended
from harness.report.invocation import Invocation
from harness.report.reader import Reader
from harness.report.sections.choice import Tags
from harness.report.sections.criteria import ReadRecord
from harness.report.sections.failures import Failure, failures
from harness.report.sections.judged_runs import JudgedRuns
from harness.report.sections.next_steps import training_meanwhile, what_next
from harness.report.sections.resets import whose_resets

# Most bytes of records that a reader keeps, each of which takes ten to twenty in memory; some hundred real ones have as
# many.
MOST_KEPT_BYTES = 4 << 20


@dataclass(frozen=True)
class OfHost:
    """The findings of the records on one kind of host, or on all kinds.

    `here`: the verdicts on cells that may be run.
    `trained_in`: the verdicts on cells to train in.
    `found`: the failures.
    `explained`: the explanations of the newest run of each failure.
    `steps`: commands, the most useful first.
    `train_now`: as in `Answer`.
    `elsewhere`: the number of runs that count on other kinds of host.
    `resets`: a sentence if all resets were of one GPU, though others were used.
    """

    here: Sequence[Verdict]
    trained_in: Sequence[Verdict]
    found: Sequence[Failure]
    explained: Mapping[str, Explanation | None]
    tags: Tags
    steps: tuple[Command, ...]
    train_now: Command | None = None
    elsewhere: int = 0
    resets: str = ""


def record_reader(results: Results, invocation: Invocation) -> ReadRecord:
    """Return a reader of records by run id, which returns None for a record that cannot be read.

    It keeps up to MOST_KEPT_BYTES of them, because imported ones may be large, and many. It adapts each explanation to
    the device of its run, which earlier versions of the harness did not do. What another user or host wrote is quoted,
    and its commands are left out.
    """
    kept: dict[str, Record | None] = {}
    left = MOST_KEPT_BYTES

    def read(run_id: str) -> Record | None:
        nonlocal left
        if run_id in kept:
            return kept[run_id]
        record, size = _read(run_id), size_of(results.folder_of(run_id).record)
        if size <= left:
            kept[run_id] = record
            left -= size
        return record

    def _read(run_id: str) -> Record | None:
        record = results.readable_record(run_id)
        if record is None:
            return None
        folder = results.folder_of(run_id)
        why = explanation_in_record(record, mine=folder.is_mine)
        typed = why and why.model_copy(update={"remedy": invocation.in_text(why.remedy)})
        return folder.for_display(record).model_copy(update={"explanation": typed})

    return read


def explanations_of(found: Iterable[Failure], read: ReadRecord) -> dict[str, Explanation | None]:
    """Return the explanation of the newest run of each failure, by run id."""
    return {one.newest: record.explanation if (record := read(one.newest)) else None for one in found}


def with_newest_program(here: Sequence[Verdict]) -> list[Verdict]:
    """Return the verdicts, of those on programs of the user's own only the newest program's.

    Another command, or another version of the program, says nothing about the cells of this one.
    """
    programs = [one for one in here if one.own_program and not one.stale]
    newest = max(programs, key=attrgetter("last_at"), default=None)
    return [one for one in here if not one.own_program or (newest and one.family == newest.family)]


def of_host(runs: JudgedRuns, promoted: Iterable[KnownGood], reader: Reader) -> OfHost:
    """Return what the records show on the reader's kind of host. `promoted`: as in `build_report`."""
    rows, matrix, last = runs.rows, runs.matrix, reader.last
    host_kind, invocation = reader.host_kind, reader.invocation
    drivers = (state_from_json(row.host_state).driver for row in rows if row.host_kind == host_kind)
    driver = next(drivers, None)
    here = sorted(
        usable_on(runs.verdicts, matrix, host_kind), key=lambda v: is_outside(driver, matrix.stacks.get(v.stack))
    )
    if last.of_program:
        here = with_newest_program(here)
    found = failures(here, rows, runs.counts)
    explained = explanations_of(found, runs.read)
    trained_in = that_train(here, matrix)
    best = most_useful(trained_in, last.named)
    towards = best or most_useful_before(trained_in)
    on_own_bars = [row.run_id for row in rows if row.workload == OWN_DATA and not row.imported]
    followed = [*([towards.last] if towards else []), *(one.newest for one in found[:1]), *on_own_bars[-1:]]
    intents = {run_id: record.intent for run_id in followed if (record := runs.read(run_id))}
    in_force = (one for one in promoted if reader.now < one.expires_at and host_kind in (None, one.host_kind))
    valid = [one for one in in_force if why_suspended(one, rows, runs.counts, runs.verdicts) is None]
    tags = {(one.cell, one.environment_hash, one.scope): one.tag for one in valid}
    # Recommend only cells that are in the matrix and not excluded.
    cells = {cell.id for cell in matrix.cells.values() if not cell.excluded}
    steps = what_next(towards, found, explained, tags, cells, intents, matrix, invocation, runs.own)
    train_now = training_meanwhile(best, intents, tags, matrix, invocation)
    steps = tuple(filter(None, (last.next_command, steps[0], train_now, *steps[1:])))
    elsewhere = sum(one.runs for one in runs.verdicts if host_kind not in (None, one.host_kind))
    mine = [row for row in rows if host_kind in (None, row.host_kind) and row.can_be_evidence]
    resets = whose_resets(mine, runs.counts, lambda row: _gpus_of(runs.read(row.run_id)))
    return OfHost(here, trained_in, found, explained, tags, steps, train_now, elsewhere, resets)


def _gpus_of(record: Record | None) -> tuple[GpuFacts, ...]:
    return record.intent.host.gpus if record else ()
