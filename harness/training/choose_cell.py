"""The cell that a training is made in: the known-good one of this host, or the one the user names."""

from dataclasses import dataclass

from harness.base.errors import UserError
from harness.campaign.plain_cells import first_plain_cell
from harness.environments.capabilities import Capabilities
from harness.evidence.records import Results
from harness.evidence.verdicts.scope import is_of_strategy
from harness.host.facts import HostFacts
from harness.matrix.cells import Cell, Matrix, Strategy
from harness.matrix.load import nearest
from harness.registry.tags.known_good import KnownGood, NotForThisHostError, NothingPromotedError, resolve

BEST = "best"


@dataclass(frozen=True)
class Choice:
    """A cell, the evidence for it where it is known good, and how it was chosen."""

    cell: Cell
    evidence: KnownGood | None
    told: str


@dataclass(frozen=True)
class Wish:
    """What the user says of the cell: its name, or the registry that known-good tags are in.

    `force`: also a tag whose evidence is not of such a host, or expired. `strategy`: how the training uses devices.
    """

    cell: str | None
    registry: str | None
    force: bool
    strategy: Strategy = "single"


def choose(wish: Wish, matrix: Matrix, results: Results, host: HostFacts, able: Capabilities, now: float) -> Choice:
    """The cell to train in. `able`: what this host can do; `now`: seconds since 1970.

    Raises:
        UserError: when the tag may not be used here, names no cell of the matrix, or no cell can run here.
    """
    if wish.cell and wish.cell != BEST:
        return Choice(matrix.cells[wish.cell], None, f"{wish.cell}, as asked for")
    told = ""
    if wish.cell is None:
        try:
            evidence = resolve(wish.registry, host, results, now, None, wish.strategy)
            told = f"{evidence.cell}: {evidence.tag}, {evidence.passes} of {evidence.runs} runs completed"
            if not is_of_strategy(evidence.scope, wish.strategy):
                told += f"; they used devices otherwise: of strategy {wish.strategy} nothing is known to be good here"
            return Choice(_cell_of(evidence, matrix), evidence, told)
        except NotForThisHostError as refusal:
            if not wish.force:
                raise UserError(f"{refusal}, or give --force") from None
            told = f"{refusal.evidence.cell}, forced: {refusal}"
            return Choice(_cell_of(refusal.evidence, matrix), refusal.evidence, told)
        except NothingPromotedError as nothing:
            if wish.registry:
                raise UserError(
                    f"{nothing}; is that its name? `--cell best` trains in a cell that is not proven"
                ) from None
            told = ": nothing is known to be good on this host yet; `matrix run --until known-good` finds out"
    cell = first_plain_cell(matrix, able)
    return Choice(cell, None, f"{cell.id}{told}")


def _cell_of(evidence: KnownGood, matrix: Matrix) -> Cell:
    if evidence.cell not in matrix.cells:
        near = nearest(evidence.cell, list(matrix.cells))
        raise UserError(f"{evidence.tag} is {evidence.cell}, which the matrix file does not have; {near}")
    return matrix.cells[evidence.cell]
