"""Simulate eight hours of a campaign on two GPUs, with three failures of a GPU to answer, by a synthetic clock.

The campaign, the watchdog's limits, the recovery of a GPU and the health log are real. Simulated are the times of runs,
when a GPU stops answering, and how long a GPU that does not answer blocks the harness.
"""

import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from harness.base.interrupts import GRACE_SECONDS
from harness.campaign.bench.bench import Bench
from harness.campaign.bench.display import Display
from harness.campaign.bench.plan import Plan, PlannedRun
from harness.campaign.campaign import Campaign
from harness.campaign.reboot import MOST_REBOOTS
from harness.campaign.runner import Runner
from harness.campaign.sequence.run_plan import run_plan
from harness.environments.environment import Environment
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.files.app_files import InputFile
from harness.evidence.files.run_files import HealthStep, Record
from harness.evidence.gpus.health_log import append_steps, unhealthy_gpus
from harness.evidence.records import Results
from harness.host.facts import GpuFacts, HostFacts
from harness.host.gpus.gpu_reset import TOOL_SECONDS, Reset
from harness.matrix.cells import Cell, Matrix
from harness.run.gpu_probe import LIMIT_SCALE, Probed
from harness.run.gpu_recovery import Actions, Step, recover_gpu
from harness.run.requested_run import Run
from harness.run.spec import resolve_run
from harness.run.watch.limits import limits_of

Remedy = Literal["reset", "reboot", "none"]
"""How a GPU that stopped answering is recovered: the driver resets it, only a reboot helps, or nothing is allowed."""

HOURS, WEDGES = 8, 3
# A standard workload takes some minutes, and sometimes much longer.
MEDIAN_SECONDS, SPREAD = 270.0, 0.4
BOOT_SECONDS = 300.0
# In a probe, the second check is the first that uses the GPU; if the GPU blocks it, the check ends the probe.
DEVICE_CHECK_SECONDS = 180 * LIMIT_SCALE
WELL_SECONDS = 20.0
COLLECT_SECONDS = 15.0
GPUS = 2


class TimeIsUp(Exception):  # noqa: N818
    """Raised when the eight hours are over."""


@dataclass
class SimulatedBench(Bench):
    """A bench with a synthetic clock; `wedges`: the seconds at which the GPU then in use stops answering."""

    chance: random.Random = field(default_factory=random.Random)
    wedges: list[float] = field(default_factory=list)
    remedy: Remedy = "reset"
    clock: float = 0.0
    wedged: set[int] = field(default_factory=set)
    history: list[dict[Any, float]] = field(default_factory=list)
    settled: int = 0

    def environment(self, cell: Cell, _notify: Any = None) -> Environment:
        """Return an environment that takes no time to make."""
        return self._environments.setdefault(cell.stack.name, Environment(Path("/none"), {}, {}, "cuda"))

    def data_of(self, *_: object) -> InputFile:
        """Return data that nothing reads."""
        return InputFile(path="/none.csv", sha256="0" * 64)

    @contextmanager
    def gpus_for(self, *_: object) -> Iterator[int]:
        """Yield the first run in order, because no other harness uses the GPUs."""
        yield 0

    def run_cell(self, run: Run, *_: Any) -> Record:
        """Simulate a run of some minutes, unless its GPU stops answering."""
        intent = resolve_run(run, self.results.folder_of(run.run_id)).intent
        self.results.begin(intent)
        (index,) = run.gpus
        seconds = self.chance.lognormvariate(0.0, SPREAD) * MEDIAN_SECONDS
        if self.wedges and self.wedges[0] < self.clock + seconds:
            self._pass(max(0.0, self.wedges.pop(0) - self.clock))
            self.wedged.add(index)
            self._check_and_recover(self.host.gpus[index], run)
            outcome = "host-fault"
        else:
            self._pass(seconds)
            self.history.append({"step": 0.5, "first-step": 5.0})
            self.settled += 1
            outcome = "completed"
        about: dict[str, Any] = {"ran_on": "", "finished": self.clock, "seconds": seconds, "last_phase": None}
        exits: dict[str, str] = {}
        record = Record(intent=intent, outcome=outcome, diagnosis=None, detail="", exit=exits, result=None, **about)
        self.results.finish(record)
        return record

    def _check_and_recover(self, gpu: GpuFacts, run: Run) -> None:
        limits = limits_of(self.history, "cuda")
        self._pass(limits.steady_step + COLLECT_SECONDS + GRACE_SECONDS)
        actions = Actions(
            memory_in_use=lambda gpu: 8 << 30 if gpu.index in self.wedged else 0,
            probe=self._probe,
            reset=self._reset,
            now=lambda: self.clock,
            sleep=self._pass,
        )
        for step in recover_gpu(gpu, 0, actions, proven=True):
            append_steps(self.results, [self._line(step, run)])

    def _probe(self, gpu: GpuFacts) -> Probed:
        healthy = gpu.index not in self.wedged
        self._pass(WELL_SECONDS if healthy else DEVICE_CHECK_SECONDS)
        return Probed(healthy, "as it was to be")

    def _reset(self, gpu: GpuFacts) -> Reset:
        self._pass(float(TOOL_SECONDS))
        if self.remedy == "reset":
            self.wedged.discard(gpu.index)
        return Reset(self.remedy == "reset", "as it was to be")

    def _line(self, step: Step, run: Run) -> HealthStep:
        facts = {"check": step.check, "gpu": step.gpu, "good": step.good, "detail": step.detail}
        about = {"machine": self.host.machine, "boot_id": self.host.boot_id, "run_id": run.run_id, "environment": "e"}
        return HealthStep.model_validate(
            {**about, **facts, "when": "after-failure", "at": self.clock, "seconds": step.seconds}
        )

    def reboot(self) -> None:
        """Reboot the simulated host, as `matrix run --reboot-when-unhealthy` does."""
        self._pass(BOOT_SECONDS)
        self.wedged.clear()
        self.host = self.host.model_copy(update={"boot_id": f"{self.host.boot_id}+"})

    def _pass(self, seconds: float) -> None:
        self.clock += seconds
        if self.clock > HOURS * 3600:
            raise TimeIsUp


def share_settled(matrix: Matrix, host: HostFacts, remedy: Remedy, seed: int) -> float:
    """Return the share of an eight-hour plan that is settled after eight hours with three wedges.

    `host` has two GPUs. The plan consists of the runs that the same hours settle without wedges.
    """
    cells = [cell for cell in matrix.cells.values() if cell.stack.accelerator == "rocm" and not cell.excluded]
    cells = [cell for cell in cells if not cell.preset.devices]
    runs = [PlannedRun(cell, 1, (gpu,), f"-gpu{gpu}") for cell in cells for gpu in range(GPUS)]
    whole = _night(matrix, host, runs, remedy, seed, wedges=[])
    chance = random.Random(f"wedges {seed}")
    wedges = sorted(chance.uniform(0, HOURS * 3600) for _ in range(WEDGES))
    return _night(matrix, host, runs[:whole], remedy, seed, wedges) / whole


def _night(
    matrix: Matrix, host: HostFacts, runs: Sequence[PlannedRun], remedy: Remedy, seed: int, wedges: list[float]
) -> int:
    """Return the number of runs that are settled after eight hours."""
    with tempfile.TemporaryDirectory() as place:
        results = Results(Path(place))
        plan = Plan(matrix.workloads["standard"], tuple(runs), (), 0, 0, None, "", 0, None)
        bench = SimulatedBench(results, ProcessExecutor(), host, tuple(range(GPUS)), remedy=remedy)
        bench.chance, bench.wedges = random.Random(seed), wedges
        campaign = Campaign("night", results)
        try:
            for _ in range(MOST_REBOOTS + 1):
                run_plan(plan, campaign, Runner(bench, plan.workload, Display(), campaign.id, len(runs)))
                if remedy != "reboot" or campaign.done(plan) == len(runs) or not unhealthy_gpus(results, bench.host):
                    break
                bench.reboot()
        except TimeIsUp:
            pass
        return bench.settled
