"""The choice of the cell to train in: the user's, or the known-good cell of this host, or the answer's."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from harness.base.errors import UserError
from harness.campaign.answered import last_answer
from harness.campaign.bench.plan import BEST, first_plain_cell
from harness.doctor.compatibility import is_outside
from harness.environments.capabilities import Capabilities, why_not
from harness.evidence.index import Index
from harness.evidence.records import Results
from harness.evidence.verdicts.of_results import verdicts
from harness.evidence.verdicts.recommend import NOT_TO_BE_USED, NamedCell, most_useful, that_train, usable_on
from harness.evidence.verdicts.scope import is_of_strategy, parts_of
from harness.evidence.verdicts.verdict import Verdict
from harness.evidence.verdicts.words import in_words
from harness.host.facts import HostFacts
from harness.matrix.cells import Cell, Matrix
from harness.matrix.stacks import ExecutorName
from harness.matrix.strategies import Strategy
from harness.registry.tags.known_good import KnownGood, NotForThisHostError, NothingPromotedError, resolve_tag
from harness.registry.tags.suspension import suspension_by


@dataclass(frozen=True)
class CellChoice:
    """A cell, the evidence for it if it is known good, and how it was chosen.

    `executor`: the executor that the cell was shown to train with, if the training has to use the same one; else None.
    """

    cell: Cell
    evidence: KnownGood | None
    summary: str
    executor: ExecutorName | None = None


@dataclass(frozen=True)
class CellRequest:
    """The user's request for a cell: its name, or the registry that known-good tags are in.

    `force`: accept a tag whose evidence is from another kind of host, or expired.
    `strategy`: how the training uses devices.
    `allow_cpu`: whether to train on the CPU of a host with a GPU.
    `ask`: asks the user a question, such as whether to trust a signer.
    """

    cell: str | None
    registry: str | None
    force: bool
    strategy: Strategy = "single"
    allow_cpu: bool = False
    ask: Callable[[str], bool] = lambda _: False


def choose_training_cell(
    request: CellRequest, matrix: Matrix, results: Results, host: HostFacts, able: Capabilities, now: float
) -> CellChoice:
    """Return the cell to train in.

    `able`: the capabilities of this host.
    `now`: seconds since 1970.

    Raises:
        UserError: when the tag may not be used here or names no cell of the matrix, or no cell can run here.
    """
    if request.cell and request.cell != BEST:
        return CellChoice(matrix.cells[request.cell], None, f"{request.cell}, as asked for")
    if request.cell is None:
        try:
            suspension = suspension_by(results, matrix)
            evidence = resolve_tag(request.registry, host, results, now, request.strategy, suspension, matrix.cells)
            summary = f"{evidence.cell}: {evidence.tag}, {evidence.shown}"
            if not is_of_strategy(evidence.scope, request.strategy):
                summary += (
                    f"; no cell is known to be good with strategy {request.strategy}, which these runs did not use"
                )
            return CellChoice(_cell_of(evidence, matrix), evidence, summary)
        except NotForThisHostError as refusal:
            if not request.force:
                raise UserError(f"{refusal}, or give --force") from None
            summary = f"{refusal.evidence.cell}, forced: {refusal}"
            return CellChoice(_cell_of(refusal.evidence, matrix), refusal.evidence, summary)
        except NothingPromotedError as nothing:
            if request.registry:
                raise UserError(
                    f"{nothing}; is that its name? `--cell best` trains in a cell that is not proven"
                ) from None
        named = last_answer(results, host.machine).named
        if answer := _answer(named, matrix, results, host, able):
            of = "the last campaign" if named and named.cell == answer.cell else "the runs here"
            return _of_answer(answer, of, request.strategy, matrix)
        if before := _answer_before(named, matrix, results, host, able):
            return _of_answer_before(before, matrix)
    cell = first_plain_cell(matrix, able)
    why = "the first plain cell that can run here"
    if able.gpus:
        why += ", if possible of a ROCm that its driver is for"
    if request.cell is None:
        why += "; no cell is shown to train here yet, and `matrix run` looks for one"
    return CellChoice(cell, None, f"{cell.id}: {why}")


def _answer(
    named: NamedCell | None, matrix: Matrix, results: Results, host: HostFacts, able: Capabilities
) -> Verdict | None:
    """Return the verdict that the answer is about; None if there is no such cell that can train here.

    `named`: the cell that the last campaign named.
    """
    here = that_train(usable_on(verdicts(results, matrix, host), matrix, host.kind), matrix)
    answer = most_useful(sorted(here, key=lambda one: is_outside(host.driver, matrix.stacks.get(one.stack))), named)
    return answer if answer and _can_train(answer, matrix, able) else None


def _answer_before(
    named: NamedCell | None, matrix: Matrix, results: Results, host: HostFacts, able: Capabilities
) -> Verdict | None:
    """Return the verdict that the answer was about before the app or this machine changed.

    None without one, and where a run counts since: it may be a failure of that cell.
    """
    kinds = {row.host_kind for row in Index(results).rows() if row.machine == host.machine and not row.imported}
    usable = that_train(usable_on(verdicts(results, matrix, host), matrix, None), matrix)
    mine = [one for one in usable if one.host_kind in kinds and not (one.device == "cpu" and able.gpus)]
    if any(one.runs and not one.stale and one.host_kind == host.kind for one in mine):
        return None
    answer = most_useful([replace(one, stale=False) for one in mine], named)
    return answer if answer and _can_train(answer, matrix, able) else None


def _can_train(answer: Verdict, matrix: Matrix, able: Capabilities) -> bool:
    if answer.tier in NOT_TO_BE_USED or (answer.device == "cpu" and able.gpus):
        return False
    there = replace(able, executor="process" if answer.executor == "process" else "docker")
    cannot = why_not(matrix.cells[answer.cell], there, named=True)
    return not cannot


def _of_answer(answer: Verdict, of: str, strategy: Strategy, matrix: Matrix) -> CellChoice:
    yet = "promoted" if answer.tier == "known-good" else "known-good"
    what = "most promising" if answer.tier == "seen" else "answer"
    said = f"the {what} of {of} ({answer.tier}: {in_words(answer.totals)}), not {yet} yet"
    if not is_of_strategy(answer.scope, strategy):
        parts = parts_of(answer.scope)
        option = f"--strategy {parts.strategy}"
        said += (
            f"; those runs used {parts.in_words}, this training is of strategy {strategy} "
            f"({option}, with make ARGS='{option}', trains as they did)"
        )
    executor: ExecutorName | None = "process" if answer.executor == "process" else None
    return CellChoice(matrix.cells[answer.cell], None, f"{answer.cell}: {said}", executor)


def _of_answer_before(answer: Verdict, matrix: Matrix) -> CellChoice:
    executor: ExecutorName | None = "process" if answer.executor == "process" else None
    said = (
        f"the most promising before the app or this host changed ({answer.tier} then: {in_words(answer.totals)}); "
        "nothing counts since, and `matrix run` shows what does now"
    )
    return CellChoice(matrix.cells[answer.cell], None, f"{answer.cell}: {said}", executor)


def _cell_of(evidence: KnownGood, matrix: Matrix) -> Cell:
    if evidence.cell not in matrix.cells:
        raise UserError(
            f"{evidence.tag} is {evidence.cell}, which the matrix file does not have; "
            "give the file that it was promoted with (--matrix FILE), or name a cell of this one (--cell)"
        )
    return matrix.cells[evidence.cell]
