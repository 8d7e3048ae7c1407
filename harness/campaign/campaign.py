"""Campaigns of a results folder: begun once, held by one process at a time, continued after an interruption."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from secrets import randbelow

from harness.base.files.failpoints import reached
from harness.base.files.hashes import file_hash, json_hash
from harness.base.files.locks import SHORT_LOCK_SECONDS, locked
from harness.base.files.shared_locks import lock_at_once
from harness.base.files.storage import LARGEST_READ, open_regular, read_regular, write_json
from harness.base.paths import LOCKS
from harness.campaign.bench.bench import Bench
from harness.campaign.bench.plan import PendingRun, Plan, PlannedRun
from harness.campaign.campaign_file import parse_campaign
from harness.environments.docker.images import recipe
from harness.environments.environment import app_source_hash
from harness.evidence.index import Index
from harness.evidence.records import Results, attempt_ids, new_run_id
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import NOT_BEGUN
from harness.matrix.workload_options import options_of
from harness.run.workload_data import read_data

CAMPAIGNS_LOCK = ".campaigns.lock"
SEEDS = 2**32


@dataclass(frozen=True)
class Campaign:
    """A campaign of a results folder. `beside`: a campaign of the same runs that was open when this one began."""

    id: str
    results: Results
    beside: str | None = None

    def next_attempt(self, planned: PlannedRun, *, following: bool = False) -> str | None:
        """Return the id for the next attempt at a run; None when the run is done.

        With `following`, an attempt without a record is under way on another host: its id is returned, to be followed.
        """
        for run_id in attempt_ids(f"{self.id}-{planned.cell.id}{planned.placement}-{planned.repeat}"):
            if not self.results.run_folder(run_id).exists():
                return run_id
            record = self.results.record(run_id)
            if record is None and following:
                return run_id
            if record is not None and record.outcome != "interrupted" and record.diagnosis != NOT_BEGUN:
                return None
        raise AssertionError("the attempts never end")

    def done(self, plan: Plan) -> int:
        """Return how many runs of the plan are done."""
        return sum(self.next_attempt(planned) is None for planned in plan.runs)

    def pending(self, plan: Plan, *, following: bool = False) -> list[PendingRun]:
        """Return the runs of the plan that are not done, in order; `following` as in `next_attempt`."""
        return [
            PendingRun(planned, run_id, position)
            for position, planned in enumerate(plan.runs, start=1)
            if (run_id := self.next_attempt(planned, following=following))
        ]

    def next_attempts(self, pending: PendingRun) -> list[PendingRun]:
        """Return the next attempt at a run that was not begun; an empty list if the run is done."""
        run_id = self.next_attempt(pending.planned)
        return [replace(pending, run_id=run_id)] if run_id else []

    def next_repeats(self, placements: list[PlannedRun]) -> list[PendingRun]:
        """Return the next run of each placement, starting with the placement that has the fewest runs so far."""
        pending = [next(self.repeats_of(planned)) for planned in placements]
        return sorted(pending, key=lambda one: one.planned.repeat)

    def repeats_of(self, planned: PlannedRun, *, following: bool = False) -> Iterator[PendingRun]:
        """Yield the runs of a placement that are still to be done, without end; `following` as in `next_attempt`."""
        for repeat in count(planned.repeat):
            one = replace(planned, repeat=repeat)
            if run_id := self.next_attempt(one, following=following):
                yield PendingRun(one, run_id)

    def finished_runs(self) -> list[Row]:
        """Return the runs that are done, without the attempts that were interrupted or not begun."""
        rows = [row for row in Index(self.results).rows() if row.campaign == self.id]
        return [row for row in rows if row.outcome != "interrupted" and row.diagnosis != NOT_BEGUN]

    @property
    def seed(self) -> int:
        """The random seed for the order of runs that the plan ranks as equal."""
        return int(parse_campaign(read_regular(self._file))["seed"])

    def end(self, why: str) -> None:
        """Record that a campaign with a goal, or with controls, is over: the same command begins another one."""
        write_json(self._end, {"schema": 2, "ended": why})

    def begin_controls(self) -> None:
        """Record that the runs are done and the controls begin: until `end`, the same command continues them."""
        write_json(self._controls, {"schema": 2})

    def is_over(self, plan: Plan) -> bool:
        """Return whether nothing of this campaign is left to do."""
        if plan.goal or self._controls.exists():
            return self._end.exists()
        return self.done(plan) >= len(plan.runs)

    @property
    def _file(self) -> Path:
        return _campaigns(self.results) / f"{self.id}.json"

    @property
    def _end(self) -> Path:
        return self._file.with_suffix(".ended")

    @property
    def _controls(self) -> Path:
        return self._file.with_suffix(".controls")


@contextmanager
def begin_or_continue(plan: Plan, bench: Bench) -> Iterator[tuple[Campaign, bool]]:
    """Open the newest unfinished campaign of exactly this plan that no other process has open, or a new one.

    Yields the campaign, and whether it is continued. While it is open, no other process can continue it.
    """
    reached("campaign-begins")
    key = _key(plan, bench)
    with ExitStack() as stack:
        # No other process may look at the campaigns until this one is locked.
        with locked(bench.results.folder / CAMPAIGNS_LOCK, seconds=SHORT_LOCK_SECONDS):
            campaign, continued = _hold(plan, bench.results, key, stack)
        reached("campaign-begun")
        yield campaign, continued
        reached("campaign-done")


def _campaigns(results: Results) -> Path:
    return results.folder / "campaigns"


def _hold(plan: Plan, results: Results, key: str, stack: ExitStack) -> tuple[Campaign, bool]:
    beside = None
    for file in sorted(_campaigns(results).glob("*.json"), reverse=True):
        campaign = Campaign(file.stem, results)
        with ExitStack() as looking:
            try:
                stream = looking.enter_context(open_regular(file))
            except OSError:
                # Any user who shares the folder may have put anything there.
                continue
            if not _is_of(stream.read(LARGEST_READ), key):
                continue
            if not lock_at_once(stream.fileno(), file):
                beside = campaign.id
            elif not campaign.is_over(plan):
                stack.push(looking.pop_all())
                return campaign, True
    campaign = Campaign(new_run_id("c"), results, beside)
    runs = [{"cell": planned.cell.id, "repeat": planned.repeat} for planned in plan.runs]
    begun = {"schema": 2, "key": key, "started": time.time(), "seed": randbelow(SEEDS), "runs": runs}
    write_json(campaign._file, begun | ({"goal": asdict(plan.goal)} if plan.goal else {}))
    lock_at_once(stack.enter_context(open_regular(campaign._file)).fileno(), campaign._file)
    return campaign, False


def _key(plan: Plan, bench: Bench) -> str:
    """Return a hash that is equal for two campaigns of the same runs: continuing one must not mix evidence."""
    cells = [
        [
            planned.cell.stack.model_dump(exclude={"mirror", "pypi"}),
            planned.cell.preset.model_dump(),
            planned.repeat,
            planned.gpus,
        ]
        for planned in plan.runs
    ]
    stacks = {planned.cell.stack.name: planned.cell.stack for planned in plan.runs}
    # Hash committed files only, because the campaign itself may resolve the lock of a stack.
    files = [LOCKS / f"{name}{ending}" for name in sorted(stacks) for ending in (".in", ".txt")]
    pinned = [file_hash(file) if file.is_file() else None for file in files]
    data = read_data(bench.data).sha256 if bench.data else plan.workload.synthetic.model_dump()
    interpreter = str(bench.interpreter.absolute()) if bench.interpreter else None
    what = [options_of(plan.workload), plan.workload.time_limit, data]
    # Hash the recipes of images only, because the campaign itself may resolve their base and lock.
    recipes = json_hash([recipe(stack) for stack in stacks.values()]) if bench.engine else ""
    # Ignore the order of the cells: it depends on which GPUs drive a screen.
    cells.sort(key=json.dumps)
    goal = asdict(plan.goal) if plan.goal else None
    # With a scheduler, any hosts of the same kind will do.
    host = f"{bench.dispatcher.host.kind} by a scheduler" if bench.dispatcher else bench.host.fingerprint
    # The compiler of the app's kernel is left out, because the campaign itself fetches or refuses it.
    made_by = [app_source_hash(), interpreter, host, bench.executor_name + recipes]
    return json_hash([cells, pinned, what, *made_by, goal])


def _is_of(content: bytes, key: str) -> bool:
    """Return whether the content of a campaign's file is valid and belongs to the plan with this key."""
    try:
        return bool(parse_campaign(content)["key"] == key)
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
