"""The interface of what shows runs to a person while they are made ready and run."""

from dataclasses import dataclass

from harness.campaign.bench.plan import PlannedRun
from harness.evidence.files.app_files import Progress
from harness.evidence.files.run_files import Record
from harness.matrix.stacks import Stack
from harness.run.watch.watchdog import RankStall


@dataclass(frozen=True)
class Elsewhere:
    """The host that a run is on, where it is not this one; `done` runs of the campaign are done by then.

    They end in any order, which a run's position does not say.
    """

    host: str | None
    done: int


class Display:
    """Takes the events of a campaign, and shows nothing."""

    def preparing(self, stack: Stack) -> None:
        """An environment is being made ready."""

    def step(self, text: str) -> None:
        """Something takes its time before a run can begin."""

    def moment(self, text: str) -> None:
        """Something takes some seconds: shown where somebody watches, and no line of a log."""

    def started(self, planned: PlannedRun, position: int, total: int, elsewhere: Elsewhere | None = None) -> None:
        """A run begins; `total` is 0 where nobody knows how many there will be."""

    def progress(self, line: Progress) -> None:
        """The current run advanced."""

    def still(self, standing: RankStall) -> None:
        """No rank of the current run advances; of the one that advanced last."""

    def time_left(self, seconds: float | None) -> None:
        """The seconds that the campaign still takes; None where that is not known."""

    def finished(self, record: Record) -> None:
        """A run has its record."""

    def problem(self, text: str) -> None:
        """Something kept cells from being run, or the index from being written."""

    def agrees(self, _question: str) -> bool:
        """Ask the person who pressed Ctrl-C; False where nobody watches, or does not answer."""
        return False

    def lane(self, _number: int) -> "Display":
        """Return what takes the events of one of several runs side by side, by its number from 0."""
        return self
