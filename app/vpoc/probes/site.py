"""The place where a check runs, to which it reports each stage, so that the last stage is known if it hangs or dies."""

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
    """The check is not applicable here; the message says why."""


class WrongResultError(Exception):
    """A number differs from the known right one; the message has both."""


@dataclass(frozen=True)
class Site:
    """The surroundings of a check in its process.

    `device`: cpu or cuda.
    `folder`: an empty folder for this check.
    `stacks_at`: when (`time.monotonic`) the process writes its stacks to stderr, because it will be ended soon after.
    `spare`: share of a GPU's memory to leave free; None: as in a training.
    """

    device: str
    folder: Path
    stacks_at: float
    spare: float | None = None

    @cached_property
    def devices(self) -> "tuple[torch.device, ...]":
        """The CPU, or every visible GPU; UserError with exit code 3 when there is none."""
        import torch  # noqa: PLC0415 - the check `import` comes first

        from vpoc.device import require_device  # noqa: PLC0415

        device = require_device(self.device)
        if device.type == "cpu":
            return (device,)
        return tuple(torch.device("cuda", index) for index in range(torch.cuda.device_count()))

    def at(self, stage: str) -> None:
        """Report what is done next."""
        (self.folder / STAGE).write_text(stage, encoding="utf-8")

    def stage(self) -> str:
        """Return the last report; empty if there is none."""
        try:
            return (self.folder / STAGE).read_text(encoding="utf-8")
        except OSError:
            return ""


@dataclass(frozen=True)
class Call:
    """The job of a check's process, passed on its command line."""

    check: str
    arguments: tuple[str, ...]
    site: Site
    parent: int
    """Process that waits for the check; the check is killed when it ends."""

    def to_json(self) -> str:
        """Serialise the call for the command line."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> "Call":
        """Parse a call from the command line."""
        document = json.loads(text)
        site = Site(**{**document["site"], "folder": Path(document["site"]["folder"])})
        return cls(document["check"], tuple(document["arguments"]), site, document["parent"])


@dataclass(frozen=True)
class Answer:
    """The answer of a check: an outcome of `vpoc.probes.check` and one line."""

    outcome: str
    detail: str

    def write(self, folder: Path) -> None:
        """Write the answer atomically, for the process that waits."""
        unfinished = folder / f"{ANSWER}.tmp"
        unfinished.write_text(json.dumps(asdict(self)), encoding="utf-8")
        unfinished.replace(folder / ANSWER)

    @classmethod
    def read(cls, folder: Path) -> "Answer | None":
        """Return the answer in `folder`; None if there is none."""
        try:
            return cls(**json.loads((folder / ANSWER).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
