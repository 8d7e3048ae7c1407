"""A stand-in for a host with AMD GPUs: a tree of files laid out as amdgpu and the kernel do it."""

import os
from pathlib import Path

HOST_PIDS = "pid:[4026531836]"
CONTAINER_PIDS = "pid:[4026532741]"
TOTAL = 20464 << 20


class FakeHost:
    """A host with AMD GPUs below the folder `root`, which stands for `/`."""

    def __init__(self, root: Path, pids: str = HOST_PIDS) -> None:
        self.root = root
        link = root / "proc/self/ns/pid"
        link.parent.mkdir(parents=True)
        link.symlink_to(pids)

    def write(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def card(self, index: int, address: str, used: int, total: int = TOTAL, *, node: bool = True) -> None:
        """Add card `index`; its render node is 128 + index, and its id in KFD is 1000 + index."""
        device = f"sys/devices/pci0000:00/{address}"
        self.write(f"{device}/mem_info_vram_used", f"{used}\n")
        self.write(f"{device}/mem_info_vram_total", f"{total}\n")
        self.write(f"{device}/gpu_busy_percent", "37\n")
        (self.root / device / f"drm/renderD{128 + index}").mkdir(parents=True)
        for name in (f"card{index}", f"renderD{128 + index}"):
            folder = self.root / "sys/class/drm" / name
            folder.mkdir(parents=True)
            (folder / "device").symlink_to(self.root / device)
        connector = self.root / f"sys/class/drm/card{index}-DP-1"
        connector.mkdir()
        (connector / "device").symlink_to(f"../card{index}")
        topology = f"sys/class/kfd/kfd/topology/nodes/{index + 1}"
        self.write(f"{topology}/properties", f"simd_count 192\ndrm_render_minor {128 + index}\n")
        self.write(f"{topology}/gpu_id", f"{1000 + index}\n")
        if node:
            self.write(f"dev/dri/renderD{128 + index}", "")

    def used(self, address: str, used: int) -> None:
        self.write(f"sys/devices/pci0000:00/{address}/mem_info_vram_used", f"{used}\n")

    def process(self, pid: int, name: str) -> None:
        self.write(f"proc/{pid}/comm", f"{name}\n")

    def kfd(self, pid: int, index: int, held: int) -> None:
        self.write(f"sys/class/kfd/kfd/proc/{pid}/vram_{1000 + index}", f"{held}\n")

    def fdinfo(self, pid: int, descriptor: int, address: str, client: int | None, *lines: str) -> None:
        identity = [f"drm-client-id:\t{client}"] if client is not None else []
        text = ["pos:\t0", "flags:\t02100002", "drm-driver:\tamdgpu", *identity, f"drm-pdev:\t{address}", *lines]
        self.write(f"proc/{pid}/fdinfo/{descriptor}", "\n".join(text) + "\n")


ME = os.getpid()
