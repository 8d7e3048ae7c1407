"""Made-up AMD GPUs: the facts of two of them, and a tree of the driver's files."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.host.facts import GpuFacts

ADDRESSES = ("0000:03:00.0", "0000:0a:00.0")
KFD_IDS = (51001, 60002)


def a_gpu(index: int) -> GpuFacts:
    node = f"/dev/dri/renderD{128 + index}"
    return GpuFacts(
        index=index, gfx="gfx1100", name="RX 7900 XT", memory_bytes=20 << 30, render_node=node, kfd_id=KFD_IDS[index]
    )


SILENT_SECONDS = 60.0


@contextmanager
def silent(*files: Path) -> Iterator[None]:
    """Have reads of files of the driver not return, as of a GPU that hangs; for a minute only."""
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        os.mkfifo(file)

    def answer() -> None:
        for file in files:
            descriptor = os.open(file, os.O_RDWR)
            file.unlink()
            file.touch()
            os.close(descriptor)

    timer = threading.Timer(SILENT_SECONDS, answer)
    timer.start()
    try:
        yield
        assert timer.is_alive(), "it was waited for"
    finally:
        timer.cancel()
        timer.join()
        answer()


class Tree:
    """The driver's files of two GPUs; the first one has a screen."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for index, address in enumerate(ADDRESSES):
            self.write(index, "uevent", f"DRIVER=amdgpu\nPCI_CLASS=30000\nPCI_SLOT_NAME={address}\n")
            self.use_memory(index, 100 << 20)
            self.connect(index, "DP-1", "connected" if index == 0 else "disconnected")
            self.connect(index, "HDMI-A-1", "disconnected")

    def device(self, index: int) -> Path:
        return self.root / f"sys/class/drm/renderD{128 + index}/device"

    def write(self, index: int, name: str, text: str) -> None:
        file = self.device(index) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="ascii")

    def use_memory(self, index: int, used: int) -> None:
        self.write(index, "mem_info_vram_used", f"{used}\n")

    def connect(self, index: int, connector: str, status: str) -> None:
        self.write(index, f"drm/card{index}/card{index}-{connector}/status", f"{status}\n")

    def hold(self, index: int, pid: int, used: int) -> None:
        """Have a process hold memory, as KFD tells it."""
        folder = self.root / f"sys/class/kfd/kfd/proc/{pid}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"vram_{KFD_IDS[index]}").write_text(f"{used}\n", encoding="ascii")

    def kernel_says(self, *lines: str) -> None:
        """Have /dev/kmsg hold these lines, said long after now."""
        file = self.root / "dev/kmsg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"3,{n},{10**15},-;{line}\n" for n, line in enumerate(lines)), encoding="utf-8")
