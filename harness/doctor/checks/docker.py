"""The Docker engine that cells are run on."""

from collections.abc import Iterator

from harness.doctor.finding import Finding, command_in, note, ok, problem, warning
from harness.doctor.machine import Machine

# The image that `make base` builds.
OWN_BASE = "vpoc-base:bookworm"
OF_THIS_SHELL = "  # holds in this shell"
AS_PROCESSES = f"export MATRIX_EXECUTOR=process{OF_THIS_SHELL}"


def docker(machine: Machine) -> Iterator[Finding]:
    """The Docker engine, and this user's access to it."""
    if machine.docker is None:
        return
    if machine.docker.executor == "process":
        yield note(
            "cells run as processes, as MATRIX_EXECUTOR asks: the Docker engine was not checked",
            "only runs in containers qualify for promotion to a known-good tag",
        )
    elif machine.docker.refusal:
        yield problem(
            machine.docker.refusal,
            "`matrix run` stops, unless it is asked to run cells as processes",
            command_in(machine.docker.refusal) or AS_PROCESSES,
        )
    elif not machine.docker.answers and machine.docker.executor == "docker":
        yield problem(
            "there is no Docker engine, and MATRIX_EXECUTOR asks for one",
            "`matrix run` stops",
            AS_PROCESSES,
        )
    elif not machine.docker.answers:
        yield note(
            "there is no Docker engine",
            "cells run as processes in virtual environments; only runs in containers qualify for promotion to a "
            "known-good tag",
            "sudo apt install docker.io docker-buildx",
        )
    else:
        yield ok(f"Docker {machine.docker.version} answers")


def docker_users(machine: Machine) -> Iterator[Finding]:
    """The engine's mapping of users: rootless, userns-remap, or none."""
    if (engine := machine.engine) is None:
        return
    if engine.maps_users:
        yield problem(
            f"the Docker engine maps users ({engine.maps_users})",
            "files of a container would belong to another user, and the group of /dev/kfd would not count in it; "
            "`matrix run` refuses such an engine",
            "docker context use default" if engine.maps_users == "rootless" else AS_PROCESSES,
        )
    else:
        yield ok("the engine maps no users")


def docker_desktop(machine: Machine) -> Iterator[Finding]:
    """Docker Desktop, an engine in a virtual machine."""
    if (engine := machine.engine) is None:
        return
    if not engine.desktop:
        yield ok("the engine is not Docker Desktop")
    elif machine.training:
        yield problem(
            "the Docker engine is Docker Desktop",
            "its containers run in a virtual machine that has no /dev/kfd: no ROCm cell can run there",
            "docker context use default  # the engine of the package docker.io or docker-ce",
        )
    else:
        yield note(
            "the Docker engine is Docker Desktop",
            "its containers run in a virtual machine, with that machine's memory and processors",
        )


def docker_storage(machine: Machine) -> Iterator[Finding]:
    """The engine's storage driver."""
    if (engine := machine.engine) is None:
        return
    if engine.storage == "vfs":
        yield warning(
            "the engine's storage driver is vfs",
            "it copies every layer whole: each cell of a ROCm stack would take about 20 GB more",
            'sudoedit /etc/docker/daemon.json  # "storage-driver": "overlay2", then restart docker',
        )
    else:
        yield ok(f"the engine's storage driver is {engine.storage}")


def docker_builder(machine: Machine) -> Iterator[Finding]:
    """A client that can build images with BuildKit."""
    if (engine := machine.engine) is None:
        return
    if engine.no_builder:
        yield problem(engine.no_builder, "no image can be built", "sudo apt install docker-buildx")
    else:
        yield ok("images can be built with BuildKit")


def base_image(machine: Machine) -> Iterator[Finding]:
    """The base of the images that are to be built: present, or available from its registry."""
    for base in machine.docker.bases if machine.docker else ():
        if base.here:
            yield ok(f"base image {base.name} is here")
        elif base.unreachable is None:
            yield ok(f"base image {base.name} can be pulled")
        else:
            yield problem(
                f"base image {base.name} is not here and cannot be pulled: {base.unreachable}",
                "no image can be built; `make base` makes one from Debian's packages in some minutes. Without images, "
                "`export MATRIX_EXECUTOR=process` runs cells as processes, with fewer bounds on what a run may do, and "
                "nothing that can be promoted",
                f"make base && export MATRIX_BASE={OWN_BASE}{OF_THIS_SHELL}",
            )


def cgroups(machine: Machine) -> Iterator[Finding]:
    """The version of control groups."""
    if (engine := machine.engine) is None or not engine.cgroups:
        return
    if engine.cgroups == "1":
        word = machine.boot_tool.format("systemd.unified_cgroup_hierarchy=1")
        yield note(
            "control groups are version 1",
            "version 2 also tells which limit a container ran into (memory.events): out-of-memory is explained better",
            f"{word}  # then reboot",
        )
    else:
        yield ok(f"control groups are version {engine.cgroups}")
