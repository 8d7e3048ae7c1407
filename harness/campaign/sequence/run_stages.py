"""Runs a campaign in stages on a bench: the runs that its search asks for, one after the other."""

import shutil
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

from harness.base.errors import UnhealthyHostError
from harness.base.files.hashes import json_hash
from harness.base.silent_hosts import forget_silent
from harness.base.wording import size_in_words
from harness.campaign.bench.bench import StackUnavailableError
from harness.campaign.bench.gpu_locks import StillInUseError
from harness.campaign.bench.plan import PendingRun, PlannedRun
from harness.campaign.campaign import Campaign
from harness.campaign.gpus.unhealthy import HealthyGpus, recheck_unhealthy
from harness.campaign.gpus.unproven import UnprovenGpus, host_cause
from harness.campaign.helpers.background import Background
from harness.campaign.helpers.together import run_together, seconds_spent, that_may_share
from harness.campaign.planning.prepare import PreparedCampaign
from harness.campaign.planning.stage_evidence import StageEvidence
from harness.campaign.runner import Runner
from harness.environments.capabilities import GB, room_needed
from harness.evidence.files.run_files import Record
from harness.evidence.gpus.health_log import unhealthy_gpus
from harness.evidence.records import LONGEST_RUN_ID
from harness.evidence.verdicts.counting import NOT_BEGUN
from harness.matrix.cells import Cell
from harness.matrix.stacks import Stack
from harness.matrix.workloads import Workload
from harness.search.conclusion import Conclusion
from harness.search.spread import stage_runs_at_once
from harness.search.stages.conclusion import conclude_stages
from harness.search.stages.gpus import bad_gpus
from harness.search.stages.runs import StageRun
from harness.search.stages.search import StageEnd, StageSearch

# Seconds after which unhealthy GPUs are probed again, because a person or the driver may have reset them.
RECHECK_SECONDS = 1800.0
# The longest other parts of a run's id: its campaign, its number and its attempt.
_AROUND = "20261129T120000Z-0123ab-c---12345-again12"
HASH_LENGTH = 8


def run_stages(
    search: StageSearch,
    prepared: PreparedCampaign,
    campaign: Campaign,
    runner: Runner,
    may_reboot: Callable[[], bool] = lambda: False,
) -> Conclusion:
    """Run what the stages ask for until there is an answer, there can be none, or the time is over.

    Unhealthy GPUs are probed again from time to time, and before the end. If `may_reboot` returns that the host can be
    rebooted, the campaign ends as soon as a GPU is lost.

    Raises:
        UserError: when the data cannot be trained on, the results folder cannot be written, the engine is gone, or
            something in the host keeps every stack from a GPU.
        KeyboardInterrupt: after the current run was recorded as interrupted.
    """
    if finding := host_cause(prepared.matrix, prepared.bench):
        raise UnhealthyHostError(f"{finding.what}; {finding.fix or 'see `matrix doctor`'}, then run the same command")
    budget = prepared.plan.goal.budget if prepared.plan.goal else None
    spent = seconds_spent(campaign.finished_runs())
    until = None if budget is None else time.monotonic() + budget - spent
    stages = _Stages(search, prepared, campaign, runner, may_reboot)
    stages.recheck(campaign.next_repeats(list(prepared.plan.runs)), prepared.plan.workload)
    with closing(stages.background):
        while True:
            left = None if until is None else until - time.monotonic()
            decided = stages.next(left)
            if isinstance(decided, StageEnd):
                # The campaign stays open if stacks were left out, runs were not begun or GPUs are unhealthy: the same
                # command continues once that is fixed. After a spent budget nothing can be continued, so the same
                # command begins another campaign.
                lacks = stages.left_out or decided.not_begun
                if decided.why in ("good", "out-of-time") or (decided.why == "none" and not lacks):
                    campaign.end(decided.why)
                too_short = stages.least_budget(budget) if budget and decided.why == "out-of-time" else None
                screened = search.host.screened
                gpus, out = len(runner.bench.gpus), stages.left_out
                return conclude_stages(decided, gpus, out, screened, too_short, stages.put_off)
            stages.run(decided, left)


@dataclass
class _Stages:
    """Runs what a search asks for.

    Attributes:
        left_out: stacks that cannot be made, or have no room.
        put_off: those of them that may be made later, each with the time when that was last tried.
        retried: stacks that were tried again when nothing else was left to try.
        told_bad: GPUs that were reported to fail what others pass.
    """

    search: StageSearch
    prepared: PreparedCampaign
    campaign: Campaign
    runner: Runner
    may_reboot: Callable[[], bool] = lambda: False
    left_out: set[str] = field(default_factory=set)
    put_off: dict[str, float] = field(default_factory=dict)
    retried: set[str] = field(default_factory=set)
    told_bad: set[int] = field(default_factory=set)
    made: int = 0
    stacks_made: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        bench, display = self.runner.bench, self.runner.display
        self.evidence = StageEvidence(bench, self.prepared.matrix, self.campaign.id)
        self.healthy = HealthyGpus(bench, display)
        self.unproven = UnprovenGpus(bench, display, partial(host_cause, self.prepared.matrix, bench))
        self.made = len(self.campaign.finished_runs())
        self.stacks_made |= self.prepared.capabilities.made
        self.background = Background(bench, display)
        self._stage = ""
        self._last: tuple[StageRun, PendingRun] | None = None
        self._rechecked = time.monotonic()

    def next(self, left: float | None) -> StageRun | StageEnd:
        """Return the next run on healthy GPUs, of a stack that can be made, or the end of the campaign."""
        self._take_up({name for name, at in self.put_off.items() if time.monotonic() - at >= RECHECK_SECONDS})
        search, seen = self._search(), self.evidence.read()
        bad = [gpu for gpu in bad_gpus(seen) if gpu in search.host.gpus]
        if set(search.host.healthy) - set(bad):
            # Otherwise they still take runs, as there is no other GPU.
            self._tell_of_bad(bad)
        is_lost = len(search.host.healthy) < len(search.host.gpus)
        if is_lost and self.may_reboot():
            return search.end_early(seen)
        decided = search.next(seen, left)
        due = time.monotonic() - self._rechecked >= RECHECK_SECONDS
        if is_lost and (due or (isinstance(decided, StageEnd) and decided.why == "gpu-lost")) and self._recovered():
            search = self._search()
            decided = search.next(seen, left)
        # If nothing was run, no time has passed, and a source that did not answer still does not.
        at_end = isinstance(decided, StageEnd) and decided.why == "none" and self._last is not None
        if at_end and (last := self.put_off.keys() - self.retried):
            self.retried |= last
            self._take_up(last)
            decided = self._search().next(seen, left)
        if isinstance(decided, StageRun) and (following := search.to_prepare(decided, seen)):
            self._prepare(search.cells[following][0])
        return decided

    def _tell_of_bad(self, bad: Collection[int]) -> None:
        """Report GPUs that take no more runs from now on, because they fail what others pass."""
        for gpu in sorted({*bad} - self.told_bad):
            self.told_bad.add(gpu)
            self.runner.display.problem(
                f"GPU {gpu} is left out from now on: it failed what another GPU passed, too often for chance; "
                "`matrix doctor`, or swap the two"
            )

    def recheck(self, runs: Sequence[PendingRun], workload: Workload) -> None:
        """Probe unhealthy GPUs again, each in the environment of one of these runs."""
        recheck_unhealthy(runs, workload, self.runner.bench, self.runner.display)
        self._rechecked = time.monotonic()

    def _recovered(self) -> bool:
        """Return whether a GPU that was unhealthy now passes a probe in the environment of the last run."""
        if self._last is None:
            return False
        bench, (wanted, pending) = self.runner.bench, self._last
        before = set(unhealthy_gpus(bench.results, bench.host)) & set(self.search.host.gpus)
        on_each = [replace(pending, planned=replace(pending.planned, gpus=(gpu,))) for gpu in sorted(before)]
        self.recheck(on_each, wanted.workload)
        passed = before - set(unhealthy_gpus(bench.results, bench.host))
        for gpu in sorted(passed):
            self.runner.display.notice(f"GPU {gpu} takes runs again: it passes its probe")
        self.healthy.forget(passed)
        return bool(passed)

    def least_budget(self, budget: float) -> float | None:
        """Return the least budget in seconds that has room for a run, if this one has not; else None."""
        return self._search().least_budget(self.evidence.read(), budget)

    def _search(self) -> StageSearch:
        bench = self.runner.bench
        unhealthy = unhealthy_gpus(bench.results, bench.host)
        host = self.search.host
        made = {*self.background.begun, *self.stacks_made}
        setup = {name: seconds for name, seconds in host.setup_seconds.items() if name not in made}
        host = replace(host, healthy=tuple(gpu for gpu in host.gpus if gpu not in unhealthy), setup_seconds=setup)
        cells = {name: cells for name, cells in self.search.cells.items() if name not in self.left_out}
        return replace(self.search, host=host, cells=cells)

    def run(self, wanted: StageRun, left: float | None) -> None:
        """Make a run and those beside it; if its stack is not ready, only make the stack."""
        bench, display, cell = self.runner.bench, self.runner.display, wanted.cell
        if not bench.is_ready(cell, wanted.workload):
            if self.background.wait_for(cell.stack.name):
                self.stacks_made.add(cell.stack.name)
            if cell.stack.name not in self.stacks_made and (why := self._no_room(cell.stack)):
                self._leave_out(cell.stack, f"stack {cell.stack.name} is left out: {why}")
                return
            try:
                bench.make_ready(cell, wanted.workload, display)
                self.stacks_made.add(cell.stack.name)
            except StackUnavailableError as error:
                self._leave_out(error.stack, error.left_out)
                if error.passes:
                    self.put_off[error.stack.name] = time.monotonic()
            # The environment may tell more about the cell, so let the search decide again.
            return
        if (said := f"{cell.id}: {wanted.why}") != self._stage:
            self._stage = said
            display.notice(said)
        runner = replace(self.runner, workload=wanted.workload)
        together = [wanted, *wanted.beside]
        if bench.dispatcher:
            together = stage_runs_at_once(
                self._search(), self.evidence.read(), wanted, bench.dispatcher.nodes_at_work, left
            )
        pending: list[PendingRun] = []
        for one in together:
            attempt = self._attempt(one, {other.run_id for other in pending})
            pending.append(PendingRun(*attempt, self.made + len(pending) + 1))
        self.made += len(pending)
        self._last = wanted, pending[0]
        try:
            made = self._make(runner, wanted, pending, left)
        except StillInUseError:
            # There is less time left now, so let the search decide again.
            self.made -= len(pending)
            return
        self.made -= len(pending) - len(made)
        for done, record in made:
            if record.diagnosis == NOT_BEGUN:
                self.unproven.note_record(done, record)
        # Report unhealthy GPUs; no further runs are planned yet that would have to be left out.
        self.healthy.runnable(())

    def _make(
        self, runner: Runner, wanted: StageRun, pending: Sequence[PendingRun], left: float | None
    ) -> list[tuple[PendingRun, Record]]:
        # A run side by side waits for its GPU without end, so that only those begin together whose GPUs are free.
        together = pending if runner.bench.dispatcher else that_may_share(pending, runner.bench)
        if len(together) > 1:
            return run_together(runner, together, left)
        return [runner.run(pending, left, spare=self._search().spare(wanted, self.evidence.read(), left))]

    def _attempt(self, wanted: StageRun, taken: Collection[str]) -> tuple[PlannedRun, str]:
        planned = PlannedRun(wanted.cell, wanted.number, wanted.gpus, placement_of(wanted))
        further = (replace(planned, repeat=repeat) for repeat in count(wanted.number))
        elsewhere = self.runner.bench.dispatcher is not None
        attempts = ((one, self.campaign.next_attempt(one, following=elsewhere)) for one in further)
        return next((one, run_id) for one, run_id in attempts if run_id and run_id not in taken)

    def _prepare(self, cell: Cell) -> None:
        """Make the stack of a cell in the background if it has room; a lack of room is reported at its turn."""
        if self.runner.bench.is_ready(cell, self.prepared.plan.workload) or self._no_room(cell.stack):
            return
        self.background.make(cell)

    def _no_room(self, stack: Stack) -> str | None:
        able = self.prepared.capabilities
        if able.free_bytes is None:
            return None
        _, needed = room_needed([stack], able)
        free = shutil.disk_usage(able.place).free
        words = f"{able.place}: it needs {size_in_words(needed * GB)}, {size_in_words(free)} are free"
        return None if needed * GB <= free else words

    def _take_up(self, stacks: Collection[str]) -> None:
        """Let stacks that could not be made be tried again, and ask the hosts again that did not answer."""
        if stacks:
            forget_silent()
        self.left_out -= set(stacks)
        for name in stacks:
            del self.put_off[name]

    def _leave_out(self, stack: Stack, words: str) -> None:
        self.left_out.add(stack.name)
        self.runner.display.problem(words)


def placement_of(wanted: StageRun) -> str:
    """Return the part of a run's id that distinguishes runs of a cell with different options or on different GPUs.

    Where the id would be too long, a hash takes the place of some words.
    """
    options = (_value(value) for _, value in wanted.setting.options)
    words = (wanted.stage, *((wanted.setting.strategy,) if len(wanted.gpus) > 1 else ()), *options)
    said, gpus = "-".join(words), f"-gpu{'-'.join(map(str, wanted.gpus))}"
    room = LONGEST_RUN_ID - len(_AROUND) - len(wanted.cell.id) - len(gpus)
    if len(said) > room:
        told = json_hash(said)[:HASH_LENGTH]
        said = f"{said[: max(0, room - len(told) - 1)].rstrip('-')}-{told}"
    return f"-{said}{gpus}"


def _value(value: object) -> str:
    return "-".join(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)
