"""The checks of the doctor. Each examines one subject, and yields nothing if the machine does not have it.

A function's name is the check's id; the first line of its docstring is its subject in the docs.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from harness.doctor.checks import access, docker, driver, gpus, pcie, room, slurm, system
from harness.doctor.finding import Finding
from harness.doctor.machine import Machine

Check = Callable[[Machine], Iterator[Finding]]

CHECKS: tuple[Check, ...] = (
    room.what_runs,
    system.wsl,
    driver.amdgpu,
    access.kfd,
    access.render_nodes,
    access.reset,
    gpus.gpus,
    gpus.gpu_targets,
    gpus.integrated_gpu,
    gpus.other_vendors,
    gpus.display,
    gpus.idle_memory,
    gpus.gpu_health,
    gpus.gpu_processes,
    driver.driver_window,
    driver.kernel,
    pcie.iommu,
    pcie.pcie_atomics,
    pcie.pcie_lanes,
    pcie.pcie_slot,
    pcie.rebar,
    system.glibc,
    system.shared_memory,
    system.locked_memory,
    system.checkout,
    system.written_folders,
    system.ptrace,
    system.kernel_log,
    docker.docker,
    docker.docker_users,
    docker.docker_desktop,
    docker.docker_storage,
    docker.docker_builder,
    docker.base_image,
    docker.cgroups,
    slurm.slurm_hooks,
    room.disk_space,
    room.results_space,
    room.disk_speed,
)


def check_id(check: Check) -> str:
    """Return the id of a check in findings and docs."""
    return check.__name__.replace("_", "-")


def examine(machine: Machine) -> tuple[Finding, ...]:
    """Return the findings of all checks on a machine."""
    return tuple(replace(finding, check=check_id(check)) for check in CHECKS for finding in check(machine))
