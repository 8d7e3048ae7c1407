"""One run, as it is requested."""

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
    """One execution of one workload in one cell on one host, as it is requested.

    Attributes:
        devices: The device nodes of `gpus`, for a container.
        limits: The watchdog's limits; None where it learns them from earlier runs.
        injected_fault: The fault that is injected on purpose, if any: `KIND@STEP` or `KIND@STEP/RANK` where the app
            injects it, a bare name where it comes from outside. It is not part of the identity of the workload, and
            such a run is no evidence.
        confine: Further limits the container.
        verifier: The environment in which this host verifies the run.
        beside: The ids of the runs that start together with it on other GPUs, and share the host's memory with it.
        packages: The folder with the packages of a program of the user's own.
        taken_over: What such a program resumes from.
        scheduled: The job of a scheduler in which the run is made, if any.
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
        """Why this host verifies nothing of the run; None where it does."""
        return self.verifier.why_not(self.environment)

    @property
    def workload_hash(self) -> str:
        """The identity of the workload, which is another one where the run resumes."""
        resumed = bool(self.resume_from or (self.taken_over and self.taken_over.checkpoint))
        return workload_hash(self.workload, self.data.sha256, resumed=resumed)

    @property
    def device_count(self) -> int:
        """The number of devices that the run's strategy uses."""
        return device_count(self.workload, self.environment.device, self.gpus)
