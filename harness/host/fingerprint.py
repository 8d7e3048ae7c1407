"""What machine this is, read from /proc and /sys. `root` can be a fake tree."""

import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path

from harness.base.storage import json_hash
from harness.base.sysfs import read_text
from harness.host.amdgpu import product_name, total_memory
from harness.host.facts import GpuFacts, HostFacts

# Targets that PyTorch's ROCm wheels contain kernels for; an integrated GPU (gfx1036, gfx1103) is not among them.
WHEEL_TARGETS = frozenset(
    {"gfx900", "gfx906", "gfx908", "gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1200", "gfx1201"}
)


def read_host(root: Path = Path("/")) -> HostFacts:
    """The facts of this host."""
    gpus = tuple(read_gpus(root))
    kernel = read_text(root / "proc/sys/kernel/osrelease") or platform.release()
    driver = read_text(root / "sys/module/amdgpu/version")
    if driver is None and (root / "sys/module/amdgpu").exists():
        driver = "in-tree"
    cpu = _match(root / "proc/cpuinfo", r"^model name\s*:\s*(.+)$") or platform.machine()
    memory = int(_match(root / "proc/meminfo", r"^MemTotal:\s*(\d+) kB$") or 0) * 1024
    targets = sorted(gpu.gfx for gpu in gpus)
    kind = {"gpus": targets, "driver": driver, "kernel": kernel}
    machine = json_hash(
        [read_text(root / "etc/machine-id"), read_text(root / "proc/sys/kernel/hostname") or platform.node()]
    )
    return HostFacts(
        machine=machine[:16],
        fingerprint=json_hash({**kind, "cpu": cpu, "memory": memory, "machine": machine})[:16],
        kind=json_hash(kind)[:16],
        operating_system=_match(root / "etc/os-release", r'^PRETTY_NAME="?([^"\n]+)') or "unknown",
        kernel=kernel,
        driver=driver,
        cpu=cpu,
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=memory,
        gpus=gpus,
        boot_id=read_text(root / "proc/sys/kernel/random/boot_id") or "unknown",
    )


def read_gpus(root: Path) -> Iterator[GpuFacts]:
    """AMD GPUs in the order of the KFD topology, which is the order ROCm counts them in."""
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    folders = sorted(nodes.iterdir(), key=lambda f: int(f.name)) if nodes.is_dir() else []
    index = 0
    for folder in folders:
        properties = dict(re.findall(r"^(\w+) (\d+)$", read_text(folder / "properties") or "", re.MULTILINE))
        if int(properties.get("simd_count", 0)) == 0:
            continue
        minor = int(properties.get("drm_render_minor", 0))
        card = root / f"sys/class/drm/renderD{minor}/device"
        yield GpuFacts(
            index=index,
            gfx=gfx_target(int(properties.get("gfx_target_version", 0))),
            name=product_name(card) or read_text(folder / "name") or "AMD GPU",
            memory_bytes=total_memory(card),
            render_node=f"/dev/dri/renderD{minor}" if minor else None,
            kfd_id=int(read_text(folder / "gpu_id") or 0) or None,
        )
        index += 1


def gfx_target(version: int) -> str:
    """The name of a target from KFD's `gfx_target_version` (major x 10000 + minor x 100 + stepping)."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def training_gpus(host: HostFacts) -> tuple[GpuFacts, ...]:
    """The GPUs that PyTorch's wheels have kernels for."""
    return tuple(gpu for gpu in host.gpus if gpu.gfx in WHEEL_TARGETS)


def _match(file: Path, pattern: str) -> str | None:
    found = re.search(pattern, read_text(file) or "", re.MULTILINE)
    return found[1].strip() if found else None
