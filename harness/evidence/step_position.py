"""Where in an optimizer step each rank of a run is, as `position-<rank>.bin` tells it."""

import re
import struct
from dataclasses import dataclass
from pathlib import Path

LAYOUT = struct.Struct("<qq")
STAGES = (
    "outside a step",
    "waiting for its batch",
    "in forward",
    "in backward",
    "in the exchange with other ranks",
    "in the update",
)
WAITING = 1


@dataclass(frozen=True)
class Position:
    """The optimizer step being made, from 1 (0: before the first), and the index in STAGES of what is done for it."""

    step: int
    stage: int

    @property
    def order(self) -> tuple[int, int]:
        """The less, the farther behind. Outside a step its number is that of the last one that was made."""
        return self.step, self.stage or len(STAGES)

    @property
    def words(self) -> str:
        """The stage, in words; empty outside a step."""
        return STAGES[self.stage] if self.stage else ""


def read_position(folder: Path, rank: int) -> Position | None:
    """The position of a rank; None where there is none that is sound."""
    try:
        step, stage = LAYOUT.unpack((folder / f"position-{rank}.bin").read_bytes())
    except (OSError, struct.error):
        return None
    return Position(step, stage) if step >= 0 and 0 <= stage < len(STAGES) else None


def read_positions(folder: Path) -> dict[int, Position]:
    """By rank, of all ranks that have one."""
    found = {}
    for file in folder.glob("position-*.bin"):
        if match := re.fullmatch(r"position-(\d{1,6})\.bin", file.name):
            position = read_position(folder, int(match[1]))
            if position is not None:
                found[int(match[1])] = position
    return found
