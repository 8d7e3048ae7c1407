"""Everything that decides one run, and the intent that follows from it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness import __version__
from harness.environments.environment import Environment
from harness.environments.executors.container import Container, Device, container_of
from harness.evidence.app_files import InputFile, Phase
from harness.evidence.leftovers import OUTPUT
from harness.evidence.outcome import COMPARED_STEPS, Request
from harness.evidence.run_files import Intent
from harness.host.facts import HostFacts
from harness.host.gpu_memory import GpuWatch
from harness.host.processes import ProcessId
from harness.matrix.cells import Cell, Workload
from harness.matrix.workload_options import (
    FEATURE_OPTIONS,
    REFERENCE_OPTIONS,
    arguments,
    device_count,
    options_of,
    train_options,
    workload_hash,
)
from harness.run.process_environment import View, base_variables, view_of, visible_devices

ENV = "/usr/bin/env"


@dataclass(frozen=True)
class Run:
    """One execution of one workload in one cell on one host. `limits` are the watchdog's; without, it learns them.

    `devices` are the nodes of `gpus`, for a container. `drill` is the fault injected on purpose, if any: `KIND@STEP` or
    `KIND@STEP/RANK` where the app injects it, a bare name where it comes from outside. It is no part of the identity of
    what is run, and such a run is no evidence.
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
    devices: tuple[Device, ...] = ()
    injected_fault: str | None = None
    name: str = "model"
    resume_from: tuple[Path, ...] | None = None

    @property
    def workload_hash(self) -> str:
        """Identity of what is run."""
        return workload_hash(self.workload, self.data.sha256, resumed=bool(self.resume_from))

    @property
    def device_count(self) -> int:
        """How many devices its strategy uses."""
        return device_count(self.workload, self.environment.device, self.gpus)

    @property
    def options(self) -> dict[str, Any]:
        """The options of the training, as plain values."""
        return train_options(self.workload, self.device_count)

    @property
    def request(self) -> Request:
        """What the evidence is compared with."""
        return Request(
            workload_hash=self.workload_hash,
            data_sha256=self.data.sha256,
            device=self.environment.device,
            # The strategy `single` uses one GPU, however many it can see.
            gpus=0 if self.environment.device == "cpu" else self.device_count,
            torch=self.cell.stack.torch,
            rocm=self.cell.stack.rocm,
            options=self.options,
            phases=self.cell.preset.phases,
            devices=self.device_count,
            max_device_memory=self.workload.max_device_memory,
            injected_fault=self.injected_fault,
        )

    def view(self, folder: Path) -> View:
        """What the app sees of the run folder and the data."""
        return view_of(folder, Path(self.data.path), contained=self.environment.image is not None)

    def container(self, folder: Path) -> Container | None:
        """What limits the container of the cell; None where it runs as a process."""
        if self.environment.image is None:
            return None
        alone = container_of(self.environment.image, folder, (Path(self.data.path),), self.host.memory_bytes)
        return replace(alone, devices=self.devices)

    def plain_container(self, folder: Path) -> Container | None:
        """The same without devices, for the model check and the reference."""
        container = self.container(folder)
        return replace(container, devices=()) if container else None

    def gpu_watch(self) -> GpuWatch | None:
        """What looks at the GPUs given to this run; None on a CPU."""
        if self.environment.device == "cpu":
            return None
        amd = {str(gpu.kfd_id) for gpu in self.host.gpus if gpu.index in self.gpus}
        return GpuWatch(amd or None)

    def intent(self, folder: Path) -> Intent:
        """What is about to be run in a run folder, by this process."""
        owner = ProcessId.mine()
        view = self.view(folder)
        container = self.container(folder)
        # In a container other GPUs have no device nodes.
        visible = {} if container else visible_devices(self.gpus)
        phases = self.cell.preset.phases
        return Intent(
            run_id=self.run_id,
            campaign=self.campaign,
            repeat=self.repeat,
            cell=self.cell.id,
            stack=self.cell.stack.name,
            preset=self.cell.preset.name,
            executor="docker" if container else "process",
            host=self.host,
            environment_hash=self.environment.hash(self.cell.preset),
            environment=self.environment.identity,
            python=self.environment.version,
            image=self.environment.image,
            container=container.plain if container else None,
            workload=self.workload.name,
            workload_hash=self.workload_hash,
            data=self.data,
            device=self.environment.device,
            gpus=self.gpus,
            torch=self.cell.stack.torch,
            rocm=self.cell.stack.rocm,
            options=self.options,
            time_limit=self.workload.time_limit,
            commands={phase: self._phase(phase, view) for phase in phases},
            variables={
                phase: {**self.plain_variables(folder), **visible, **self.cell.preset.variables_of(phase)}
                for phase in phases
            },
            harness_version=__version__,
            owner_pid=owner.pid,
            owner_started=owner.started,
            injected_fault=self.injected_fault,
            started=time.time(),
        )

    def plain_variables(self, folder: Path) -> dict[str, str]:
        """The environment without devices and preset: what the model check and the reference get."""
        return {**base_variables(self.view(folder), self.workload.threads), **self.environment.variables}

    def check_command(self, model: Path) -> tuple[str, ...]:
        """Loads the model in a fresh process."""
        return self._plain("check-model", "--json", str(model))

    def probe_command(self, *words: str) -> tuple[str, ...]:
        """Checks the devices it can see."""
        return self._plain("probe", "--device", self.environment.device, "--json", *words)

    def reference_command(self, view: View, output: Path) -> tuple[str, ...]:
        """Computes the first steps on the CPU in float32."""
        places = ("--data", str(view.data), "--output", str(output), "--workload-hash", self.workload_hash)
        options = arguments(options_of(self.workload, REFERENCE_OPTIONS))
        return self._plain("reference", *places, "--steps", str(COMPARED_STEPS), *options)

    def _plain(self, *words: str) -> tuple[str, ...]:
        """A command of the app without the preset, which in an image is baked in."""
        command = self.environment.app(*words)
        if self.environment.image is None:
            return command
        unset = (word for name in self.cell.preset.variables for word in ("--unset", name))
        return (ENV, *unset, *command)

    def _phase(self, phase: str, view: View) -> tuple[str, ...]:
        folder, data = view.folder, ("--data", str(view.data))
        features = str(folder / "features.parquet")
        if phase == "features":
            places = (*data, "--output", features, "--run-dir", str(folder))
            options = arguments(options_of(self.workload, FEATURE_OPTIONS))
            return self.environment.app("features", *places, "--device", self.environment.device, *options)
        handed_over = ("--features", features) if "features" in self.cell.preset.phases else ()
        places = (*data, *handed_over, "--output", str(folder / OUTPUT), "--name", self.name, "--run-dir", str(folder))
        known = ("--device", self.environment.device, "--workload-hash", self.workload_hash)
        injected = ("--inject-fault", self.injected_fault) if self.injected_fault and "@" in self.injected_fault else ()
        resumed = ("--resume",) if self.resume_from else ()
        return self.environment.app("train", *places, *known, *arguments(self.options), *resumed, *injected)
