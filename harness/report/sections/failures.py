"""Failures among the runs that count, with their causes and frequencies. Pure."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from harness.base.wording import listed, many
from harness.evidence.files.run_files import Explanation
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import Counts
from harness.evidence.verdicts.verdict import Verdict
from harness.report.words import names

SHOWN = 5
# Longest detail quoted, in characters: one line of a program's output can be a page long.
LONGEST = 120
# A file, a variable or a module at the start of a text.
_NAME = re.compile(r"\S*\w[._/=]\w")


class Helped(NamedTuple):
    """A cell in which the work of failed runs passed, and in how many of its runs that passed or failed alike."""

    cell: str
    preset: str
    passes: int
    runs: int


@dataclass(frozen=True)
class Failure:
    """A diagnosis and its cause, with the counted runs that have both, their cells, and the newest run with its stack.

    `why`: why the newest run counts as failed, if its outcome does not say so.
    `detail`: how the newest run ended, in words.
    `others`: the number of these runs whose details have another wording.
    `presets`: the presets of their cells.
    `helped`: the cells of the same stacks in which the same work passed.
    `on_one_gpu`: a sentence if they failed on one GPU alone, and the same work passed on another.
    """

    diagnosis: str
    count: int
    cells: tuple[str, ...]
    newest: str
    stack: str
    why: str
    detail: str
    others: int
    presets: tuple[str, ...] = ()
    helped: tuple[Helped, ...] = ()
    on_one_gpu: str = ""


def failures(verdicts: Iterable[Verdict], rows: Iterable[Row], counts: Counts) -> list[Failure]:
    """Return the diagnoses of the runs that failed, the most frequent first; `rows` are ordered by time.

    Failures with the same diagnosis that different rules explain have different causes, so they are counted apart.
    """
    failed = {run_id for verdict in verdicts if not verdict.stale for run_id in verdict.failed_ids}
    found: dict[tuple[str, str], list[Row]] = {}
    passed: list[Row] = []
    counted: list[Row] = []
    for row in rows:
        if counts[row.run_id].counts:
            counted.append(row)
        if counts[row.run_id].counts_as == "passed":
            passed.append(row)
        if row.run_id in failed:
            diagnosis = counts[row.run_id].diagnosis or row.diagnosis or row.outcome
            found.setdefault((diagnosis, row.rule), []).append(row)
    of_each = [
        Failure(
            diagnosis,
            len(runs),
            tuple(dict.fromkeys(row.cell for row in runs)),
            runs[-1].run_id,
            runs[-1].stack,
            counts[runs[-1].run_id].why,
            runs[-1].detail,
            sum(_wording(row) != _wording(runs[-1]) for row in runs),
            tuple(dict.fromkeys(row.preset for row in runs)),
            _helped(runs, passed, counted),
            _on_one_gpu(runs, passed),
        )
        for (diagnosis, _), runs in found.items()
    ]
    return sorted(of_each, key=lambda one: -one.count)


def _helped(runs: Sequence[Row], passed: Iterable[Row], counted: Iterable[Row]) -> tuple[Helped, ...]:
    """Return the cells in which the work of these runs passed, on the same GPUs of the same machine."""
    work = {_work(row) for row in runs}
    passes = Counter((row.cell, row.preset) for row in passed if _work(row) in work)
    # Those that failed in another way, too.
    alike = Counter((row.cell, row.preset) for row in counted if _work(row) in work)
    return tuple(Helped(*one, count, alike[one]) for one, count in passes.items())


def _work(row: Row) -> tuple[str, ...]:
    return row.stack, row.workload_hash, row.machine, row.gpus


def _on_one_gpu(runs: Sequence[Row], passed: Iterable[Row]) -> str:
    """Return a sentence if all these runs failed on one GPU of this host, and their work passed on another GPU only."""
    places = {(row.machine, row.gpus) for row in runs}
    (machine, gpus), *others = places
    if others or runs[0].imported or len(json.loads(gpus)) != 1:
        return ""
    work = {(row.cell, row.workload_hash) for row in runs}
    alike = [row for row in passed if row.machine == machine and (row.cell, row.workload_hash) in work]
    elsewhere = [row for row in alike if len(json.loads(row.gpus)) == 1 and row.gpus != gpus]
    if not elsewhere or len(elsewhere) != len(alike):
        return ""
    (gpu,) = json.loads(gpus)
    times = many(len(elsewhere), "time")
    return f" On GPU {gpu} alone: the same work never passed there, and passed {times} on another GPU."


def _wording(row: Row) -> str:
    """Return how a run ended, without numbers and run ids, so that equal endings compare equal."""
    return re.sub(r"\d+", "", row.detail.replace(row.run_id, ""))


def what_fails(
    verdicts: Sequence[Verdict], found: Sequence[Failure], explanations: Mapping[str, Explanation | None]
) -> tuple[str, ...]:
    """Return sentences on the failures `found`; `explanations` are by run id."""
    runs = sum(verdict.runs for verdict in verdicts if not verdict.stale)
    if not found:
        return (f"Nothing failed in {many(runs, 'counted run')}.",) if runs else ("No run counts yet.",)
    said = [_in_words(one, runs, explanations.get(one.newest)) for one in found[:SHOWN]]
    rest = found[SHOWN:]
    if rest:
        others = list(dict.fromkeys(one.diagnosis for one in rest))
        said.append(f"{many(sum(one.count for one in rest), 'run')} failed in other ways: {names(others)}.")
    return tuple(said)


def _sentence(text: str) -> str:
    """Return a text with a capital at its start, unless that is a name, such as a file's."""
    return text if _NAME.match(text) else text[:1].upper() + text[1:]


def _in_words(one: Failure, runs: int, explanation: Explanation | None) -> str:
    said = f"`{one.diagnosis}`: {one.count:,} of {many(runs, 'counted run')}, in {names(one.cells)}."
    said += one.on_one_gpu
    if one.others and explanation and one.detail in explanation.cause:
        said += f" The newest ({one.others:,} ended in another way):"
    elif one.others:
        last = one.detail.rstrip(".") if len(one.detail) <= LONGEST else f"{one.detail[:LONGEST]}..."
        said += f" The newest: {last} ({one.others:,} ended in another way)."
    if explanation is None and one.why:
        return f"{said} {_sentence(one.why)}. `matrix explain {one.newest}` says what to do."
    if explanation is None:
        return f"{said} `matrix explain {one.newest}` searches for the cause."
    cause, remedy = (_sentence(text).rstrip(".") for text in (explanation.cause, explanation.remedy))
    helped = [found for found in one.helped if found.preset in explanation.presets]
    with_success = {found.preset for found in helped}
    tried = [name for name in explanation.presets if name in one.presets and name not in with_success]
    in_vain = f" But tried here, with the same failure: {names(tried)}." if tried else ""
    helps = "What often helps" if tried else "What helps"
    times = [f"`{found.cell}` passed {found.passes} of {many(found.runs, 'run')}" for found in helped]
    passed = f" Tried on the same work: {listed(times)}." if times else ""
    return f"{said} {cause}. {helps}: {remedy}.{in_vain}{passed}"
