"""The types of a rehearsal's jobs and results, which its processes exchange and `--json` prints."""

from typing import Literal

from pydantic import Field

from harness.base.files.json_files import File, OneLine, Versioned
from harness.evidence.files.run_files import OutcomeName
from harness.matrix.stacks import ExecutorName, Stack

StepName = Literal["lock", "fetch", "build", "verify", "run", "record"]
TorchKind = Literal["relabelled CPU wheel", "stub"]


class RehearsalJob(File):
    """The job of one rehearsed stack. `data` stands in for bars if a stand-in replaces the app."""

    stack: Stack
    executor: ExecutorName
    python: str = Field(description="version of the interpreter that its wheels are for")
    results: str
    root: str = Field("/", description="folder that holds /sys, /proc and /dev of the host")
    data: str | None = None
    stand_in: str | None = Field(None, description="folder of the stand-in for the app; null where the app itself runs")


class StepDone(File):
    """A step that was done."""

    step: StepName
    did: OneLine
    seconds: float
    downloaded_bytes: int | None = Field(None, description="what was fetched from the index on loopback")


class ChildLine(File):
    """A line of the process that rehearses a stack: its current activity, a step that is done, or how it ended."""

    doing: OneLine | None = None
    done: StepDone | None = None
    run: str | None = None
    outcome: OutcomeName | None = None
    left_out: OneLine | None = None
    problem: OneLine | None = None


class RehearsedStep(StepDone):
    """A step with what a real host does in it, and the number of requests to the index on loopback."""

    real: str = Field(description="what a real host will do and fetch in its place")
    requests: int
    refused: int = Field(description="requests that the index answered 403, as sources do for what they do not hold")


class RehearsedStack(File):
    """A stack with the steps that were rehearsed.

    `problem`: the failure that ended the rehearsal.
    `left_out`: why this host could not rehearse the remaining steps.
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
