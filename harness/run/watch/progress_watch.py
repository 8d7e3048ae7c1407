"""Takes note of the progress of a run while it is made."""

import time
from collections.abc import Iterator, Mapping

from harness.evidence.files.app_files import Progress
from harness.evidence.reported.accounting import Accounting
from harness.evidence.reported.exposure import ExposureWatch
from harness.evidence.reported.memory import MemoryHistory
from harness.evidence.reported.program_progress import ProgramProgress
from harness.evidence.reported.progress import ProgressReader
from harness.evidence.reported.rank_account import SeenAt
from harness.run.watch.watchdog import Watchdog

# At the end, for what was written while nobody looked: of eight ranks the lines of some hours.
MOST_LAST_LOOKS = 32


class ProgressWatch:
    """Notes the progress that a `reader` yields, as it comes; all of it goes to the `accounting`.

    `ranks`: how many the run has; of others only the accounting hears. `last`: the newest line. `exposure`
    is that of the processes which are expected to tell their progress.
    """

    def __init__(self, reader: ProgressReader | ProgramProgress, ranks: int, accounting: Accounting | None) -> None:
        self._reader = reader
        self._ranks = ranks
        self._accounting = accounting
        # When all lines that there were had been read.
        self._all_read = self._started = time.monotonic()
        self.memory = MemoryHistory()
        self.exposure = ExposureWatch()
        self.last: Progress | None = None

    @property
    def breaches(self) -> tuple[str, ...]:
        """The breaches of the contract that it shows so far."""
        return self._accounting.breaches if self._accounting else ()

    @property
    def odd_files(self) -> Mapping[str, str]:
        """The progress files that no app writes so, by name, and why."""
        replaced = dict.fromkeys(self._reader.replaced, "was replaced")
        return {**dict.fromkeys(self._reader.refused, f"is of no rank of {self._ranks}"), **replaced}

    def begin(self, now: float) -> None:
        """Take note that another process is started; times are on the monotonic clock."""
        self._started = now

    def new(self, watchdog: Watchdog | None, now: float) -> Iterator[Progress]:
        """Yield the new lines, each when note was taken of it: who takes one may end the run by it."""
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
        """Yield the same of a process that has ended, to its last line."""
        for _ in range(MOST_LAST_LOOKS):
            yield from self.new(watchdog, now)
            if not self._reader.behind:
                return
