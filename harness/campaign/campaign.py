"""Many runs planned together: their order, and going on where an interrupted campaign stopped."""

import fcntl
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from secrets import randbelow
from statistics import median

from harness.base.errors import UserError
from harness.base.failpoints import reached
from harness.base.paths import LOCKS
from harness.base.storage import file_hash, json_hash, locked, write_json
from harness.campaign.bench import Bench, Display, gpus_needed
from harness.campaign.plan import Plan, PlannedRun
from harness.environments.environment import (
    app_hash,
)
from harness.environments.images import recipe
from harness.evidence.health_log import sick_gpus
from harness.evidence.records import Results, new_run_id
from harness.matrix.cells import Cell, Workload
from harness.matrix.workload_options import options_of
from harness.run.gpu_health import recheck
from harness.run.workload_data import read_data

LOCK = ".campaigns.lock"
SEEDS = 2**32


@dataclass(frozen=True)
class Campaign:
    """A campaign of a results folder."""

    id: str
    results: Results

    def attempts(self, planned: PlannedRun) -> Iterator[str]:
        """The ids of the attempts at a planned run: one, unless attempts were interrupted."""
        base = f"{self.id}-{planned.cell.id}{planned.placement}-{planned.repeat}"
        yield base
        attempt = 2
        while True:
            yield f"{base}-again{attempt}"
            attempt += 1

    def next_attempt(self, planned: PlannedRun) -> str | None:
        """The id for the next attempt; None when the run is done."""
        for run_id in self.attempts(planned):
            if not self.results.run_folder(run_id).exists():
                return run_id
            record = self.results.record(run_id)
            if record is not None and record.outcome != "interrupted":
                return None
        raise AssertionError("the attempts never end")

    def done(self, plan: Plan) -> int:
        """How many runs of the plan are done."""
        return sum(self.next_attempt(planned) is None for planned in plan.runs)

    @property
    def seed(self) -> int:
        """What decides the order of equals where the plan leaves it open."""
        return int(json.loads(self._file.read_bytes())["seed"])

    def end(self, why: str) -> None:
        """Write down that a campaign with a goal is over: the same command begins another one."""
        write_json(self._end, {"schema": 1, "ended": why})

    def is_over(self, plan: Plan) -> bool:
        """Whether nothing of it is left to be done."""
        return self._end.exists() if plan.goal else self.done(plan) >= len(plan.runs)

    @property
    def _file(self) -> Path:
        return _campaigns(self.results) / f"{self.id}.json"

    @property
    def _end(self) -> Path:
        return self._file.with_suffix(".ended")


@contextmanager
def begin_or_continue(plan: Plan, bench: Bench) -> Iterator[tuple[Campaign, bool]]:
    """The newest unfinished campaign of this very plan that no other process is at, or a new one.

    Yields it with True when it is continued. While it is open nobody else continues it.
    """
    reached("campaign-begins")
    key = _key(plan, bench)
    with ExitStack() as stack:
        # Until it is held nobody else may see a campaign.
        with locked(bench.results.folder / LOCK):
            campaign, continued = _hold(plan, bench.results, key, stack)
        reached("campaign-begun")
        yield campaign, continued
        reached("campaign-done")


def _campaigns(results: Results) -> Path:
    return results.folder / "campaigns"


def _hold(plan: Plan, results: Results, key: str, stack: ExitStack) -> tuple[Campaign, bool]:
    for file in sorted(_campaigns(results).glob("*.json"), reverse=True):
        campaign = Campaign(file.stem, results)
        with ExitStack() as looking:
            stream = looking.enter_context(file.open("rb"))
            if _says(stream.read(), key) and _lock(stream.fileno()) and not campaign.is_over(plan):
                stack.push(looking.pop_all())
                return campaign, True
    campaign = Campaign(new_run_id("c"), results)
    runs = [{"cell": planned.cell.id, "repeat": planned.repeat} for planned in plan.runs]
    begun = {"schema": 1, "key": key, "started": time.time(), "seed": randbelow(SEEDS), "runs": runs}
    write_json(campaign._file, begun | ({"goal": asdict(plan.goal)} if plan.goal else {}))
    _lock(stack.enter_context(campaign._file.open("rb")).fileno())
    return campaign, False


@dataclass(frozen=True)
class Turn:
    """A planned run that is still to be made, the id it will have, and its position in the plan, from 1."""

    position: int
    planned: PlannedRun
    run_id: str


def carry_out(plan: Plan, bench: Bench, campaign: Campaign, display: Display) -> None:
    """Make the runs that are still to be made, one after the other: always the first whose GPUs are free.

    Raises:
        UserError: when the data cannot be trained on, or the results folder cannot be written.
        KeyboardInterrupt: after the current run was recorded as interrupted.
    """
    turns = [
        Turn(position, planned, run_id)
        for position, planned in enumerate(plan.runs, start=1)
        if (run_id := campaign.next_attempt(planned))
    ]
    recheck_sick(turns, plan.workload, bench, display)
    sick: dict[int, str] = {}
    seconds = [] if plan.seconds_expected is None else [plan.seconds_expected / len(plan.runs)]
    while turns := on_healthy_gpus(turns, sick, bench, display):
        with bench.gpus_for([(turn.planned, turn.run_id) for turn in turns], display.step) as chosen:
            turn = turns[chosen]
            # Nobody is kept from a GPU while an environment is made.
            if bench.has_environment(turn.planned.cell):
                display.time_left(median(seconds) * len(turns) if seconds else None)
                display.started(turn.planned, turn.position, len(plan.runs))
                began = time.monotonic()
                record = bench.make(bench.run(turn.planned, turn.run_id, plan.workload, campaign.id), display)
                seconds.append(time.monotonic() - began)
                if record.outcome == "interrupted":
                    raise UserError(f"{record.detail}; the same command goes on where it stopped")
                turns.remove(turn)
                continue
        if not make_ready(turn.planned.cell, plan.workload, bench, display):
            turns = [other for other in turns if other.planned.cell.stack != turn.planned.cell.stack]


def make_ready(cell: Cell, workload: Workload, bench: Bench, display: Display) -> bool:
    """Make ready what a cell runs in, and its data; False where its stack has to be left out.

    Raises:
        UserError: when the data cannot be trained on.
    """
    try:
        display.preparing(cell.stack)
        environment = bench.environment(cell, display.step)
    except UserError as error:
        display.problem(f"stack {cell.stack.name} is left out: {error}")
        return False
    bench.data_of(workload, environment)
    return True


class _InUse(Exception):  # noqa: N818
    """A GPU is somebody's."""


def _do_not_wait(text: str) -> None:
    raise _InUse(text)


def recheck_sick(turns: list[Turn], workload: Workload, bench: Bench, display: Display) -> None:
    """Probe GPUs that were sick when they were last used, once: somebody may have reset them.

    Not those in use: what hangs on a sick GPU may hold it for ever.
    """
    for index, why in sick_gpus(bench.results, bench.host).items():
        turn = next((turn for turn in turns if index in gpus_needed(turn.planned)), None)
        if turn and make_ready(turn.planned.cell, workload, bench, display):
            display.step(f"probing GPU {index} again: {why}")
            run = bench.run(turn.planned, turn.run_id, workload)
            with suppress(_InUse), bench.gpus_for([(turn.planned, turn.run_id)], _do_not_wait):
                recheck(run, bench.results, bench.executor, bench.root)


def on_healthy_gpus(turns: list[Turn], told: dict[int, str], bench: Bench, display: Display) -> list[Turn]:
    """The turns that need no sick GPU. Tells of a GPU that became sick, once, and how many runs that costs."""
    sick = sick_gpus(bench.results, bench.host)
    for index in sick.keys() - told.keys():
        lost = sum(index in gpus_needed(turn.planned) for turn in turns)
        display.problem(f"GPU {index} takes no more runs: {sick[index]}; {lost} that need it are left out")
    left = [turn for turn in turns if not sick.keys() & set(gpus_needed(turn.planned))]
    if len(left) < len(turns) and sick.keys() >= set(bench.gpus):
        display.problem("no GPU is left to run on: mend the host (`matrix doctor`), then the same command goes on")
    told.update(sick)
    return left


def _key(plan: Plan, bench: Bench) -> str:
    """What makes two campaigns the same: continuing one must not mix evidence."""
    cells = [
        [planned.cell.stack.model_dump(), planned.cell.preset.model_dump(), planned.repeat, planned.gpus]
        for planned in plan.runs
    ]
    stacks = {planned.cell.stack.name: planned.cell.stack for planned in plan.runs}
    # The lock of a stack may be resolved by the campaign itself: only what is committed is known before.
    files = [LOCKS / f"{name}{ending}" for name in sorted(stacks) for ending in (".in", ".txt")]
    pinned = [file_hash(file) if file.is_file() else None for file in files]
    data = read_data(bench.data).sha256 if bench.data else plan.workload.synthetic.model_dump()
    interpreter = str(bench.interpreter.absolute()) if bench.interpreter else None
    what = [options_of(plan.workload), plan.workload.time_limit, data]
    executor = "docker" if bench.engine else "process"
    # What images are made by; their base and lock may be resolved by the campaign itself.
    executor += json_hash([recipe(stack) for stack in stacks.values()]) if bench.engine else ""
    # Not their order: it follows the screens that are plugged in.
    cells.sort(key=json.dumps)
    goal = asdict(plan.goal) if plan.goal else None
    return json_hash([cells, pinned, what, app_hash(), interpreter, bench.host.fingerprint, executor, goal])


def _says(content: bytes, key: str) -> bool:
    """Whether a campaign's file is sound and of this plan."""
    try:
        return bool(json.loads(content)["key"] == key)
    except (ValueError, KeyError, TypeError):
        return False


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
