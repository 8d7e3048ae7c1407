"""How long a rank may stall: loose limits at first, then learned from earlier runs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.evidence.files.app_files import Phase, Wait
from harness.evidence.files.run_files import Intent
from harness.evidence.index import Index
from harness.evidence.records import Results

# Limits until enough runs are known, in seconds without an advance. They are loose on purpose, because cold disks and
# kernel compilation look like hangs.
LIMITS: Mapping[Phase, float] = {
    "import": 180,
    "init": 180,
    "data": 600,
    "features": 900,
    "first-step": 300,
    "step": 180,
    "validate": 300,
    "checkpoint": 300,
    "teardown": 180,
}
# Lowest limits once enough runs are known, in seconds. A disk may be slow or cold now that was not in those runs.
KNOWN_LIMITS: Mapping[Phase, float] = {
    "import": 60,
    "init": 60,
    "data": 120,
    "features": 120,
    # The cache of compiled kernels may be cold.
    "first-step": 300,
    "step": 30,
    "validate": 120,
    "checkpoint": 120,
    "teardown": 60,
}
# The same for the first step after a validation or a checkpoint, when new loader workers start.
RESUME_LIMIT, KNOWN_RESUME_LIMIT = 300.0, 120.0
# With this many completed runs, the lower floors apply.
RUNS_FOR_KNOWN_LIMITS = 5
# Most runs to learn from: the newest ones show best what this machine is like now.
MOST_RUNS = 20
# A limit is this many times the longest stall that is known.
FACTOR = 3.0
# Steps of a run until it is known how even they are.
STEADY_STEPS = 20


@dataclass(frozen=True)
class Limits:
    """Seconds without an advance after which a rank hangs.

    `phases`: the limits by phase; `resume` is that of the first step after a validation or a checkpoint.
    `steady_step`: the limit in phase `step` once the steps are steady.
    `steady_after`: the number of steps after which they are steady.
    `steady_after_validation`: whether that takes the first validation, too. The short last batch of the first epoch has
        shapes of its own, for which a GPU's kernels are compiled.
    """

    phases: Mapping[Wait, float]
    steady_step: float
    steady_after: int = 0
    steady_after_validation: bool = False

    @classmethod
    def fixed(cls, phases: Mapping[Phase, float]) -> "Limits":
        """Return limits that are the same for every step."""
        waits: dict[Wait, float] = dict(phases.items())
        return cls({**waits, "resume": phases["first-step"]}, phases["step"])


def limits_of(history: Sequence[Mapping[Wait, float]], device: Literal["cpu", "cuda"]) -> Limits:
    """Return limits that follow from `history`: the longest stalls, by phase, of completed runs of the same kind.

    Each limit is max(floor, 3 x the longest stall), in seconds; the floors are loose until five runs are known.
    """
    enough = len(history) >= RUNS_FOR_KNOWN_LIMITS
    floors: dict[Wait, float] = dict((KNOWN_LIMITS if enough else LIMITS).items())
    floors["resume"] = KNOWN_RESUME_LIMIT if enough else RESUME_LIMIT
    longest = {phase: max((run.get(phase, 0.0) for run in history), default=0.0) for phase in floors}
    return Limits(
        {phase: max(floor, FACTOR * longest[phase]) for phase, floor in floors.items()},
        max(KNOWN_LIMITS["step"], FACTOR * longest["step"]),
        steady_after=0 if enough else STEADY_STEPS,
        steady_after_validation=device == "cuda" and not enough,
    )


def known_stalls(results: Results, intent: Intent, workload_hashes: Collection[str]) -> list[Mapping[Wait, float]]:
    """Return the longest stalls, by phase, of the newest completed runs like this one.

    They have the same environment, image, kind of host, executor and workload. Of the environment an image only says
    that it is the same, and one that stalls on purpose would raise the limits of all that say so.

    `workload_hashes`: the hashes of the workload. A resumed training has a hash of its own, and its steps take as long.

    Raises:
        UserError: when index or records cannot be read.
    """
    wanted = (intent.environment_hash, intent.image, intent.host.kind, intent.executor)
    same = [
        row.run_id
        for row in Index(results).rows()
        if (row.environment_hash, row.image, row.host_kind, row.executor) == wanted
        and row.workload_hash in workload_hashes
        and row.outcome == "completed"
        and row.can_be_evidence
        # Runs of other machines do not show how long a phase takes on this one.
        and not row.imported
    ]
    records = (results.record(run_id) for run_id in same[-MOST_RUNS:])
    return [record.longest_stall for record in records if record and record.longest_stall]
