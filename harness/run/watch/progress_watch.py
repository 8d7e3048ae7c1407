"""Reads the progress of a run while it runs."""

import time
from collections.abc import Iterator, Mapping

from harness.evidence.app_reports.accounting import Accounting
from harness.evidence.app_reports.exposure import ExposureWatch
from harness.evidence.app_reports.memory import MemoryHistory
from harness.evidence.app_reports.program_progress import ProgramProgress
from harness.evidence.app_reports.progress import ProgressReader
from harness.evidence.app_reports.rank_account import SeenAt
from harness.evidence.files.app_files import Progress
from harness.run.watch.watchdog import Watchdog

# Most reads at the end of a run, for lines that were not read in time: enough for some hours of eight ranks.
MOST_LAST_LOOKS = 32


class ProgressWatch:
    """Notes the progress that a `reader` yields, and passes all of it to the `accounting`.

    `ranks`: the number of ranks of the run; lines of other ranks only go to the accounting.
    `last`: the newest line.
    `exposure`: the exposure of the processes that are expected to report progress.
    """

    def __init__(self, reader: ProgressReader | ProgramProgress, ranks: int, accounting: Accounting | None) -> None:
        self._reader = reader
        self._ranks = ranks
        self._accounting = accounting
        # When every line that existed had last been read, on the monotonic clock.
        self._all_read = self._started = time.monotonic()
        self.memory = MemoryHistory()
        self.exposure = ExposureWatch()
        self.last: Progress | None = None

    @property
    def breaches(self) -> tuple[str, ...]:
        """The breaches of the contract that the progress shows so far."""
        return self._accounting.breaches if self._accounting else ()

    @property
    def odd_files(self) -> Mapping[str, str]:
        """The progress files that no app writes in this way, by name, with the reason."""
        replaced = dict.fromkeys(self._reader.replaced, "was replaced")
        return {**dict.fromkeys(self._reader.refused, f"is of no rank of {self._ranks}"), **replaced}

    def begin(self, now: float) -> None:
        """Note when another process is started, on the monotonic clock."""
        self._started = now

    def new(self, watchdog: Watchdog | None, now: float) -> Iterator[Progress]:
        """Yield each new line after it was noted; the caller may stop the run because of it."""
        began, none = time.monotonic(), True
        for line in self._reader.new():
            none = False
            if self._accounting:
                self._accounting.saw(line, SeenAt(self._all_read, time.monotonic(), self._started))
            if not 0 <= line.rank < self._ranks:
                continue
            self.last = line
            self.memory.saw(line)
            if watchdog:
                self.exposure.saw(line, now)
                watchdog.saw(line, now)
            yield line
        if none and not self._reader.behind:
            self._all_read = began

    def rest(self, watchdog: Watchdog | None, now: float) -> Iterator[Progress]:
        """Yield the remaining lines of a process that has ended."""
        for _ in range(MOST_LAST_LOOKS):
            yield from self.new(watchdog, now)
            if not self._reader.behind:
                return
