"""The place of each rank in an optimizer step, from its position file."""

import struct
from dataclasses import dataclass

from harness.base.files.untrusted_file import NotAFileError
from harness.evidence.files.work_folder import LARGEST, WorkFolder

LAYOUT = struct.Struct("<qq")
STAGES = (
    "outside a step",
    "waiting for its batch",
    "in forward",
    "in backward",
    "in the exchange with other ranks",
    "in the update",
)
OUTSIDE, WAITING = 0, 1


@dataclass(frozen=True)
class Position:
    """The current optimizer step, from 1 (0: before the first), and the index in STAGES of its current stage."""

    step: int
    stage: int

    @property
    def order(self) -> tuple[int, int]:
        """A key that is lower the farther a rank is behind. Outside a step, `step` is the last step that was made."""
        return self.step, self.stage or len(STAGES)

    @property
    def words(self) -> str:
        """The stage, in words; empty outside a step."""
        return STAGES[self.stage] if self.stage else ""


def read_position(work: WorkFolder, rank: int) -> Position | None:
    """Return the position of a rank; None where the file is missing or damaged."""
    return _read(work, work.POSITION.format(rank=rank))


def read_positions(work: WorkFolder) -> dict[int, Position]:
    """Return the positions of all ranks that have one, by rank."""
    found = ((rank, _read(work, name)) for rank, name in work.positions().items())
    return {rank: position for rank, position in found if position is not None}


def _read(work: WorkFolder, name: str) -> Position | None:
    try:
        step, stage = LAYOUT.unpack(work.tree.read(name, LARGEST["position"]))
    except (FileNotFoundError, NotAFileError, struct.error):
        return None
    return Position(step, stage) if step >= 0 and 0 <= stage < len(STAGES) else None
