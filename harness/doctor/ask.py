"""What only this very machine can tell: the Docker engine's word, the plan, the speed of the disk."""

import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from harness.doctor.machine import Docker, Machine, Room
from harness.engine import Engine, reach_engine
from harness.errors import UserError
from harness.host.capabilities import capabilities_of
from harness.matrix import Matrix
from harness.plan import make_plan

WRITTEN_BYTES = 32 << 20
MB = 10**6


def ask(machine: Machine, matrix: Matrix) -> Machine:
    """The machine, with what its engine says and what the default selection takes here. Writes 32 MiB for a moment."""
    docker, engine = ask_docker()
    return replace(machine, docker=docker, room=measure_room(machine, matrix, engine))


def ask_docker() -> tuple[Docker, Engine | None]:
    """What the engine says, and the engine itself where cells can be run on it."""
    try:
        engine = reach_engine()
        if engine is None:
            return Docker(), None
        docker = docker_of(engine)
    except UserError as error:
        return Docker(refusal=str(error)), None
    return docker, None if docker.maps_users else engine


def docker_of(engine: Engine) -> Docker:
    """The facts of an engine that matter here."""
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


def measure_room(machine: Machine, matrix: Matrix, engine: Engine | None) -> Room:
    """The plan of the default selection, and how fast the disk is where this user may write to it."""
    cells = matrix.select("default")
    capabilities = capabilities_of(machine.host, engine, cells, None)
    workload = matrix.workloads[matrix.selections["default"].workload]
    plan = make_plan(cells, workload, 1, capabilities, {})
    return Room(
        sentence=capabilities.sentence,
        runs=len(plan.runs),
        left_out=tuple(sorted({skipped.reason for skipped in plan.skipped})),
        place=plan.place,
        needed_gb=plan.disk_gb,
        free_gb=plan.free_gb,
        write_speed=measure_write_speed(Path(plan.place)),
    )


def measure_write_speed(folder: Path) -> float | None:
    """MB/s of a short write with fsync; None where this user may not write."""
    # Some disks and filesystems make nothing of zeros.
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
