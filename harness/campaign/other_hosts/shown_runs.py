"""Shows runs on other hosts while they go on, by the progress in their folders."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from harness.campaign.bench.display import Display, Elsewhere
from harness.campaign.bench.plan import PendingRun
from harness.evidence.files.app_files import Progress
from harness.evidence.records import Results
from harness.evidence.reported.program_progress import ProgramProgress, progress_of
from harness.evidence.reported.progress import last_lines
from harness.matrix.workloads import Workload

# So many fit on a screen, and are read over a network at each look.
MOST_SHOWN = 8


@dataclass
class _Shown:
    lane: int
    program: ProgramProgress | None
    lines: dict[int, Progress] = field(default_factory=dict)


@dataclass
class ShownRuns:
    """Runs of a results folder, each in a lane of the display from its begin to its record; of many the first."""

    results: Results
    display: Display
    total: int
    _shown: dict[str, _Shown] = field(default_factory=dict)

    def show(self, pending: PendingRun, workload: Workload, node: str, done: int) -> None:
        """Show what a run that goes on has come to; `done` runs of the campaign are done."""
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
        """Return where a run is shown that has its record, and show it no more; None where it never was."""
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
