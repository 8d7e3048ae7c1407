"""Reads from the driver which processes hold memory on which GPU, as seen from outside a run."""

import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path

from harness.base.sysfs import is_simulated, read_text
from harness.base.time_limits import BackgroundCall

# A GPU counts as used above this, in bytes: a HIP or CUDA context with one small tensor takes more.
USED_BYTES = 16 << 20
QUERY = ("nvidia-smi", "--query-compute-apps=pid,gpu_uuid,used_memory", "--format=csv,noheader,nounits")
QUERY_SECONDS = 10

ByProcess = Mapping[int, Mapping[str, int]]


def memory_by_process(root: Path) -> ByProcess:
    """Return the bytes held, by pid and GPU: AMD GPUs by the driver's id (`kfd_id`), NVIDIA GPUs by UUID.

    Values that cannot be read count as zero, because an unhealthy GPU must not stop a run from being watched.
    """
    return kfd_memory(root) or ({} if is_simulated(root) else _nvidia())


def kfd_memory(root: Path) -> ByProcess:
    """Return the same for AMD GPUs only.

    The format is that of drivers/gpu/drm/amd/amdkfd/kfd_process.c: `proc/<pid>/vram_<gpu id>`, in bytes.
    """
    held: dict[int, dict[str, int]] = defaultdict(dict)
    for file in root.glob("sys/class/kfd/kfd/proc/[0-9]*/vram_*"):
        try:
            held[int(file.parent.name)][file.name.removeprefix("vram_")] = int(read_text(file) or "")
        except ValueError:
            continue
    return held


def _nvidia() -> ByProcess:
    held: dict[int, dict[str, int]] = defaultdict(dict)
    if shutil.which(QUERY[0]):
        try:
            answer = subprocess.run(QUERY, capture_output=True, text=True, timeout=QUERY_SECONDS, check=True).stdout
            for row in answer.splitlines():
                pid, gpu, mib = (field.strip() for field in row.split(","))
                held[int(pid)][gpu] = int(mib) << 20
        except (OSError, ValueError, subprocess.SubprocessError):
            return {}
    return held


class GpuWatch:
    """Notes on how many GPUs a run's own processes held memory. `given`: the GPUs that count; None for any GPU."""

    def __init__(self, given: Collection[str] | None, root: Path) -> None:
        self._given = given
        self._root = root
        self._held: set[str] = set()
        self._look: BackgroundCall[None] | None = None

    def look(self, of_run: Callable[[int], bool]) -> None:
        """Call `sample` in the background, unless the last call still waits for the driver; this takes no time here."""
        if self._look is None or self._look.done:
            self._look = BackgroundCall(partial(self.sample, of_run))

    def sample(self, of_run: Callable[[int], bool]) -> None:
        """Note the GPUs on which processes of the run hold memory. `of_run`: says whether a pid belongs to the run."""
        for pid, held in memory_by_process(self._root).items():
            counted = {
                gpu for gpu, used in held.items() if used > USED_BYTES and (self._given is None or gpu in self._given)
            }
            if counted - self._held and of_run(pid):
                self._held |= counted

    @property
    def used(self) -> int:
        """The number of GPUs that were seen in use so far."""
        return len(self._held)
