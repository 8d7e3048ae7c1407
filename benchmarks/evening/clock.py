"""The clock of a simulated evening: how long downloads and runs take, and which records they leave."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.evening.worlds import World, the_matrix
from benchmarks.verdicts import BAD, ROW
from harness.campaign.planning.prepare import setup_seconds_of
from harness.evidence.files.run_files import HealthStep
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import count_runs
from harness.matrix.workload_options import family
from harness.search.stages.runs import SeenRun, SeenRuns, StageRun

HOUR, MINUTE = 3600.0, 60.0
BESIDE_TRAINING = 80.0
TRAINING = {"quick": 15.0, "standard": 75.0, "endurance": 75 * MINUTE, "immediate": 90.0, "full": 900.0}
USUAL_TRAINING = 900.0
# Limits in seconds for the VPOC phase, the first step and a later stall, on a GPU about which little is known yet.
FEATURES_LIMIT, FIRST_STEP_LIMIT, STEP_LIMIT = 900.0, 300.0, 180.0
CRASH_SHARE = 0.4
RESET_SECONDS = 120.0


@dataclass
class Clock:
    """A simulated evening: the time, the runs so far, and the stacks that were downloaded."""

    world: World
    chance: random.Random
    now: float = 0.0
    gigabytes: float = 0.0
    rows: list[Row] = field(default_factory=list)
    phases: dict[str, str] = field(default_factory=dict)
    steps: list[HealthStep] = field(default_factory=list)
    made: set[str] = field(default_factory=set)
    ready_at: dict[str, float] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)

    def run(self, run: StageRun) -> bool:
        """Simulate a run and the runs beside it; return whether any of them passed."""
        self.set_up(run.cell.stack.name)
        began, ends = self.now, []
        passed, ids = False, [f"r{len(self.rows) + place:04}" for place in range(1 + len(run.beside))]
        for one, run_id in zip((run, *run.beside), ids, strict=True):
            self.now = began
            passed = self._one(one, run_id, [other for other in ids if other != run_id]) or passed
            ends.append(self.now)
        self.now = max(ends)
        return passed

    def _one(self, run: StageRun, run_id: str, beside: Sequence[str]) -> bool:
        behaviour, started = self.world.acts(run), self.now
        hours = TRAINING.get(run.workload.name, USUAL_TRAINING) / HOUR
        through = behaviour.features == 1 or self.chance.random() < behaviour.features
        begins = self.chance.random() < behaviour.starts and through
        fails_after = behaviour.sound_hours + self.chance.expovariate(1 / behaviour.mtbf)
        lasted = min(fails_after, hours) if begins else 0.0
        passed = begins and fails_after >= hours
        crashed = self.chance.random() < CRASH_SHARE
        limit = STEP_LIMIT if begins else FIRST_STEP_LIMIT if through else FEATURES_LIMIT
        found = 0.0 if passed or crashed else limit
        self.now += BESIDE_TRAINING + lasted * HOUR + found
        poisoned = self.chance.random() < behaviour.leaves_gpu_unhealthy
        if poisoned or not (passed or crashed):
            if self.world.may_reset:
                self.now += RESET_SECONDS
            else:
                self.lost.update(run.gpus)
        self._record(run, run_id, started, lasted, begins=begins, passed=passed, crashed=crashed)
        self.phases[run_id] = "teardown" if passed else "step" if begins else "first-step" if through else "features"
        self.rows[-1] = self.rows[-1]._replace(beside=json.dumps(beside))
        if poisoned:
            self.steps.append(BAD.model_copy(update={"run_id": run_id, "gpu": run.gpus[0], "at": self.now}))
        return passed

    def seen(self) -> SeenRuns:
        """Return what the records say about the runs so far."""
        counts = count_runs(self.rows, self.steps)
        return SeenRuns.of(
            SeenRun(row, counts[row.run_id], tuple(json.loads(row.gpus)), self.phases[row.run_id]) for row in self.rows
        )

    def set_up(self, stack: str) -> None:
        """Download and build a stack if that has not begun yet, and wait until the stack is ready."""
        self.prepare(stack)
        self.now = max(self.now, self.ready_at[stack])

    def prepare(self, stack: str) -> None:
        """Begin to download and build a stack while runs go on."""
        if stack not in self.ready_at:
            self.made.add(stack)
            self.gigabytes += the_matrix().stacks[stack].budget.download
            # Stacks are downloaded and built one at a time.
            self.ready_at[stack] = max(self.now, *self.ready_at.values(), 0.0) + setup_seconds_of(
                the_matrix().stacks[stack]
            )

    def _record(
        self, run: StageRun, run_id: str, started: float, lasted: float, *, begins: bool, passed: bool, crashed: bool
    ) -> None:
        outcome = "completed" if passed else "failed" if crashed else "hung"
        self.rows.append(
            ROW._replace(
                run_id=run_id,
                cell=run.cell.id,
                stack=run.cell.stack.name,
                preset=run.cell.preset.name,
                workload=run.workload.name,
                family=family(run.workload, len(run.gpus)),
                outcome=outcome,
                diagnosis=None if passed else "crash" if crashed else "no-progress",
                gpus=json.dumps(sorted(run.gpus)),
                started=started,
                finished=self.now,
                first_step=begins,
                exposure_seconds=lasted * HOUR,
            )
        )
