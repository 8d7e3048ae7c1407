"""The surroundings of an explained run: controls, runs beside it, and the command that continues its work."""

from collections import Counter
from typing import Any

from harness.base.errors import UserError
from harness.base.wording import many
from harness.campaign.answered import Command, last_answer
from harness.cli.shared import Settings
from harness.evidence.files.run_files import Explanation, Record
from harness.evidence.index import Index
from harness.evidence.isolations import read_isolations, sentences
from harness.evidence.records import Results
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import counts_of
from harness.evidence.verdicts.shared_time import shared_time_in_words
from harness.host.fingerprint import machine_of
from harness.report.upstream.bug_report import NOT_A_BUG
from harness.report.upstream.facts import require_reportable
from harness.training.own_program import is_mistaken
from harness.training.state import unfinished_trainings


def around_run(settings: Settings, record: Record, found: Explanation | None) -> tuple[dict[str, Any], list[str]]:
    """Return the surroundings of a run as a JSON object, and as lines for people."""
    controls = _controls(settings.results, record)
    beside = _beside(settings.results, record)
    counted = _counted(settings.results, record)
    continues = _continues(settings, record)
    told = {"controls": controls, "beside": beside, "counts_as_failed": counted, "continues_training": continues}
    lines = [f"controls  {one}" for one in controls] + ([f"beside    {beside}"] if beside else [])
    if counted:
        lines.append(f"counts    as a failure: {counted}")
    if counted and record.outcome == "interrupted":
        strike = settings.invocation.command("strike", record.intent.run_id, "--reason", "I closed the terminal")
        lines.append(f"try       {strike}  # if you did that, and it was no hang")
    lines += [f"try       {continues}  # continues its training"] if continues else []
    if record.outcome == "interrupted" and (again := _continues_campaign(settings, record)):
        lines.append(f"try       {again.command}  # {again.why}")
    if found and found.class_ not in NOT_A_BUG and _is_reportable(settings.results, record):
        report = settings.invocation.command("report-bug", record.intent.run_id)
        lines.append(f"report    `{report}` writes an issue for ROCm or PyTorch; nothing is sent")
    return told, lines


def _is_reportable(results: Results, record: Record) -> bool:
    """Return whether `matrix report-bug` would take the run, and it used a GPU."""
    count = counts_of(results).get(record.intent.run_id)
    if count is None or record.intent.device == "cpu" or record.outcome == "completed":
        return False
    try:
        require_reportable(record, count)
    except UserError:
        return False
    return True


def tried_with(results: Results, record: Record, found: Explanation) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return which of the presets that an explanation names were tried in the same work, on the same host and GPUs.

    First those that failed alike and never completed, then those that completed, with how often.
    """
    rows = {row.run_id: row for row in Index(results).rows() if row.can_be_evidence and not row.struck}
    mine = rows.get(record.intent.run_id)
    if mine is None:
        return (), {}
    work = [row for row in rows.values() if _work(row) == _work(mine) and row.outcome != "interrupted"]
    alike = {row.preset for row in work if _failure(row) == _failure(mine)}
    ran = Counter(row.preset for row in work)
    completed = Counter(row.preset for row in work if row.outcome == "completed")
    in_vain = tuple(name for name in found.presets if name in alike - completed.keys())
    return in_vain, {
        name: f"completed {completed[name]} of {many(ran[name], 'time')}" for name in found.presets if completed[name]
    }


def _work(row: Row) -> tuple[str, ...]:
    return row.stack, row.workload_hash, row.host_fingerprint, row.gpus, row.executor


def _failure(row: Row) -> tuple[str, str | None, str]:
    return row.outcome, row.diagnosis, row.rule


def _controls(results: Results, record: Record) -> list[str]:
    """Return what controls on the run's machine showed about the failures of its cell."""
    if record.outcome == "completed":
        return []
    of = record.intent.cell, record.intent.workload, record.intent.host.machine
    return sentences([one for one in read_isolations(results) if (one.cell, one.workload, one.machine) == of])


def _continues(settings: Settings, record: Record) -> str | None:
    """Return the command that continues the training which the run was an attempt of.

    None when that training is finished, or when the training's own command is the mistake.
    """
    if record.intent.program and is_mistaken(record, settings.results.folder_of(record.intent.run_id)):
        return None
    here = unfinished_trainings(settings.results, machine_of(settings.root))
    return next((one.state.command for one in here if record.intent.run_id in one.state.run_ids), None)


def _continues_campaign(settings: Settings, record: Record) -> Command | None:
    """Return the command that continues the last campaign; None unless the run was its last one."""
    newest = max(Index(settings.results).rows(), key=lambda row: row.started, default=None)
    mine = newest is not None and newest.run_id == record.intent.run_id
    return last_answer(settings.results, machine_of(settings.root)).next_command if mine else None


def _beside(results: Results, record: Record) -> str | None:
    """Return how the run relates to those that ran at the same time; None when none did, or the run completed."""
    if record.outcome == "completed" or not record.intent.beside:
        return None
    rows = Index(results).rows()
    row = next((row for row in rows if row.run_id == record.intent.run_id), None)
    return shared_time_in_words(row, rows, counts_of(results, rows)) if row else None


def _counted(results: Results, record: Record) -> str | None:
    """Return why a run counts as a failure, where its outcome does not say so; None when it does not count as one."""
    if record.outcome not in ("interrupted", "completed"):
        return None
    count = counts_of(results).get(record.intent.run_id)
    return count.why if count and count.counts_as == "failed" else None
