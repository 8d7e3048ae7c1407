"""synthetic /sys, /proc and /dev trees, with what kernels write into such files."""

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

GIB = 1 << 30
CPU_NODE = """cpu_cores_count 32
simd_count 0
mem_banks_count 1
caches_count 40
io_links_count {links}
gfx_target_version 0
vendor_id 0
device_id 0
location_id 0
domain 0
drm_render_minor 0
"""
GPU_NODE = """cpu_cores_count 0
simd_count {simd}
mem_banks_count 1
caches_count 206
io_links_count 1
max_waves_per_simd 16
gfx_target_version {version}
vendor_id 4098
device_id {device}
location_id {location}
domain 0
drm_render_minor {minor}
"""
IO_LINK = """type 2
version_major 0
version_minor 0
node_from {node}
node_to 0
weight 20
min_latency 0
max_latency 0
min_bandwidth 312
max_bandwidth 31504
recommended_transfer_size 0
recommended_sdma_engine_id_mask 0
flags {flags}
"""
LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max locked memory         {limit:<20} {limit:<20} bytes
Max address space         unlimited            unlimited            bytes
"""
STATUS = "Name:\tmatrix\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t1000\t1000\t1000\t1000\nGroups:\t{groups} \n"
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
# The node of root's own: files made by a test belong to whoever runs it.
OWNER = os.getuid()
CALLER = OWNER + 1000
GROUP = os.getgid()
VRAM_7900XT = 20464 << 20


@dataclass
class Tree:
    """A root folder, and the PCI folders of its GPUs in the order of KFD."""

    root: Path
    gpus: list[Path] = field(default_factory=list)

    def write(self, path: str | Path, text: str | int) -> None:
        """A file with a line, as the kernel ends it."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n" if not str(text).endswith("\n") else str(text))

    def remove(self, path: str | Path) -> None:
        file = self.root / path
        shutil.rmtree(file) if file.is_dir() and not file.is_symlink() else file.unlink()

    def link(self, path: str | Path, target: Path) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        file.symlink_to(os.path.relpath(target, file.parent.resolve()))

    def kernel(self, release: str) -> None:
        self.write("proc/sys/kernel/osrelease", release)

    def groups(self, *numbers: int, uid: int = CALLER) -> None:
        self.write("proc/self/status", STATUS.format(uid=uid, groups=" ".join(map(str, numbers))))

    def node(self, path: str) -> None:
        self.write(path, "")
        (self.root / path).chmod(0o660)

    def pci(self, chain: str, vendor: int, device: int, kind: int) -> Path:
        """A device at the end of a chain of addresses below a root complex."""
        folder = self.root / "sys/devices" / chain
        self.write(folder / "vendor", f"{vendor:#06x}")
        self.write(folder / "device", f"{device:#06x}")
        self.write(folder / "class", f"{kind:#08x}")
        self.link(f"sys/bus/pci/devices/{folder.name}", folder)
        return folder

    def width(self, folder: Path, lanes: int, speed: str = "16.0", most: int = 16, most_speed: str = "16.0") -> None:
        """The link of a device to what is above it."""
        for name, value in {"current": (lanes, speed), "max": (most, most_speed)}.items():
            self.write(folder / f"{name}_link_width", value[0])
            self.write(folder / f"{name}_link_speed", f"{value[1]} GT/s PCIe")

    def bar(self, folder: Path, size: int) -> None:
        start = 0x7800000000
        rest = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n" * 5
        self.write(folder / "resource", f"{start:#018x} {start + size - 1:#018x} 0x000000000014220c\n{rest}")

    def drive(self, folder: Path, driver: str) -> None:
        """Bind a device to a driver."""
        place = self.root / "sys/bus/pci/drivers" / driver
        place.mkdir(parents=True, exist_ok=True)
        self.link(folder / "driver", place)

    def topology(self, gpu: Path, version: int, simd: int, flags: int = 1) -> int:
        """Add a GPU to KFD; its number among the nodes."""
        minor = 128 + len(self.gpus)
        nodes = self.root / "sys/class/kfd/kfd/topology/nodes"
        number = len(list(nodes.iterdir()))
        bus = int(gpu.name.split(":")[1], 16)
        values = {"simd": simd, "version": version, "device": 0x744C, "location": bus << 8, "minor": minor}
        self.write(nodes / str(number) / "properties", GPU_NODE.format(**values))
        self.write(nodes / str(number) / "gpu_id", 51000 + number)
        self.write(nodes / str(number) / "io_links/0/properties", IO_LINK.format(node=number, flags=flags))
        (gpu / f"drm/renderD{minor}").mkdir(parents=True)
        self.link(gpu / f"drm/renderD{minor}/device", gpu)
        self.link(f"sys/class/drm/renderD{minor}", gpu / f"drm/renderD{minor}")
        self.node(f"dev/dri/renderD{minor}")
        self.gpus.append(gpu)
        return number

    def radeon(self, root_port: str, bus: int, version: int = 110000, vram: int = VRAM_7900XT) -> Path:
        """A Radeon card: a PCIe switch of its own between its slot and its GPU."""
        first, second, third = (f"0000:{bus + n:02x}:00.0" for n in range(3))
        upstream = self.pci(f"{root_port}/{first}", 0x1002, 0x1478, 0x060400)
        self.width(upstream, 16)
        downstream = self.pci(f"{root_port}/{first}/{second}", 0x1002, 0x1479, 0x060400)
        self.width(downstream, 16)
        gpu = self.pci(f"{root_port}/{first}/{second}/{third}", 0x1002, 0x744C, 0x030000)
        # The GPU's own link is the one to its switch: always whole, whatever the slot.
        self.width(gpu, 16)
        self.bar(gpu, 32 * GIB)
        self.write(gpu / "mem_info_vram_total", vram)
        self.write(gpu / "mem_info_vram_used", 27 << 20)
        self.drive(gpu, "amdgpu")
        self.topology(gpu, version, 168)
        for connector in ("DP-1", "HDMI-A-1"):
            self.connect(gpu, connector, connected=False)
        return gpu

    def connect(self, gpu: Path, connector: str, *, connected: bool) -> None:
        card = f"card{self.gpus.index(gpu)}"
        place = gpu / f"drm/{card}/{card}-{connector}"
        self.write(place / "status", "connected" if connected else "disconnected")
        self.write(place / "enabled", "enabled" if connected else "disabled")

    def compute(self, pid: int, gpu_id: int, memory: int, name: str = "python3") -> None:
        """A process that holds memory through KFD."""
        self.write(f"sys/class/kfd/kfd/proc/{pid}/vram_{gpu_id}", memory)
        self.write(f"proc/{pid}/comm", name)

    def draw(self, pid: int, file: int, client: int, gpu: Path, kib: int) -> None:
        """A process that holds memory through an open render node."""
        self.write(f"proc/{pid}/comm", "gnome-shell")
        self.write(f"proc/{pid}/fdinfo/{file}", FDINFO.format(client=client, address=gpu.name, kib=kib))


def none(root: Path) -> Tree:
    """A virtual machine with Ubuntu, without a GPU."""
    tree = Tree(root)
    tree.kernel("6.8.0-60-generic")
    tree.groups(4, 27, GROUP)
    tree.write("etc/os-release", 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.2 LTS"\n')
    tree.write("etc/group", f"root:x:0:\nadm:x:4:syslog\nsudo:x:27:\nrender:x:{GROUP or 992}:\n")
    tree.write("proc/cpuinfo", "processor\t: 0\nmodel name\t: AMD Ryzen Threadripper 7960X\n")
    tree.write("proc/meminfo", "MemTotal:       131072000 kB\n")
    tree.write("proc/cmdline", "BOOT_IMAGE=/vmlinuz-6.8.0-60-generic root=UUID=1b9d ro quiet splash iommu=pt")
    tree.write("proc/mounts", "sysfs /sys sysfs rw 0 0\ntmpfs /dev/shm tmpfs rw,nosuid,nodev,inode64 0 0\n")
    tree.write("proc/self/limits", LIMITS.format(limit="unlimited"))
    tree.write("proc/sys/kernel/yama/ptrace_scope", 0)
    tree.write("proc/sys/kernel/dmesg_restrict", 1)
    glibc = "\0GNU C Library (Ubuntu GLIBC 2.39-0ubuntu8.4) stable release version 2.39.\n"
    tree.write("usr/lib/x86_64-linux-gnu/libc.so.6", glibc)
    (root / "lib").symlink_to("usr/lib")
    tree.pci("pci0000:00/0000:00:01.0", 0x1AF4, 0x1041, 0x020000)
    return tree


def dual_7900xt(root: Path) -> Tree:
    """Two RX 7900 XT in two slots of a Threadripper, with the driver of ROCm 7.0 and the display on the first card."""
    tree = none(root)
    tree.write("sys/module/amdgpu/version", "6.14.14")
    for unit in ("ivhd0", "ivhd1"):
        tree.link(f"sys/class/iommu/{unit}", root / "sys/devices/virtual" / unit)
    tree.write("sys/class/kfd/kfd/topology/nodes/0/properties", CPU_NODE.format(links=2))
    tree.write("sys/class/kfd/kfd/topology/nodes/0/gpu_id", 0)
    tree.node("dev/kfd")
    for bus, port in ((0x01, "pci0000:00/0000:00:01.1"), (0x41, "pci0000:40/0000:40:01.1")):
        tree.width(tree.pci(port, 0x1022, 0x14AB, 0x060400), 16, most_speed="32.0")
        tree.radeon(port, bus)
    tree.write(tree.gpus[0] / "mem_info_vram_used", 812 << 20)
    tree.connect(tree.gpus[0], "DP-1", connected=True)
    return tree


def with_igpu(root: Path) -> Tree:
    """The same with the GPU inside a Ryzen, which KFD lists last."""
    tree = dual_7900xt(root)
    port = "pci0000:00/0000:00:08.1"
    tree.pci(port, 0x1022, 0x14DD, 0x060400)
    igpu = tree.pci(f"{port}/0000:11:00.0", 0x1002, 0x164E, 0x030000)
    tree.write(igpu / "mem_info_vram_total", 512 << 20)
    tree.write(igpu / "mem_info_vram_used", 12 << 20)
    tree.drive(igpu, "amdgpu")
    tree.topology(igpu, 100306, 4)
    return tree


def rx_9070xt(root: Path) -> Tree:
    """One RX 9070 XT (gfx1201)."""
    tree = none(root)
    tree.write("sys/module/amdgpu/version", "6.14.14")
    tree.write("sys/class/kfd/kfd/topology/nodes/0/properties", CPU_NODE.format(links=1))
    tree.write("sys/class/kfd/kfd/topology/nodes/0/gpu_id", 0)
    tree.node("dev/kfd")
    port = "pci0000:00/0000:00:01.1"
    tree.width(tree.pci(port, 0x1022, 0x14DB, 0x060400), 16, most_speed="32.0")
    tree.radeon(port, 0x01, version=120001, vram=16304 << 20)
    return tree


def wsl2(root: Path) -> Tree:
    """Ubuntu in WSL2 on a host whose Windows driver lends the GPU."""
    tree = none(root)
    tree.kernel("5.15.167.4-microsoft-standard-WSL2")
    tree.node("dev/dxg")
    tree.write("usr/lib/wsl/lib/libdxcore.so", "")
    tree.pci("pci0000:00/8f5a:00:00.0", 0x1414, 0x008E, 0x030200)
    return tree


def nvidia(root: Path) -> Tree:
    """A host with one NVIDIA card."""
    tree = none(root)
    port = "pci0000:00/0000:00:01.0"
    tree.pci(port, 0x8086, 0x460D, 0x060400)
    tree.drive(tree.pci(f"{port}/0000:01:00.0", 0x10DE, 0x2684, 0x030000), "nvidia")
    tree.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.133.07")
    return tree
