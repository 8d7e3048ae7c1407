"""A simulated host with two AMD GPUs."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.host.facts import GpuFacts
from harness.host.simulated import dual_7900xt

ADDRESSES = ("0000:03:00.0", "0000:43:00.0")
KFD_IDS = (51001, 51002)


def a_gpu(index: int) -> GpuFacts:
    node = f"/dev/dri/renderD{128 + index}"
    return GpuFacts(
        index=index, gfx="gfx1100", name="RX 7900 XT", memory_bytes=20 << 30, render_node=node, kfd_id=KFD_IDS[index]
    )


HANGING_SECONDS = 60.0


@contextmanager
def hanging_reads(*files: Path) -> Iterator[None]:
    """Make reads of the driver's files block, as they do when a GPU hangs; after a minute they return."""
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

    timer = threading.Timer(HANGING_SECONDS, answer)
    timer.start()
    try:
        yield
        assert timer.is_alive(), "it was waited for"
    finally:
        timer.cancel()
        timer.join()
        answer()


class TwoGpuHost:
    """A simulated host with two GPUs, which its methods name by their index; a screen is connected to GPU 0."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._host = dual_7900xt(root)
        for index in range(len(ADDRESSES)):
            self.use_memory(index, 100 << 20)

    def device(self, index: int) -> Path:
        return self.root / f"sys/class/drm/renderD{128 + index}/device"

    def write(self, index: int, name: str, text: str) -> None:
        self._host.write(self._host.gpus[index] / name, text)

    def use_memory(self, index: int, used: int) -> None:
        self.write(index, "mem_info_vram_used", f"{used}\n")

    def connect(self, index: int, connector: str, status: str) -> None:
        self._host.connect(self._host.gpus[index], connector, status)

    def hold(self, index: int, pid: int, used: int) -> None:
        """Let a process hold memory of a GPU, in the files where KFD reports it."""
        self._host.write(f"sys/class/kfd/kfd/proc/{pid}/vram_{KFD_IDS[index]}", used)

    def kernel_says(self, *lines: str) -> None:
        """Write lines into /dev/kmsg whose time is far in the future, so that they follow any reset."""
        text = "".join(f"3,{n},{10**15},-;{line}\n" for n, line in enumerate(lines))
        (self.root / "dev/kmsg").write_text(text, encoding="utf-8")
