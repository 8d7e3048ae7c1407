"""Everything that decides one run, and the intent that follows from it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness import __version__
from harness.contracts import HostFacts, InputFile, Intent, Phase
from harness.environments import Environment
from harness.evidence import OUTPUT
from harness.host.gpu_memory import GpuWatch
from harness.job_environment import base_variables, visible_devices
from harness.matrix import Cell, Workload
from harness.outcome import COMPARED_STEPS, Request
from harness.processes import ProcessId
from harness.watchdog import LIMITS
from harness.workloads import FEATURE_OPTIONS, arguments, options_of, workload_hash


@dataclass(frozen=True)
class Run:
    """One execution of one workload in one cell on one host. `limits` are the watchdog's."""

    run_id: str
    cell: Cell
    workload: Workload
    data: InputFile
    environment: Environment
    host: HostFacts
    gpus: tuple[int, ...] = ()
    campaign: str | None = None
    repeat: int = 1
    limits: Mapping[Phase, float] = field(default_factory=lambda: LIMITS)

    @property
    def workload_hash(self) -> str:
        """Identity of what is run."""
        return workload_hash(self.workload, self.data.sha256)

    @property
    def request(self) -> Request:
        """What the evidence is held against."""
        return Request(
            workload_hash=self.workload_hash,
            data_sha256=self.data.sha256,
            device=self.environment.device,
            # The strategy `single` uses one GPU, however many it can see.
            gpus=0 if self.environment.device == "cpu" else 1,
            torch=self.cell.stack.torch,
            rocm=self.cell.stack.rocm,
            options=options_of(self.workload),
            phases=self.cell.preset.phases,
        )

    def gpu_watch(self) -> GpuWatch | None:
        """What looks at the GPUs given to this run; None on a CPU."""
        if self.environment.device == "cpu":
            return None
        amd = {str(gpu.kfd_id) for gpu in self.host.gpus if gpu.index in self.gpus}
        return GpuWatch(amd or None)

    def intent(self, folder: Path) -> Intent:
        """What is about to be run in a run folder, by this process."""
        owner = ProcessId.mine()
        phases = self.cell.preset.phases
        return Intent(
            run_id=self.run_id,
            campaign=self.campaign,
            repeat=self.repeat,
            cell=self.cell.id,
            stack=self.cell.stack.name,
            preset=self.cell.preset.name,
            executor="process",
            host=self.host,
            environment_hash=self.environment.hash(self.cell.preset),
            environment=self.environment.identity,
            workload=self.workload.name,
            workload_hash=self.workload_hash,
            data=self.data,
            device=self.environment.device,
            gpus=self.gpus,
            torch=self.cell.stack.torch,
            rocm=self.cell.stack.rocm,
            options=options_of(self.workload),
            time_limit=self.workload.time_limit,
            commands={phase: self._phase(phase, folder) for phase in phases},
            variables={
                phase: {
                    **self.plain_variables(folder),
                    **visible_devices(self.gpus),
                    **self.cell.preset.variables_of(phase),
                }
                for phase in phases
            },
            harness_version=__version__,
            owner_pid=owner.pid,
            owner_started=owner.started,
            started=time.time(),
        )

    def plain_variables(self, folder: Path) -> dict[str, str]:
        """The environment without devices and preset: what the model check and the reference get."""
        return {**base_variables(folder, self.workload.threads), **self.environment.variables}

    def check_command(self, model: Path) -> tuple[str, ...]:
        """Loads the model in a fresh process."""
        return self._app("check-model", "--json", str(model))

    def reference_command(self, output: Path) -> tuple[str, ...]:
        """Computes the first steps on the CPU in float32."""
        places = ("--data", self.data.path, "--output", str(output), "--workload-hash", self.workload_hash)
        return self._app("reference", *places, "--steps", str(COMPARED_STEPS), *arguments(options_of(self.workload)))

    def _phase(self, phase: str, folder: Path) -> tuple[str, ...]:
        features = str(folder / "features.parquet")
        if phase == "features":
            places = ("--data", self.data.path, "--output", features, "--run-dir", str(folder))
            return self._app("features", *places, *arguments(options_of(self.workload, FEATURE_OPTIONS)))
        handed_over = ("--features", features) if "features" in self.cell.preset.phases else ()
        places = ("--output", str(folder / OUTPUT), "--name", "model", "--run-dir", str(folder))
        known = ("--device", self.environment.device, "--workload-hash", self.workload_hash)
        options = arguments(options_of(self.workload))
        return self._app("train", "--data", self.data.path, *handed_over, *places, *known, *options)

    def _app(self, *words: str) -> tuple[str, ...]:
        return (str(self.environment.python), "-m", "vpoc", *words)
