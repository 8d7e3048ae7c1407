"""Faults that the harness injects: in the settings of a run, in its folder, or while it trains."""

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import psutil

from harness.base.errors import UserError
from harness.environments.executors.container import KFD, DeviceNode
from harness.environments.executors.docker import LABEL
from harness.evidence.files.run_folder import RunFolder
from harness.faults.own_engine import SYS_ADMIN, OwnEngine, has_capabilities, why_no_own_engine
from harness.host.engine import Engine
from harness.host.processes.run_processes import processes_of_run, run_mark
from harness.run.requested_run import Run

PAUSE_SECONDS = 10.0
FULL_DISK_BYTES = 8 << 20
BROKEN = "broken"
# The error on importing torch when a ROCm wheel does not find its libraries.
NO_LIBRARY = "libamdhip64.so.6: cannot open shared object file: No such file or directory"


@dataclass(frozen=True)
class Site:
    """The place of a fault: the folder of the run, and the engine that runs its container."""

    folder: Path
    engine: Engine | None
    own_engine: OwnEngine | None


class ExternalFault:
    """A fault that the harness injects; this base class does nothing."""

    acts_while_training: ClassVar[bool] = False
    # Faults that kill the engine need one of their own: the user's engine is never touched.
    needs_own_engine: ClassVar[bool] = False

    def why_not(self) -> str | None:
        """Return why this user cannot inject the fault on this host; None if it is possible."""
        return None

    def change(self, run: Run) -> Run:
        """Return the run with the fault in its settings."""
        return run

    def before_start(self, folder: Path) -> None:
        """Inject the fault in the folder of a run, just before its process is started."""

    def while_training(self, site: Site) -> None:
        """Inject the fault; called in a thread, once the run makes steps."""

    def after(self, folder: Path) -> None:
        """Remove what was created for the fault."""


@dataclass(frozen=True)
class LittleMemory(ExternalFault):
    """A container with a limit of so many bytes of memory."""

    limit: int

    def change(self, run: Run) -> Run:
        """Return the run with that limit."""
        return replace(run, confine=lambda container: replace(container, memory_bytes=self.limit))


@dataclass(frozen=True)
class TinySharedMemory(ExternalFault):
    """A container with so many bytes of /dev/shm."""

    size: int

    def change(self, run: Run) -> Run:
        """Return the run with that size."""
        return replace(run, confine=lambda container: replace(container, shared_memory_bytes=self.size))


class MissingDevice(ExternalFault):
    """A cell that trains on a GPU on a host without one; in a container, the device node is missing."""

    def change(self, run: Run) -> Run:
        """Return the run on device `cuda`, with a device node that does not exist."""
        node = f"{KFD}-missing" if Path(KFD).exists() else KFD
        missing = DeviceNode(node, KFD, os.getgid())
        nodes = (missing,) if run.environment.image else ()
        return replace(run, environment=replace(run.environment, device="cuda"), devices=nodes)


class BrokenTorch(ExternalFault):
    """A torch that cannot be imported because a library of ROCm is missing."""

    def change(self, run: Run) -> Run:
        """Return the run with a folder of its own in front of Python's import path."""
        variables = run.environment.variables
        path = os.pathsep.join(filter(None, [BROKEN, variables.get("PYTHONPATH")]))
        return replace(run, environment=replace(run.environment, variables={**variables, "PYTHONPATH": path}))

    def before_start(self, folder: Path) -> None:
        """Put a torch that fails on import into that folder."""
        broken = Path(RunFolder(folder).work.path, BROKEN)
        broken.mkdir()
        (broken / "torch.py").write_text(f"raise ImportError({NO_LIBRARY!r})\n", encoding="utf-8")


class FullDisk(ExternalFault):
    """A small tmpfs for the files that a run writes: model and checkpoints."""

    def why_not(self) -> str | None:
        """Return why not: only root can mount, and not in every container."""
        return None if has_capabilities(SYS_ADMIN) else "only root can mount a small disk"

    def before_start(self, folder: Path) -> None:
        """Mount the tmpfs.

        Raises:
            UserError: when the mount is refused.
        """
        place = Path(RunFolder(folder).work.output)
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={FULL_DISK_BYTES}", "tmpfs", str(place)]
        mounted = subprocess.run(command, check=False, capture_output=True, text=True)
        if mounted.returncode != 0:
            raise UserError(f"a small disk cannot be mounted: {mounted.stderr.strip()}")

    def after(self, folder: Path) -> None:
        """Unmount the tmpfs, with its content."""
        place = Path(RunFolder(folder).work.output)
        if place.is_mount():
            subprocess.run(["umount", "--lazy", str(place)], check=False, capture_output=True)


class Paused(ExternalFault):
    """All processes of the run are stopped for ten seconds, as by a debugger or by suspending the machine."""

    acts_while_training = True

    def while_training(self, site: Site) -> None:
        """Stop the processes, and let them continue.

        Raises:
            UserError: when there was none to stop.
        """
        stopped = _signal(processes_of_run(site.folder), signal.SIGSTOP)
        if not stopped:
            raise UserError(f"the run in {site.folder} has no process that could be stopped")
        time.sleep(PAUSE_SECONDS)
        _signal(stopped, signal.SIGCONT)


class ContainerRemoved(ExternalFault):
    """Somebody removes the container."""

    acts_while_training = True

    def while_training(self, site: Site) -> None:
        """Remove the container."""
        if site.engine is None:
            return
        for container in site.engine.client.containers.list(filters={"label": f"{LABEL}={run_mark(site.folder)}"}):
            # Remove also the volumes that its image declares, which would stay otherwise.
            container.remove(force=True, v=True)


class EngineRestarted(ExternalFault):
    """The engine dies with everything that it runs, and is started again."""

    acts_while_training = True
    needs_own_engine = True

    def why_not(self) -> str | None:
        """Return what keeps this user from starting an engine."""
        return why_no_own_engine()

    def while_training(self, site: Site) -> None:
        """Kill the engine. It is started again for the run that follows."""
        if site.own_engine:
            site.own_engine.kill()


def _signal(processes: list[psutil.Process], number: signal.Signals) -> list[psutil.Process]:
    """Send a signal to the processes; return those that still existed."""
    signalled = []
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(number)
            signalled.append(process)
    return signalled
