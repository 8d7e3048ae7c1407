"""Where a check runs, and how it says what it does, so that a check that hangs or dies has said so before."""

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

STAGE = "stage"
ANSWER = "answer.json"
STDERR = "stderr"


class Skipped(Exception):  # noqa: N818 - no error
    """The check makes no sense here; the message says why."""


class WrongResultError(Exception):
    """A number is not the one that is known to be right; the message has the numbers."""


@dataclass(frozen=True)
class Site:
    """The surroundings of a check in its process.

    `device` is cpu or cuda; `folder` an empty folder of its own; at `stacks_at` (`time.monotonic`) the stacks of the
    process are written to stderr, because it will be ended soon after. `spare`: share of a GPU's memory to leave free,
    None: as a training leaves it.
    """

    device: str
    folder: Path
    stacks_at: float
    spare: float | None = None

    @cached_property
    def devices(self) -> "tuple[torch.device, ...]":
        """The CPU, or every GPU that is visible; UserError with exit code 3 when there is none."""
        import torch  # noqa: PLC0415 - the check `import` comes first

        from vpoc.device import require_device  # noqa: PLC0415

        device = require_device(self.device)
        if device.type == "cpu":
            return (device,)
        return tuple(torch.device("cuda", index) for index in range(torch.cuda.device_count()))

    def at(self, stage: str) -> None:
        """Say what is done next."""
        (self.folder / STAGE).write_text(stage, encoding="utf-8")

    def stage(self) -> str:
        """Return what was said last, empty when nothing was."""
        try:
            return (self.folder / STAGE).read_text(encoding="utf-8")
        except OSError:
            return ""


@dataclass(frozen=True)
class Call:
    """The order to the process of a check, as it stands on its command line."""

    check: str
    arguments: tuple[str, ...]
    device: str
    folder: str
    stacks_at: float
    spare: float | None
    parent: int
    """Process that waits; the check ends with it."""

    def to_json(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Call":
        """From the command line."""
        document = json.loads(text)
        return cls(**{**document, "arguments": tuple(document["arguments"])})

    def site(self) -> Site:
        """Where the check runs."""
        return Site(self.device, Path(self.folder), self.stacks_at, self.spare)


@dataclass(frozen=True)
class Answer:
    """The answer of a check: an outcome of `vpoc.probes.check` and one line."""

    outcome: str
    detail: str

    def write(self, folder: Path) -> None:
        """Leave it for the process that waits, whole or not at all."""
        unfinished = folder / f"{ANSWER}.tmp"
        unfinished.write_text(json.dumps(asdict(self)), encoding="utf-8")
        unfinished.replace(folder / ANSWER)

    @classmethod
    def read(cls, folder: Path) -> "Answer | None":
        """The answer in `folder`, None when there is none."""
        try:
            return cls(**json.loads((folder / ANSWER).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
