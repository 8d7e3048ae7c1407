"""Writes a simulated host: the files that Linux and the amdgpu driver would have in /sys, /proc and /dev.

`matrix simulate` makes one for users, and the tests use it, too. All files exist on a host with such hardware; their
formats are those of Linux 6.8 and of AMD's driver 6.14.
"""

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from harness.host.simulated_topology import TOPOLOGY, GpuNode, cpu_node, gpu_node

GIB = 1 << 30
VRAM_7900XT = 20464 << 20
AMD, NAVI_31 = 0x1002, 0x744C
CPUINFO = """processor	: 0
vendor_id	: AuthenticAMD
model name	: AMD Ryzen Threadripper 7960X
apicid		: 0
"""
LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max locked memory         {limit:<20} {limit:<20} bytes
Max address space         unlimited            unlimited            bytes
"""
STATUS = "Name:\tmatrix\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t1000\t1000\t1000\t1000\nGroups:\t{groups} \n"
FIRST_MINOR, FIRST_KFD_ID = 128, 51000


@dataclass
class SimulatedHost:
    """A root folder, and the PCI folders of its GPUs in the order of KFD. Paths are relative to the root."""

    root: Path
    gpus: list[Path] = field(default_factory=list)
    caller: int = 1000
    render_group: int = 992

    @property
    def render_nodes(self) -> list[str]:
        """The names of the render nodes, such as `renderD128`."""
        return [f"renderD{FIRST_MINOR + number}" for number in range(len(self.gpus))]

    def write(self, path: str | Path, text: str | int) -> None:
        """Write a file with one line, ended as the kernel does."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n" if not str(text).endswith("\n") else str(text), encoding="utf-8")

    def remove(self, path: str | Path) -> None:
        """Remove a file, a link or a whole folder."""
        file = self.root / path
        if file.is_dir() and not file.is_symlink():
            shutil.rmtree(file)
        else:
            file.unlink()

    def link(self, path: str | Path, target: Path) -> None:
        """Make a relative link to another file or folder of the host."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        file.symlink_to(os.path.relpath(target, file.parent.resolve()))

    def kernel(self, release: str) -> None:
        """Set the kernel's release."""
        self.write("proc/sys/kernel/osrelease", release)

    def groups(self, *numbers: int, uid: int | None = None) -> None:
        """Set the calling user and the numbers of its groups."""
        of = self.caller if uid is None else uid
        self.write("proc/self/status", STATUS.format(uid=of, groups=" ".join(map(str, numbers))))

    def node(self, path: str) -> None:
        """Make a device node that every user may use, and that can be given to a container: a link to /dev/null."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.symlink_to("/dev/null")

    def pci(self, chain: str, vendor: int, device: int, kind: int) -> Path:
        """Add a device at the end of a chain of addresses below a root complex; return its folder."""
        folder = self.root / "sys/devices" / chain
        self.write(folder / "vendor", f"{vendor:#06x}")
        self.write(folder / "device", f"{device:#06x}")
        self.write(folder / "class", f"{kind:#08x}")
        self.link(f"sys/bus/pci/devices/{folder.name}", folder)
        return folder

    def width(self, folder: Path, lanes: int, speed: str = "16.0", most: int = 16, most_speed: str = "16.0") -> None:
        """Set the PCIe link of a device to the device above it: lanes, and GT/s."""
        for name, value in {"current": (lanes, speed), "max": (most, most_speed)}.items():
            self.write(folder / f"{name}_link_width", value[0])
            self.write(folder / f"{name}_link_speed", f"{value[1]} GT/s PCIe")

    def bar(self, folder: Path, size: int) -> None:
        """Set the number of bytes of a device's memory that the processor can address."""
        start = 0x7800000000
        rest = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n" * 5
        self.write(folder / "resource", f"{start:#018x} {start + size - 1:#018x} 0x000000000014220c\n{rest}")

    def drive(self, folder: Path, driver: str) -> None:
        """Bind a device to a driver."""
        place = self.root / "sys/bus/pci/drivers" / driver
        place.mkdir(parents=True, exist_ok=True)
        self.link(folder / "driver", place)
        self.write(folder / "uevent", f"DRIVER={driver}\nPCI_CLASS=30000\nPCI_SLOT_NAME={folder.name}\n")

    def topology(self, gpu: Path, version: int, simd: int, vram: int, device: int = NAVI_31) -> int:
        """Add a GPU to KFD; return the number of its node."""
        index = len(self.gpus)
        number, minor = index + 1, FIRST_MINOR + index
        bus = int(gpu.name.split(":")[1], 16)
        node = GpuNode(number, FIRST_KFD_ID + number, version, simd, vram, device, bus << 8, minor)
        # The node of the processor counts its links.
        for name, text in {**gpu_node(node), **cpu_node(links=number)}.items():
            self.write(f"{TOPOLOGY}/nodes/{name}", text)
        for name in (f"renderD{minor}", f"card{index}"):
            (gpu / "drm" / name).mkdir(parents=True)
            self.link(gpu / "drm" / name / "device", gpu)
            self.link(f"sys/class/drm/{name}", gpu / "drm" / name)
        self.node(f"dev/dri/renderD{minor}")
        self.gpus.append(gpu)
        return number

    def radeon(self, root_port: str, bus: int, version: int = 110000, vram: int = VRAM_7900XT) -> Path:
        """Add a Radeon card, which has a PCIe switch of its own between its slot and its GPU; return the GPU."""
        first, second, third = (f"0000:{bus + n:02x}:00.0" for n in range(3))
        upstream = self.pci(f"{root_port}/{first}", AMD, 0x1478, 0x060400)
        self.width(upstream, 16)
        downstream = self.pci(f"{root_port}/{first}/{second}", AMD, 0x1479, 0x060400)
        self.width(downstream, 16)
        gpu = self.pci(f"{root_port}/{first}/{second}/{third}", AMD, NAVI_31, 0x030000)
        # The GPU's own link goes to this switch and always has its full width, whatever the slot has.
        self.width(gpu, 16)
        self.bar(gpu, 32 * GIB)
        self.write(gpu / "mem_info_vram_total", vram)
        self.write(gpu / "mem_info_vram_used", 27 << 20)
        self.write(gpu / "gpu_busy_percent", 0)
        sensors: dict[str, str | int] = {"power1_average": 18_000_000, "power1_cap": 300_000_000}
        sensors |= {"temp1_input": 41_000, "temp1_label": "edge", "freq1_input": 42_000_000, "freq1_label": "sclk"}
        sensors |= {"freq2_input": 96_000_000, "freq2_label": "mclk"}
        for name, value in sensors.items():
            self.write(gpu / "hwmon/hwmon0" / name, value)
        self.firmware(gpu, mes="0x00000082", smc="0x004e8200", sdma="0x00000016", mec="0x00000236", rlc="0x00000096")
        self.write(gpu / "vbios_version", "113-EXT85837-100")
        self.drive(gpu, "amdgpu")
        self.topology(gpu, version, 168, vram)
        for connector in ("DP-1", "HDMI-A-1"):
            self.connect(gpu, connector, "disconnected")
        self.connect(gpu, "Writeback-1", "unknown")
        return gpu

    def firmware(self, gpu: Path, **versions: str) -> None:
        """Set the versions of blocks of a GPU's firmware."""
        for block, version in versions.items():
            self.write(gpu / "fw_version" / f"{block}_fw_version", version)

    def connect(self, gpu: Path, connector: str, status: str = "connected") -> None:
        """Attach a screen to a connector of a GPU, or set another status of the connector."""
        card = f"card{self.gpus.index(gpu)}"
        place = gpu / f"drm/{card}/{card}-{connector}"
        self.write(place / "status", status)
        self.write(place / "enabled", "enabled" if status == "connected" else "disabled")


Host = TypeVar("Host", bound=SimulatedHost)


def without_gpu(host: Host) -> Host:
    """Write a virtual machine with Ubuntu and without a GPU."""
    host.kernel("6.8.0-60-generic")
    host.groups(4, 27, host.render_group)
    host.write("proc/sys/kernel/hostname", "simulated")
    host.write("etc/os-release", 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.2 LTS"\n')
    host.write("etc/group", f"root:x:0:\nadm:x:4:syslog\nsudo:x:27:\nrender:x:{host.render_group}:\n")
    host.write("proc/cpuinfo", CPUINFO)
    host.write("proc/meminfo", "MemTotal:       131072000 kB\n")
    host.write("proc/cmdline", "BOOT_IMAGE=/vmlinuz-6.8.0-60-generic root=UUID=1b9d ro quiet splash iommu=pt")
    host.write("proc/mounts", "sysfs /sys sysfs rw 0 0\ntmpfs /dev/shm tmpfs rw,nosuid,nodev,inode64 0 0\n")
    host.write("proc/self/limits", LIMITS.format(limit="unlimited"))
    host.write("proc/sys/kernel/yama/ptrace_scope", 0)
    host.write("proc/sys/kernel/dmesg_restrict", 1)
    (host.root / "dev").mkdir()
    (host.root / "dev/kmsg").touch()
    glibc = "\0GNU C Library (Ubuntu GLIBC 2.39-0ubuntu8.4) stable release version 2.39.\n"
    host.write("usr/lib/x86_64-linux-gnu/libc.so.6", glibc)
    (host.root / "lib").symlink_to("usr/lib")
    # The folder for the locks of GPUs, which every user may take.
    locks = host.root / "run/lock"
    locks.mkdir(parents=True)
    locks.chmod(0o1777)
    host.pci("pci0000:00/0000:00:01.0", 0x1AF4, 0x1041, 0x020000)
    return host


def with_driver(host: Host) -> Host:
    """Add the driver of ROCm 7.0 and the topology of KFD, with the node of the processor only."""
    host.write("sys/module/amdgpu/version", "6.14.14")
    for name, value in {"cwsr_enable": "1", "gpu_recovery": "-1", "mes": "0", "ppfeaturemask": "0xfff7bfff"}.items():
        host.write(f"sys/module/amdgpu/parameters/{name}", value)
    host.write("sys/module/amdgpu/initstate", "live")
    host.link("sys/class/kfd/kfd", host.root / TOPOLOGY.parent)
    host.write(TOPOLOGY / "generation_id", 2)
    host.write(TOPOLOGY / "system_properties", "platform_oem 0\nplatform_id 0\nplatform_rev 0")
    for name, text in cpu_node(links=0).items():
        host.write(f"{TOPOLOGY}/nodes/{name}", text)
    host.node("dev/kfd")
    return host


def with_dual_7900xt(host: Host) -> Host:
    """Write two RX 7900 XT in two slots of a Threadripper, with the display on the first card."""
    with_driver(without_gpu(host))
    for unit in ("ivhd0", "ivhd1"):
        host.link(f"sys/class/iommu/{unit}", host.root / "sys/devices/virtual" / unit)
    for bus, port in ((0x01, "pci0000:00/0000:00:01.1"), (0x41, "pci0000:40/0000:40:01.1")):
        host.width(host.pci(port, 0x1022, 0x14AB, 0x060400), 16, most_speed="32.0")
        host.radeon(port, bus)
    host.write(host.gpus[0] / "mem_info_vram_used", 812 << 20)
    host.connect(host.gpus[0], "DP-1")
    return host


def dual_7900xt(root: Path) -> SimulatedHost:
    """Write a host with two RX 7900 XT into a folder."""
    return with_dual_7900xt(SimulatedHost(root))
