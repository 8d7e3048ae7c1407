"""Reads the facts of this machine from /proc and /sys, or from a folder in their place (a simulated host)."""

import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.base.files.hashes import json_hash
from harness.base.sysfs import REAL_ROOT, entries, is_simulated, read_number, read_properties, read_text
from harness.host.facts import GpuFacts, HostFacts
from harness.host.gpus.amdgpu import firmware, pci_address, product_name, total_memory
from harness.host.gpus.displays import connected_displays
from harness.host.processes.processes import boot_id
from harness.matrix.wheels import supported_targets

# Parameters of amdgpu and of the kernel's command line that change how ROCm computes, copies or recovers.
DRIVER_PARAMETERS = (
    "aspm", "cwsr_enable", "debug_mask", "dpm", "gpu_recovery", "gttsize", "halt_if_hws_hang", "hws_max_conc_proc",
    "lockup_timeout", "mcbp", "mes", "mes_kiq", "noretry", "no_system_mem_limit", "ppfeaturemask",
    "queue_preemption_timeout_ms", "reset_method", "runpm", "sched_policy", "sg_display", "uni_mes", "vm_fragment_size",
    "vm_update_mode",
)  # fmt: skip
KERNEL_PARAMETERS = re.compile(
    r"(?:^|\s)(amd_iommu|intel_iommu|iommu|pci|pcie_aspm|pcie_acs_override|processor\.max_cstate)=(\S+)"
)

MACHINE_LENGTH = 16
# MemTotal differs by some kB or MB from boot to boot, with what the firmware reserves. It is some hundred MB below the
# installed memory less 1/64, so that it is far from a multiple of this size.
MODULE_BYTES = 4 << 30


def read_host(root: Path) -> HostFacts:
    """Return the facts of the host at a root, which is `/` for the machine itself.

    The boot id and the number of usable cores are always those of this machine, because processes run on it.
    """
    gpus = tuple(read_gpus(root))
    kernel = read_text(root / "proc/sys/kernel/osrelease") or platform.release()
    driver = read_text(root / "sys/module/amdgpu/version")
    if driver is None and (root / "sys/module/amdgpu").exists():
        driver = "in-tree"
    cpu = _match(root / "proc/cpuinfo", r"^model name\s*:\s*(.+)$") or platform.machine()
    memory = int(_match(root / "proc/meminfo", r"^MemTotal:\s*(\d+) kB$") or 0) * 1024
    targets = sorted(gpu.gfx for gpu in gpus)
    simulated = is_simulated(root)
    # Left out where it is false, so that kinds of real hosts in older records stay the same.
    kind: dict[str, Any] = {
        "gpus": targets,
        "driver": driver,
        "kernel": kernel,
        **({"simulated": True} if simulated else {}),
    }
    if any(gpu.firmware for gpu in gpus):
        # Left out where the driver does not report it, for the same reason.
        kind["firmware"] = sorted((gpu.gfx, sorted(gpu.firmware.items())) for gpu in gpus)
    machine = _machine(root)
    return HostFacts(
        machine=machine[:MACHINE_LENGTH],
        fingerprint=json_hash({**kind, "cpu": cpu, "memory": -(-memory // MODULE_BYTES), "machine": machine})[:16],
        kind=json_hash(kind)[:16],
        operating_system=_match(root / "etc/os-release", r'^PRETTY_NAME="?([^"\n]+)') or "unknown",
        kernel=kernel,
        driver=driver,
        cpu=cpu,
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=memory,
        gpus=gpus,
        boot_id=boot_id(),
        kernel_parameters=dict(_kernel_parameters(root)),
        simulated=simulated,
    )


def machine_of(root: Path) -> str:
    """Return only `HostFacts.machine`, which does not depend on the kernel and driver that the machine runs."""
    return _machine(root)[:MACHINE_LENGTH]


def _machine(root: Path) -> str:
    names = [read_text(root / "etc/machine-id"), read_text(root / "proc/sys/kernel/hostname") or platform.node()]
    # A simulated host differs between real machines, because its processes run on the real machine.
    return json_hash([*names, _machine(REAL_ROOT)] if is_simulated(root) else names)


def read_gpus(root: Path) -> Iterator[GpuFacts]:
    """Yield the AMD GPUs in the order of the KFD topology, in which ROCm counts them, too."""
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    folders = sorted((folder for folder in entries(nodes) if folder.name.isdecimal()), key=lambda f: int(f.name))
    index = 0
    for folder in folders:
        properties = read_properties(folder / "properties")
        if not properties.get("simd_count"):
            continue
        minor = properties.get("drm_render_minor", 0)
        card = root / f"sys/class/drm/renderD{minor}/device"
        gpu = GpuFacts(
            index=index,
            gfx=gfx_target(properties.get("gfx_target_version", 0)),
            name=product_name(card) or _name(folder) or "AMD GPU",
            memory_bytes=total_memory(card),
            render_node=f"/dev/dri/renderD{minor}" if minor else None,
            kfd_id=read_number(folder / "gpu_id") or None,
            firmware=firmware(card),
            vbios=read_text(card / "vbios_version"),
        )
        yield gpu.model_copy(update={"displays": connected_displays(gpu, root), "address": pci_address(gpu, root)})
        index += 1


def _name(node: Path) -> str | None:
    name = read_text(node / "name")
    # The kernel uses this name for every GPU that describes itself to the kernel, as all do since gfx1030.
    return None if name == "ip discovery" else name


def _kernel_parameters(root: Path) -> Iterator[tuple[str, str]]:
    yield from sorted(KERNEL_PARAMETERS.findall(read_text(root / "proc/cmdline") or ""))
    for name in DRIVER_PARAMETERS:
        # Read here, so that it does not matter if they were set on the command line or by modprobe.
        value = read_text(root / "sys/module/amdgpu/parameters" / name)
        if value is not None:
            yield f"amdgpu.{name}", value


def gfx_target(version: int) -> str:
    """Return the name of a target from KFD's `gfx_target_version` (major x 10000 + minor x 100 + stepping)."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def training_gpus(host: HostFacts) -> tuple[GpuFacts, ...]:
    """Return the GPUs for which PyTorch's wheels have kernels."""
    return tuple(gpu for gpu in host.gpus if gpu.gfx in supported_targets())


def wheel_targets(root: Path) -> tuple[str, ...]:
    """Return the targets, each once, of the GPUs for which PyTorch's wheels have kernels."""
    return tuple(sorted({gpu.gfx for gpu in read_gpus(root) if gpu.gfx in supported_targets()}))


def _match(file: Path, pattern: str) -> str | None:
    found = re.search(pattern, read_text(file) or "", re.MULTILINE)
    return found[1].strip() if found else None
