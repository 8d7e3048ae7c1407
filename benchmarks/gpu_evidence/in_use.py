"""Is a GPU in use by others? What breaks it must not be run then."""

import os
import shutil
import subprocess
from pathlib import Path

from vpoc.gpu_memory.amdgpu import find_cards, owners

TOOL_S = 30


def why_not(device: str, hip: str | None) -> str | None:
    """Return why nothing may be broken here: a display, another process, or nobody to ask; None when it may.

    `hip`: version of HIP that torch was built for, None where it was built for CUDA.
    """
    if device == "cpu":
        return "needs a GPU"
    if hip:
        cards = find_cards()
        shown = [card.address for card in cards for path in card.folder.glob("drm/card*-*/status") if _connected(path)]
        others = [str(owner.pid) for owner in owners() if owner.pid != os.getpid()]
        return _reason(bool(cards), shown, others)
    if not shutil.which("nvidia-smi"):
        return "nobody can be asked whether a display or another process uses this GPU"
    shown = [line for line in _asked("--query-gpu=display_active") if line.strip() != "Disabled"]
    others = [pid for pid in _asked("--query-compute-apps=pid") if pid.strip() != str(os.getpid())]
    return _reason(True, shown, others)


def _reason(known: bool, shown: list[str], others: list[str]) -> str | None:
    if not known:
        return "nobody can be asked whether a display or another process uses this GPU"
    if shown:
        return f"a display is connected ({', '.join(shown)})"
    return f"other processes hold the GPU ({', '.join(others)})" if others else None


def _connected(path: Path) -> bool:
    try:
        return path.read_text(encoding="ascii").strip() == "connected"
    except OSError:
        return False


def _asked(query: str) -> list[str]:
    words = ["nvidia-smi", query, "--format=csv,noheader"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=TOOL_S, check=False)
    return [line for line in done.stdout.splitlines() if line.strip()]
