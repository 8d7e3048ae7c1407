"""Shows the progress of runs on other hosts, read from the folders of these runs."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from harness.campaign.bench.display import Display, Elsewhere
from harness.campaign.bench.plan import PendingRun
from harness.evidence.app_reports.program_progress import ProgramProgress, progress_of
from harness.evidence.app_reports.progress import last_lines
from harness.evidence.files.app_files import Progress
from harness.evidence.records import Results
from harness.matrix.workloads import Workload

# Most runs shown at once: they must fit on a screen, and their folders are read over a network at each look.
MOST_SHOWN = 8


@dataclass
class _Shown:
    lane: int
    program: ProgramProgress | None
    lines: dict[int, Progress] = field(default_factory=dict)


@dataclass
class ShownRuns:
    """Shows runs in lanes of the display, each from its start to its record; at most MOST_SHOWN at once."""

    results: Results
    display: Display
    total: int
    _shown: dict[str, _Shown] = field(default_factory=dict)

    def show(self, pending: PendingRun, workload: Workload, node: str, done: int) -> None:
        """Show the progress of a run; `done` is how many runs of the campaign are done."""
        shown = self._shown.get(pending.run_id)
        if shown is None:
            free = next((lane for lane in range(1, MOST_SHOWN + 1) if lane not in self._lanes()), None)
            if free is None:
                return
            folder = self.results.folder_of(pending.run_id)
            program = progress_of(folder, workload.program) if workload.program else None
            shown = self._shown[pending.run_id] = _Shown(free, program)
            self.display.lane(free).started(pending.planned, pending.position, self.total, Elsewhere(node, done))
        for line in self._new(pending.run_id, shown):
            self.display.lane(shown.lane).progress(line)

    def lane_of(self, run_id: str) -> Display | None:
        """Free the lane of a run that has its record, and return its display; None if the run was not shown."""
        shown = self._shown.pop(run_id, None)
        return self.display.lane(shown.lane) if shown else None

    def _lanes(self) -> set[int]:
        return {one.lane for one in self._shown.values()}

    def _new(self, run_id: str, shown: _Shown) -> Iterable[Progress]:
        if shown.program:
            return deque(shown.program.new(), maxlen=1)
        lines = last_lines(self.results.folder_of(run_id).work)
        new = [line for rank, line in sorted(lines.items()) if shown.lines.get(rank) != line]
        shown.lines = lines
        return new
