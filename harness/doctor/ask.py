"""Facts that need the live machine: the Docker engine, the needs of the default selection, the speed of the disk."""

import os
import stat
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from harness.base.errors import UserError
from harness.base.files.storage import ROOT, read_regular
from harness.base.paths import APP, APPS, BUILDS, CACHE, CHECKOUT, DATA, ENVIRONMENTS, WHEELS
from harness.base.time_limits import BackgroundCall
from harness.doctor.disk_order import disk_order
from harness.doctor.machine import BaseImage, Docker, Machine, Room, SlurmHook
from harness.environments.capabilities import GB, Capabilities, capabilities_of, stack_by_stack, why_not, with_kfd
from harness.environments.docker.images import base_reference, find
from harness.environments.verifier import verifying_stack
from harness.host.engine import Engine, reach_engine
from harness.host.engine_errors import ENGINE_ERRORS, explain
from harness.host.slurm import hooks_of_nodes
from harness.host.slurm import is_installed as slurm_is_installed
from harness.matrix.cells import Cell, Matrix
from harness.matrix.stacks import Stack

EXECUTOR = "MATRIX_EXECUTOR"
# Longest wait for a registry, in seconds: with a slower one, builds fail now and then.
REGISTRY_SECONDS = 10.0
WRITTEN_BYTES = 32 << 20
MB = 10**6
WRITTEN_FOLDERS = (CACHE, ENVIRONMENTS, APPS, DATA, WHEELS, BUILDS)
FOLDERS_OF_CODE = (CHECKOUT / "harness", APP, Path(sys.prefix), ENVIRONMENTS, APPS, WHEELS)


def ask(machine: Machine, matrix: Matrix) -> Machine:
    """Return the machine with the facts of its engine and the needs of the default selection. Writes 32 MiB briefly."""
    docker, engine = ask_docker()
    cells = matrix.select("default")
    verifying = verifying_stack(matrix)
    capabilities = capabilities_of(machine.host, engine, cells, None, verifying)
    if engine:
        needed = (cell.stack for cell in cells if cell.stack.name not in capabilities.made and not cell.excluded)
        docker = replace(docker, bases=ask_bases(engine, needed))
    capabilities = with_kfd(capabilities, there=machine.kfd is not None)
    room = measure_room(machine, matrix, cells, capabilities, verifying)
    code = [CHECKOUT, *(one for folder in FOLDERS_OF_CODE for one in (folder, *folder.glob("*/")))]
    changeable = tuple(str(folder) for folder in code if others_may_change(folder))
    return replace(
        machine,
        docker=docker,
        room=room,
        slurm_hooks=ask_slurm(),
        changeable_by_others=changeable,
        unwritable=unwritable(WRITTEN_FOLDERS),
    )


def unwritable(folders: Iterable[Path]) -> tuple[str, ...]:
    """Return those of the folders that this user may not write to; of one that is not there, its nearest parent.

    Those in another one of them are left out.
    """
    # Unlike `Path.exists`, `os.path.exists` takes a folder that this user may not even look into.
    there = (next(one for one in (folder, *folder.parents) if os.path.exists(one)) for folder in folders)  # noqa: PTH110
    found = dict.fromkeys(one for one in there if not os.access(one, os.W_OK | os.X_OK))
    return tuple(str(one) for one in found if not found.keys() & set(one.parents))


def others_may_change(folder: Path) -> bool:
    """Return whether a user may write to a folder who is not this one, root or the owner of this checkout."""
    try:
        status = folder.stat()
    except OSError:
        return False
    others = stat.S_IWOTH
    with suppress(KeyError):
        # A group of the owner's name is the owner's alone.
        others |= 0 if folder.group() in ("root", folder.owner()) else stat.S_IWGRP
    return bool(status.st_mode & others) or status.st_uid not in (ROOT, os.geteuid(), CHECKOUT.stat().st_uid)


def ask_slurm() -> tuple[SlurmHook, ...]:
    """Return the hooks of the Slurm cluster that this host belongs to.

    None without Slurm, or if Slurm does not answer.
    """
    hooks = (hooks_of_nodes() if slurm_is_installed() else None) or {}
    return tuple(
        SlurmHook(name, programs, next((one for one in _files(programs) if _runs(one, f"slurm-{name.lower()}")), None))
        for name, programs in hooks.items()
    )


def _files(programs: Iterable[str]) -> Iterator[str]:
    """Yield the files of hooks; Slurm also takes a pattern for a folder of them, such as `/etc/slurm/prolog.d/*`."""
    for program in programs:
        pattern = program.strip("/")
        yield from sorted(map(str, Path("/").glob(pattern))) if pattern else ()


def _runs(program: str, command: str) -> bool:
    """Return whether a program of this host is executable and contains a command of this tool."""
    try:
        content = read_regular(Path(program))
    except OSError:
        return False
    return command.encode() in content and os.access(program, os.X_OK)


def ask_docker() -> tuple[Docker, Engine | None]:
    """Return the facts of the engine, and the engine itself if cells can run on it."""
    executor = os.environ.get(EXECUTOR)
    if executor == "process":
        return Docker(executor), None
    try:
        engine = reach_engine()
        if engine is None:
            return Docker(executor), None
        docker = replace(docker_of(engine), executor=executor)
    except UserError as error:
        return Docker(executor, refusal=str(error)), None
    return docker, None if docker.maps_users else engine


def ask_bases(engine: Engine, stacks: Iterable[Stack]) -> tuple[BaseImage, ...]:
    """Return the base images of stacks, each once; if the engine lacks one, with the reason why it cannot be pulled."""
    references = sorted({base_reference(stack) for stack in stacks if "docker" in stack.executors})
    return tuple(_base(engine, reference) for reference in references)


def _base(engine: Engine, reference: str) -> BaseImage:
    try:
        if find(engine, reference):
            return BaseImage(reference, here=True)
        BackgroundCall(partial(engine.client.api.inspect_distribution, reference)).result(REGISTRY_SECONDS)
    except TimeoutError:
        return BaseImage(reference, here=False, unreachable=f"no answer within {REGISTRY_SECONDS:.0f} s")
    except UserError as error:
        return BaseImage(reference, here=False, unreachable=str(error))
    except ENGINE_ERRORS as error:
        return BaseImage(reference, here=False, unreachable=explain(error))
    return BaseImage(reference, here=False)


def docker_of(engine: Engine) -> Docker:
    """Return the facts of an engine that the checks need."""
    facts = engine.facts
    options = {option.split(",")[0].removeprefix("name=") for option in facts.get("SecurityOptions") or ()}
    try:
        _ = engine.builder
        no_builder = None
    except UserError as error:
        no_builder = str(error)
    return Docker(
        version=str(facts.get("ServerVersion") or "unknown"),
        maps_users="rootless" if "rootless" in options else "userns-remap" if "userns" in options else None,
        desktop="Docker Desktop" in str(facts.get("OperatingSystem")),
        storage=str(facts.get("Driver") or ""),
        cgroups=str(facts.get("CgroupVersion") or ""),
        no_builder=no_builder,
    )


def measure_room(
    machine: Machine, matrix: Matrix, cells: Sequence[Cell], capabilities: Capabilities, verifying: Stack | None
) -> Room:
    """Return the cells that can run here, the disk space they need, and the disk's speed (None if not writable).

    The stack that verifies runs is made before the others.
    """
    reasons = {cell.id: why_not(cell, capabilities) for cell in cells}
    able = [cell for cell in cells if reasons[cell.id] is None]
    names = dict.fromkeys(cell.stack.name for cell in able if cell.stack != verifying)
    before = [verifying] if verifying and able else []
    atomics = [gpu.atomics for gpu in machine.training]
    order = disk_order(matrix, names, before, capabilities, atomics)
    stacks = stack_by_stack([*before, *order], capabilities)
    return Room(
        sentence=capabilities.sentence,
        cells=len(able),
        left_out=tuple(sorted({reason for reason in reasons.values() if reason})),
        place=capabilities.place,
        needed_gb=sum(one.disk_gb for one in stacks if one.fits is not False),
        free_gb=None if capabilities.free_bytes is None else capabilities.free_bytes / GB,
        write_speed=measure_write_speed(Path(capabilities.place)),
        no_room=tuple(f"{one.stack} ({one.disk_gb:.0f} GB)" for one in stacks if one.fits is False),
    )


def measure_write_speed(folder: Path) -> float | None:
    """Return the speed of a short write with fsync in MB/s; None if this user may not write."""
    # Random bytes: some disks and filesystems compress zeros.
    content = os.urandom(WRITTEN_BYTES)
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".matrix-doctor-") as file:
            began = time.perf_counter()
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            return WRITTEN_BYTES / MB / (time.perf_counter() - began)
    except OSError:
        return None
