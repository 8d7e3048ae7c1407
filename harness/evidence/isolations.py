"""Answers to whether the cell, its stack, a GPU or the host is at fault: `results/isolations/ID.json`.

They change the words in status, report and explanations, but no count.
"""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, ValidationError

from harness.base.durations import day_of
from harness.base.files.json_files import File, Moment, Versioned
from harness.base.files.storage import read_regular, write_json
from harness.base.wording import listed
from harness.evidence.records import Results

FOLDER = "isolations"
# Largest answer that is read, in bytes; hundreds of counts have as many.
LARGEST = 1 << 16
ALONE = "(no other was run)"
# Others may write to a shared folder, and a name without spaces cannot pass for our own words.
Spaceless = Annotated[str, Field(pattern=r"^[\w.,=+@/<>~:-]{1,200}$")]


class ControlCount(File):
    """The number of runs of one cell on one set of GPUs, and how many of them passed."""

    cell: Spaceless
    gpus: tuple[int, ...]
    passes: int
    runs: int


class FaultIsolation(Versioned):
    """The answer of controls: new runs of a cell that failed, of its stack's `plain` and of another's, on each GPU."""

    id: str = Field(description="the campaign of its runs")
    cell: Spaceless
    stack: Spaceless
    workload: Spaceless
    machine: str
    failures: int = Field(description="of the cell, of a kind that a host can cause; they are not among `counts`")
    cause: str | None = Field(description="cell, stack, gpu, other-gpu or host; null where none is shown")
    sound: bool = Field(description="nothing is at fault: fresh runs pass")
    possible: tuple[str, ...] = Field(description="causes that are not refuted")
    not_varied: tuple[str, ...] = Field(description="what all runs share, and so cannot be told from the host")
    runs_left: int | None = Field(description="about so many more runs would tell; null where more would not")
    error: float = Field(description="the probability of a wrong cause, at most")
    counts: tuple[ControlCount, ...]
    at: Moment = Field(description="seconds since 1970")

    @property
    def runs(self) -> int:
        """The number of runs that were made."""
        return sum(count.runs for count in self.counts)

    @property
    def answered(self) -> bool:
        """Return whether the question is answered."""
        return self.sound or self.cause is not None

    @property
    def sentence(self) -> str:
        """The answer in words, with the counts on which it rests."""
        counts = ", ".join(f"{one.cell} on {_gpus(one.gpus)}: {one.passes} of {one.runs}" for one in self.counts)
        return f"{self.cell}: {self.conclusion} (runs that passed: {counts})"

    @property
    def conclusion(self) -> str:
        """The cause, in words; or that nothing is at fault, or that the cause is not known yet."""
        if self.sound:
            return self._nothing_at_fault
        if self.cause:
            return f"the controls say {self._worded(self.cause)}"
        if self.runs_left is None:
            return "not told apart: the pass rates of the controls lie between those of what works and what is at fault"
        between = " or ".join(self._worded(one) for one in self.possible)
        more = "run" if self.runs_left == 1 else "runs"
        return f"not told apart yet ({between}), about {self.runs_left} more {more} would"

    @property
    def _nothing_at_fault(self) -> str:
        # A control that fails by itself is no cause of the cell's failures.
        failing = listed(
            [
                f"{one.cell} on {_gpus(one.gpus)}"
                for one in self.counts
                if one.runs and one.cell != self.cell and 2 * one.passes <= one.runs
            ]
        )
        if failing:
            return (
                f"the controls do not find it to fail half of its runs: its failures did not come back as often; "
                f"but at most half of the runs of {failing} passed"
            )
        return "the controls find nothing that fails half of its runs: the failures did not come back as often"

    def _worded(self, cause: str) -> str:
        gpus = list(dict.fromkeys(one.gpus for one in self.counts)) or [()]
        if cause == "host":
            together = len(gpus[0]) > 1
            gpu = "its GPUs or what connects them (all runs used them together)" if together else f"its GPU {ALONE}"
            shared = {"stack": f"its stack {ALONE}", "gpu": gpu}
            return " or ".join(["the host", *(shared[one] for one in self.not_varied if one in shared)])
        words = {"cell": "the cell (its preset)", "stack": f"the stack {self.stack}"}
        return words.get(cause) or _gpus(gpus[0] if cause == "gpu" else gpus[-1])


def write_isolation(results: Results, answer: FaultIsolation) -> None:
    """Write an answer; it replaces an earlier one with the same id.

    Raises:
        UserError: when the results folder cannot be written.
    """
    write_json(results.folder / FOLDER / f"{answer.id}.json", answer.model_dump(mode="json", by_alias=True))


def read_isolations(results: Results) -> list[FaultIsolation]:
    """Return the newest answer for each cell, workload and machine, the oldest first.

    Damaged files are ignored.
    """
    found = []
    for file in (results.folder / FOLDER).glob("*.json"):
        try:
            found.append(FaultIsolation.parse(read_regular(file, LARGEST)))
        except (OSError, ValidationError):
            continue
    newest = {(one.machine, one.cell, one.workload): one for one in sorted(found, key=lambda one: one.at)}
    return list(newest.values())


def sentences(answers: Sequence[FaultIsolation]) -> list[str]:
    """Return the answers in words, with their dates."""
    return [f"{day_of(one.at)}, {one.sentence}." for one in answers]


def _gpus(gpus: Sequence[int]) -> str:
    return f"GPU {' and '.join(map(str, gpus))}" if gpus else "the CPU"
