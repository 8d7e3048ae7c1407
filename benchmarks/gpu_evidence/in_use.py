"""The check that a GPU is not in use by others, before a row that breaks it may run."""

import os
import shutil
import subprocess
import time
from pathlib import Path

from vpoc.gpu_memory.amdgpu import find_cards, owners

TOOL_S = 30
GONE_S = 5.0
IDLE_MIB = 1024
"""An unused GPU has less memory in use than this."""


def why_not(device: str, hip: str | None) -> str | None:
    """Return why nothing may be broken here: a display, another process, or no way to know; None if it may.

    `hip`: the version of HIP that torch was built for, or None for a torch built for CUDA.
    """
    if device == "cpu":
        return "needs a GPU"
    if hip:
        cards = find_cards()
        shown = [card.address for card in cards for path in card.folder.glob("drm/card*-*/status") if _connected(path)]
        others = _others_on_amd()
        return _reason(bool(cards), shown, others)
    if not shutil.which("nvidia-smi"):
        return "nobody can be asked whether a display or another process uses this GPU"
    displays = _asked("--query-gpu=display_active")
    shown = [line for line in displays if line.strip() not in ("Disabled", "[N/A]")]
    others = [pid for pid in _asked("--query-compute-apps=pid") if pid.strip() != str(os.getpid())]
    if not others and any(int(used) > IDLE_MIB for used in _asked("--query-gpu=memory.used") if used.isdigit()):
        others = ["not to be seen from here"]
    return _reason(bool(displays), shown, others)


def _others_on_amd() -> list[str]:
    """Return the processes that hold memory of a GPU; wait, because the driver lists an ended process for seconds."""
    until = time.monotonic() + GONE_S
    while others := [str(owner.pid) for owner in owners() if owner.pid != os.getpid()]:
        if time.monotonic() > until:
            break
        time.sleep(0.2)
    return others


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
    words = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=TOOL_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]
