"""How much GPU memory is in use, as the driver tells it: the view from outside a run."""

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

# A HIP or CUDA context with one small tensor takes more than this; a desktop's idle changes less.
USED_BYTES = 64 << 20


def memory_in_use(root: Path = Path("/")) -> dict[str, int]:
    """Bytes in use by GPU: AMD cards by their render node, NVIDIA ones by index."""
    used = {}
    for file in sorted(root.glob("sys/class/drm/renderD*/device/mem_info_vram_used")):
        used[f"/dev/dri/{file.parent.parent.name}"] = int(file.read_text(encoding="ascii"))
    return used or _nvidia()


def _nvidia() -> dict[str, int]:
    if not shutil.which("nvidia-smi"):
        return {}
    query = ["nvidia-smi", "--query-gpu=index,memory.used", "--format=csv,noheader,nounits"]
    answer = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False).stdout
    rows = (line.split(",") for line in answer.splitlines() if "," in line)
    return {f"nvidia{index.strip()}": int(mib) << 20 for index, mib in rows}


class GpuWatch:
    """Notes how far the memory in use rose above where it was before a run."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._before = memory_in_use(root)
        self._peak = dict(self._before)

    def sample(self) -> None:
        """Look once."""
        for gpu, used in memory_in_use(self._root).items():
            self._peak[gpu] = max(used, self._peak.get(gpu, 0))

    def used(self, gpus: Iterable[str] | None = None) -> int:
        """How many GPUs were used: of those named, or of all."""
        names = self._peak if gpus is None else gpus
        return sum(self._peak.get(g, 0) - self._before.get(g, 0) > USED_BYTES for g in names)
