"""The interface of displays that show runs to the user while they are prepared and run."""

from dataclasses import dataclass

from harness.campaign.bench.plan import PlannedRun
from harness.evidence.files.app_files import Progress
from harness.evidence.files.run_files import Record
from harness.matrix.stacks import Stack
from harness.run.watch.watchdog import RankStall


@dataclass(frozen=True)
class Elsewhere:
    """The host that a run is on, where it is not this one.

    `done` is the number of runs of the campaign that are done by then. The run's position does not tell that number,
    because runs on other hosts end in any order.
    """

    host: str | None
    done: int


class Display:
    """A display that receives the events of a campaign and shows nothing."""

    def preparing(self, stack: Stack) -> None:
        """An environment is being made ready."""

    def step(self, text: str) -> None:
        """A step begins that takes a while before a run can begin."""

    def short_step(self, text: str) -> None:
        """A step begins that takes some seconds: shown on a terminal, but not written to a log."""

    def started(self, planned: PlannedRun, position: int, total: int, elsewhere: Elsewhere | None = None) -> None:
        """A run begins; `total` is 0 if it is unknown how many runs there will be."""

    def progress(self, line: Progress) -> None:
        """The current run advanced."""

    def stalled(self, standing: RankStall) -> None:
        """No rank of the current run advances; `standing` describes the rank that advanced last."""

    def time_left(self, seconds: float | None) -> None:
        """The campaign is expected to take so many more seconds; None if that is unknown."""

    def finished(self, record: Record) -> None:
        """A run has its record."""

    def notice(self, text: str) -> None:
        """Something is worth a line and no problem, such as which cell has its turn and why."""

    def problem(self, text: str) -> None:
        """Something kept cells from being run, or the index from being written."""

    def agrees(self, _question: str) -> bool:
        """Ask a question of the user who pressed Ctrl-C; return False if nobody watches or answers."""
        return False

    def lane(self, _number: int) -> "Display":
        """Return the display of one of several runs side by side, by its number from 0."""
        return self
