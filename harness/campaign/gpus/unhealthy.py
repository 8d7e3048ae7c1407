"""Unhealthy GPUs take no runs: they are probed again when a command begins, and runs that need them are left out."""

from collections.abc import Collection, Sequence
from contextlib import suppress

from harness.base.errors import UnhealthyHostError
from harness.campaign.bench.bench import Bench, StackUnavailableError, gpus_needed
from harness.campaign.bench.display import Display
from harness.campaign.bench.plan import PendingRun
from harness.campaign.other_hosts.follow import CONTINUES
from harness.evidence.gpus.health_log import unhealthy_gpus
from harness.matrix.workloads import Workload
from harness.run.gpu_health import recheck

TO_FIX = f"fix the host (`matrix doctor`), then {CONTINUES}"


class _InUse(Exception):  # noqa: N818
    """A GPU is in use."""


def _do_not_wait(text: str) -> None:
    raise _InUse(text)


def recheck_unhealthy(runs: Sequence[PendingRun], workload: Workload, bench: Bench, display: Display) -> None:
    """Probe GPUs once more that were unhealthy when they were last used, because somebody may have reset them.

    Each is probed in the environment of the first run that needs it and whose stack can be made. GPUs in use are
    skipped: a process that hangs on an unhealthy GPU may hold it for ever.

    Raises:
        UserError: when the data cannot be trained on, or the results folder cannot be written.
    """
    if bench.dispatcher:
        return
    unavailable: set[str] = set()
    for index, why in unhealthy_gpus(bench.results, bench.host).items():
        needing = (one for one in runs if index in gpus_needed(one.planned))
        pending = next((one for one in needing if _is_ready(one, workload, bench, display, unavailable)), None)
        if pending is None:
            continue
        display.step(f"probing GPU {index} again: {why}")
        run = bench.requested_run(pending.planned, pending.run_id, workload)
        with suppress(_InUse), bench.gpus_for([(pending.planned, pending.run_id)], _do_not_wait):
            recheck(run, bench.results, bench.executor, bench.root)


def _is_ready(pending: PendingRun, workload: Workload, bench: Bench, display: Display, unavailable: set[str]) -> bool:
    """Make the environment of a run; return False, and note its stack as `unavailable`, where that cannot be made."""
    if pending.cell.stack.name in unavailable:
        return False
    try:
        bench.make_ready(pending.cell, workload, display)
    except StackUnavailableError as error:
        display.problem(error.left_out)
        unavailable.add(pending.cell.stack.name)
        return False
    return True


class HealthyGpus:
    """Leaves out runs that need an unhealthy GPU, and reports each GPU that became unhealthy once."""

    def __init__(self, bench: Bench, display: Display) -> None:
        self._bench = bench
        self._display = display
        self._reported: set[int] = set()

    def forget(self, gpus: Collection[int]) -> None:
        """Report these GPUs again if they become unhealthy again."""
        self._reported -= set(gpus)

    def runnable(self, runs: Sequence[PendingRun]) -> list[PendingRun]:
        """Return the runs that need no unhealthy GPU."""
        unhealthy = unhealthy_gpus(self._bench.results, self._bench.host)
        for index in unhealthy.keys() - self._reported:
            lost = sum(index in gpus_needed(one.planned) for one in runs)
            left_out = f"; {lost} that need it are left out" if lost else ""
            self._display.problem(f"GPU {index} takes no more runs: {unhealthy[index]}{left_out}")
        left = [one for one in runs if not unhealthy.keys() & set(gpus_needed(one.planned))]
        if len(left) < len(runs) and unhealthy.keys() >= set(self._bench.gpus):
            self._display.problem(f"no GPU is left to run on: {TO_FIX}")
        self._reported |= unhealthy.keys()
        return left


def refuse_unhealthy(pending: PendingRun, bench: Bench) -> None:
    """Refuse a run on an unhealthy GPU.

    Raises:
        UserError: naming the GPU, and why it is unhealthy.
    """
    for gpu, why in unhealthy_gpus(bench.results, bench.host).items():
        if gpu in gpus_needed(pending.planned):
            raise UnhealthyHostError(f"GPU {gpu} takes no more runs: {why}; {TO_FIX}")
