"""One run, as it is asked for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath

from harness.environments.environment import Environment
from harness.environments.executors.container import Container, DeviceNode
from harness.environments.verifier import NO_VERIFIER, Verifier
from harness.evidence.files.app_files import InputFile, Phase
from harness.evidence.files.program_files import TakenOver
from harness.evidence.files.run_files import Scheduled
from harness.host.facts import HostFacts
from harness.matrix.cells import Cell
from harness.matrix.workload_options import device_count, workload_hash
from harness.matrix.workloads import Workload


@dataclass(frozen=True)
class Run:
    """One execution of one workload in one cell on one host, as it is asked for.

    `devices` are the nodes of `gpus`, for a container; `confine` may limit that otherwise. `limits` are the watchdog's;
    without, it learns them. `injected_fault` is the fault injected on purpose, if any: `KIND@STEP` or `KIND@STEP/RANK`
    where the app injects it, a bare name where it comes from outside. It is no part of the identity of what is run, and
    such a run is no evidence. `verifier`: what this host verifies runs in. `beside`: the runs that are begun together
    with it on other GPUs, and share the memory of the host with it. `packages`: the folder with those of a program of
    the user's own, and `taken_over` what it works on from. `scheduled`: the job of a scheduler that it is made in.
    """

    run_id: str
    cell: Cell
    workload: Workload
    data: InputFile
    environment: Environment
    host: HostFacts
    gpus: tuple[int, ...] = ()
    campaign: str | None = None
    repeat: int = 1
    limits: Mapping[Phase, float] | None = None
    devices: tuple[DeviceNode, ...] = ()
    injected_fault: str | None = None
    name: str = "model"
    resume_from: tuple[PurePath, ...] | None = None
    confine: Callable[[Container], Container] = lambda container: container
    verifier: Verifier = NO_VERIFIER
    beside: tuple[str, ...] = ()
    packages: Path | None = None
    taken_over: TakenOver | None = None
    scheduled: Scheduled | None = None

    @property
    def not_verified(self) -> str | None:
        """Why nothing of this host's verifies it; None where something does."""
        return self.verifier.why_not(self.environment)

    @property
    def workload_hash(self) -> str:
        """Identity of what is run."""
        resumed = bool(self.resume_from or (self.taken_over and self.taken_over.checkpoint))
        return workload_hash(self.workload, self.data.sha256, resumed=resumed)

    @property
    def device_count(self) -> int:
        """The number of devices that its strategy uses."""
        return device_count(self.workload, self.environment.device, self.gpus)
