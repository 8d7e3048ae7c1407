"""Simulated hosts with other hardware, and with device nodes that only a group may use."""

import os
from dataclasses import dataclass
from pathlib import Path

from harness.host.simulated import (
    GIB,
    LIMITS,
    VRAM_7900XT,
    SimulatedHost,
    with_driver,
    with_dual_7900xt,
    without_gpu,
)

__all__ = ["CALLER", "GIB", "GROUP", "LIMITS", "OWNER", "VRAM_7900XT", "GroupOwnedHost"]

FDINFO = """pos:\t0
flags:\t02100002
mnt_id:\t27
ino:\t1123
drm-driver:\tamdgpu
drm-client-id:\t{client}
drm-pdev:\t{address}
pasid:\t32771
drm-memory-vram:\t{kib} KiB
drm-memory-gtt: \t2048 KiB
drm-memory-cpu: \t0 KiB
"""
# The owner of device nodes, in place of root: a test's files belong to the user who runs it.
OWNER = os.getuid()
CALLER = OWNER + 1000
GROUP = os.getgid()


@dataclass
class GroupOwnedHost(SimulatedHost):
    """A simulated host whose device nodes belong to a group, and whose processes hold memory of its GPUs."""

    caller: int = CALLER
    render_group: int = GROUP or 992

    def node(self, path: str) -> None:
        self.write(path, "")
        (self.root / path).chmod(0o660)

    def drive(self, card: Path, driver: str) -> None:
        """Bind a driver to a card, which members of the group may reset."""
        super().drive(card, driver)
        self.node(str(card / "reset"))

    def compute(self, pid: int, gpu_id: int, memory: int, name: str = "python3") -> None:
        """Add a process that holds memory through KFD."""
        self.write(f"sys/class/kfd/kfd/proc/{pid}/vram_{gpu_id}", memory)
        self.write(f"proc/{pid}/comm", name)

    def draw(self, pid: int, file: int, client: int, gpu: Path, kib: int) -> None:
        """Add a process that holds memory through an open render node."""
        self.write(f"proc/{pid}/comm", "gnome-shell")
        self.write(f"proc/{pid}/fdinfo/{file}", FDINFO.format(client=client, address=gpu.name, kib=kib))


def none(root: Path) -> GroupOwnedHost:
    """Simulate a virtual machine with Ubuntu, without a GPU."""
    tree = without_gpu(GroupOwnedHost(root))
    tree.groups(4, 27, GROUP)
    return tree


def dual_7900xt(root: Path) -> GroupOwnedHost:
    """Simulate two RX 7900 XT in slots of a Threadripper, with ROCm 7.0's driver and the display on the first card."""
    tree = with_dual_7900xt(GroupOwnedHost(root))
    tree.groups(4, 27, GROUP)
    return tree


def with_igpu(root: Path) -> GroupOwnedHost:
    """Simulate the same host with the GPU inside a Ryzen, which KFD lists last."""
    tree = dual_7900xt(root)
    port = "pci0000:00/0000:00:08.1"
    tree.pci(port, 0x1022, 0x14DD, 0x060400)
    igpu = tree.pci(f"{port}/0000:11:00.0", 0x1002, 0x164E, 0x030000)
    tree.write(igpu / "mem_info_vram_total", 512 << 20)
    tree.write(igpu / "mem_info_vram_used", 12 << 20)
    tree.drive(igpu, "amdgpu")
    tree.topology(igpu, 100306, 4, 512 << 20, device=0x164E)
    return tree


def rx_9070xt(root: Path) -> GroupOwnedHost:
    """Simulate one RX 9070 XT (gfx1201)."""
    tree = with_driver(none(root))
    port = "pci0000:00/0000:00:01.1"
    tree.width(tree.pci(port, 0x1022, 0x14DB, 0x060400), 16, most_speed="32.0")
    tree.radeon(port, 0x01, version=120001, vram=16304 << 20)
    return tree


def wsl2(root: Path) -> GroupOwnedHost:
    """Simulate Ubuntu in WSL2 on a host whose Windows driver lends the GPU."""
    tree = none(root)
    tree.kernel("5.15.167.4-microsoft-standard-WSL2")
    tree.node("dev/dxg")
    tree.write("usr/lib/wsl/lib/libdxcore.so", "")
    tree.pci("pci0000:00/8f5a:00:00.0", 0x1414, 0x008E, 0x030200)
    return tree


def nvidia(root: Path) -> GroupOwnedHost:
    """Simulate a host with one NVIDIA card."""
    tree = none(root)
    port = "pci0000:00/0000:00:01.0"
    tree.pci(port, 0x8086, 0x460D, 0x060400)
    tree.drive(tree.pci(f"{port}/0000:01:00.0", 0x10DE, 0x2684, 0x030000), "nvidia")
    tree.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.133.07")
    return tree
