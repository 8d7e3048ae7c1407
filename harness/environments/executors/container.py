"""The permissions of a run's container: only those that training needs. Pure, except that it reads ids and nodes."""

import csv
import io
import os
import re
import shlex
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from harness.base.errors import UserError
from harness.environments.executors.pids import LEAST_PIDS
from harness.host.facts import GpuFacts

HOSTNAME = "matrix"
LOOPBACK = "127.0.0.1"
# Loader workers and collectives pass tensors through shared memory; the engine's default is 64 MB.
SHARED_MEMORY = 8 << 30
# The share of the host's memory that a run may use, so that a growing run is killed before the host fails.
MEMORY_SHARE = 0.9
UNLIMITED = -1
# The ulimit that some engines may not raise. Core dumps are off, because the host keeps them outside the run folder.
MEMLOCK = "memlock"
# Score by which the host's kernel kills a run first, as its memory may be spread over thousands of small processes.
FIRST_TO_KILL = 1000
# Size of each of the two files in which the engine keeps output, for a harness that comes to follow it late.
LOG_FILE_BYTES = 32 << 20
LOG_OPTIONS = {"max-size": str(LOG_FILE_BYTES), "max-file": "2"}
KFD = "/dev/kfd"
# The places of files inside a container.
WORK, DATA = Path("/work"), Path("/data")


@dataclass(frozen=True)
class DeviceNode:
    """A device node: its path on the host, its path in the container, and the group that may use it."""

    host: str
    inside: str
    group: int


@dataclass(frozen=True)
class Container:
    """Everything that limits the container of a run, except its command and environment.

    `work` is the only folder that the container can write to. `data` are files and folders that it can read, each in
    /data under its own name.
    """

    image: str
    user: int
    group: int
    work: str
    data: tuple[str, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    memory_bytes: int | None = None
    shared_memory_bytes: int = SHARED_MEMORY
    pids: int = LEAST_PIDS

    @property
    def groups(self) -> tuple[int, ...]:
        """The numeric groups of the device nodes, because the host's group names mean nothing inside."""
        return tuple(sorted({device.group for device in self.devices} - {self.group}))

    def as_outside(self, text: str) -> str:
        """Return text from inside the container with the paths of this host, which its reader knows."""
        places = {str(WORK): self.work, **{str(inside(Path(file))): file for file in self.data}}
        found = "|".join(map(re.escape, sorted(places, key=len, reverse=True)))
        return re.sub(rf"(?<![\w./-])(?:{found})(?![\w-]|\.\w)", lambda place: places[place[0]], text)

    @property
    def plain(self) -> dict[str, Any]:
        """The permissions as plain values, for the record."""
        return {**asdict(self), "groups": self.groups}

    def create_arguments(self) -> dict[str, Any]:
        """Return the arguments of the Docker SDK's `containers.create` for this container."""
        # Every record is read with this module, and the SDK takes its time to import.
        from docker.types import LogConfig, Mount, Ulimit  # noqa: PLC0415

        mounts = [Mount(str(WORK), self.work, type="bind")]
        mounts += [Mount(str(inside(Path(file))), file, type="bind", read_only=True) for file in self.data]
        memory = {"mem_limit": self.memory_bytes, "memswap_limit": self.memory_bytes} if self.memory_bytes else {}
        return {
            "image": self.image,
            "user": f"{self.user}:{self.group}",
            "group_add": [str(group) for group in self.groups],
            "working_dir": str(WORK),
            "mounts": mounts,
            "devices": [f"{device.host}:{device.inside}:rw" for device in self.devices],
            "init": True,
            # Disable it, because an image may have the engine start a program regularly, besides the run's own.
            "healthcheck": {"test": ["NONE"]},
            "read_only": True,
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges"],
            "network_mode": "none",
            "hostname": HOSTNAME,
            "extra_hosts": {HOSTNAME: LOOPBACK},
            "shm_size": self.shared_memory_bytes,
            "ulimits": [Ulimit(name=MEMLOCK, soft=UNLIMITED, hard=UNLIMITED), Ulimit(name="core", soft=0, hard=0)],
            "pids_limit": self.pids,
            "oom_score_adj": FIRST_TO_KILL,
            # Set it here, because the engine may be configured to keep no output, or so much that it fills the disk.
            "log_config": LogConfig(type="json-file", config=LOG_OPTIONS),
            **memory,
        }

    @property
    def permissions(self) -> tuple[str, ...]:
        """The options of `docker run` for devices and for limits that do not depend on the command."""
        words = [word for group in self.groups for word in ("--group-add", str(group))]
        words += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
        words += ["--shm-size", str(self.shared_memory_bytes)]
        words += ["--ulimit", f"{MEMLOCK}={UNLIMITED}:{UNLIMITED}", "--pids-limit", str(self.pids)]
        if self.memory_bytes:
            words += ["--memory", str(self.memory_bytes), "--memory-swap", str(self.memory_bytes)]
        return (*words, *(word for node in self.devices for word in ("--device", f"{node.host}:{node.inside}")))

    def command_line(self, variables: dict[str, str], command: tuple[str, ...]) -> str:
        """Return the `docker run` command that does the same by hand."""
        words = ["docker", "run", "--rm", "--init", "--no-healthcheck", "--oom-score-adj", str(FIRST_TO_KILL)]
        words += ["--ulimit", "core=0:0", "--read-only", "--user", f"{self.user}:{self.group}"]
        words += ["--network", "none", "--hostname", HOSTNAME, "--add-host", f"{HOSTNAME}:{LOOPBACK}"]
        words += ["--log-driver", "json-file"]
        words += [word for name, value in LOG_OPTIONS.items() for word in ("--log-opt", f"{name}={value}")]
        words += self.permissions
        words += ["--mount", _mount("type=bind", f"source={self.work}", f"target={WORK}"), "--workdir", str(WORK)]
        for file in self.data:
            words += ["--mount", _mount("type=bind", f"source={file}", f"target={inside(Path(file))}", "readonly")]
        words += [word for name, value in sorted(variables.items()) for word in ("--env", f"{name}={value}")]
        return shlex.join([*words, self.image, *command])


def _mount(*fields: str) -> str:
    """Return the value of `--mount`, which is a line of CSV, because a path may hold a comma."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(fields)
    return line.getvalue()


def inside(file: Path) -> Path:
    """Return the path in the container of a file that it can read."""
    return DATA / file.name


def gpu_devices(gpus: tuple[GpuFacts, ...], root: Path) -> tuple[DeviceNode, ...]:
    """Return /dev/kfd and the render nodes of these GPUs. `root` can be a fake tree.

    Raises:
        UserError: when a node is missing.
    """
    if not gpus:
        return ()
    names = [KFD, *(gpu.render_node for gpu in gpus if gpu.render_node)]
    return tuple(_device(name, root) for name in names)


def _device(name: str, root: Path) -> DeviceNode:
    node = root / name.removeprefix("/")
    try:
        group = node.stat().st_gid
    except OSError:
        raise UserError(
            f"{node}: no such device; load the driver (`sudo modprobe amdgpu`) or choose a cpu cell"
        ) from None
    return DeviceNode(str(node), name, group)


def container_of(image: str, work: Path, data: tuple[Path, ...], memory_bytes: int) -> Container:
    """Return the container for a command of the current user, without devices."""
    limit = int(memory_bytes * MEMORY_SHARE) or None
    files = tuple(str(file.absolute()) for file in data)
    return Container(image, os.getuid(), os.getgid(), str(work.absolute()), files, memory_bytes=limit)


def container_from_record(values: dict[str, Any]) -> Container:
    """Return the container of an intent, from the values that `Container.plain` returned."""
    known = {field.name: values[field.name] for field in fields(Container) if field.name in values}
    devices = tuple(DeviceNode(**device) for device in known.get("devices", ()))
    return Container(**{**known, "devices": devices, "data": tuple(known.get("data", ()))})
