"""The cell that a training is made in: the known-good one of this host, or the one the user names."""

from dataclasses import dataclass

from harness.base.errors import UserError
from harness.campaign.plan import first_plain_cell
from harness.environments.capabilities import Capabilities
from harness.evidence.records import Results
from harness.evidence.verdicts.scope import is_of_strategy
from harness.host.facts import HostFacts
from harness.matrix.cells import Cell, Matrix, Strategy
from harness.matrix.load import nearest
from harness.registry.tags.known_good import KnownGood, NotForThisHostError, NothingPromotedError, resolve_tag
from harness.registry.tags.suspension import suspension_by

BEST = "best"


@dataclass(frozen=True)
class CellChoice:
    """A cell, the evidence for it where it is known good, and how it was chosen."""

    cell: Cell
    evidence: KnownGood | None
    summary: str


@dataclass(frozen=True)
class CellRequest:
    """The cell that a user asks for: its name, or the registry that known-good tags are in.

    `force`: also a tag whose evidence is not of such a host, or expired. `strategy`: how the training uses devices.
    `allow_cpu`: the CPU may be trained on where this host has a GPU.
    """

    cell: str | None
    registry: str | None
    force: bool
    strategy: Strategy = "single"
    allow_cpu: bool = False


def choose_training_cell(
    request: CellRequest, matrix: Matrix, results: Results, host: HostFacts, able: Capabilities, now: float
) -> CellChoice:
    """Return the cell to train in. `able`: what this host can do; `now`: seconds since 1970.

    Raises:
        UserError: when the tag may not be used here, names no cell of the matrix, or no cell can run here.
    """
    if request.cell and request.cell != BEST:
        return CellChoice(matrix.cells[request.cell], None, f"{request.cell}, as asked for")
    summary = ""
    if request.cell is None:
        try:
            evidence = resolve_tag(
                request.registry, host, results, now, None, request.strategy, suspension_by(results, matrix)
            )
            summary = f"{evidence.cell}: {evidence.tag}, {evidence.shown}"
            if not is_of_strategy(evidence.scope, request.strategy):
                summary += (
                    f"; they used devices otherwise: of strategy {request.strategy} nothing is known to be good here"
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
            summary = ": nothing is known to be good on this host yet; `matrix run --until known-good` finds out"
    cell = first_plain_cell(matrix, able)
    return CellChoice(cell, None, f"{cell.id}{summary}")


def _cell_of(evidence: KnownGood, matrix: Matrix) -> Cell:
    if evidence.cell not in matrix.cells:
        near = nearest(evidence.cell, list(matrix.cells))
        raise UserError(f"{evidence.tag} is {evidence.cell}, which the matrix file does not have; {near}")
    return matrix.cells[evidence.cell]
