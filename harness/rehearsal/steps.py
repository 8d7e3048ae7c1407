"""The order for a rehearsal and its findings, as types: they go between its processes, and to `--json`."""

from typing import Literal

from pydantic import Field

from harness.base.files.json_files import File, OneLine, Versioned
from harness.evidence.files.run_files import OutcomeName
from harness.matrix.stacks import ExecutorName, Stack

StepName = Literal["lock", "fetch", "build", "verify", "run", "record"]
TorchKind = Literal["relabelled CPU wheel", "stub"]


class RehearsalJob(File):
    """A stack to carry from lock to record. `data` stands in for bars where the app is a stand-in."""

    stack: Stack
    executor: ExecutorName
    python: str = Field(description="version of the interpreter that its wheels are for")
    results: str
    root: str = Field("/", description="folder that holds /sys, /proc and /dev of the host")
    data: str | None = None
    stand_in: str | None = Field(None, description="folder of the stand-in for the app; null where the app itself runs")


class StepDone(File):
    """A step that was done, in words."""

    step: StepName
    did: OneLine
    seconds: float
    downloaded_bytes: int | None = Field(None, description="what was fetched from the index on loopback")


class ChildLine(File):
    """A line of the process that carries a stack: what it is at, a step that is done, or how it ended."""

    doing: OneLine | None = None
    done: StepDone | None = None
    run: str | None = None
    outcome: OutcomeName | None = None
    left_out: OneLine | None = None
    problem: OneLine | None = None


class RehearsedStep(StepDone):
    """A step with what a real host does in it, and how the index on loopback was asked."""

    real: str = Field(description="what a real host will do and fetch in its place")
    requests: int
    refused: int = Field(description="requests that the index answered 403, as sources do for what they do not hold")


class RehearsedStack(File):
    """A stack that was carried as far as it went.

    `problem` says what failed; `left_out` why this host could not be asked for the rest.
    """

    stack: str
    source: str
    url: str = Field(description="where a real host takes its wheels")
    executor: ExecutorName
    torch: TorchKind
    app: str
    steps: tuple[RehearsedStep, ...]
    run: str | None = None
    outcome: OutcomeName | None = None
    left_out: OneLine | None = None
    problem: OneLine | None = None


class Rehearsal(Versioned):
    """The object that `matrix rehearse --json` prints."""

    rehearsal: Literal[True] = True
    passed: bool = Field(description="whether nothing failed; what was left out did not")
    interrupted: bool = False
    results: str
    stacks: tuple[RehearsedStack, ...]
