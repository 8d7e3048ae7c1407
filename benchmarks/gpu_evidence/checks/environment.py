"""The row about torch, the device and its driver: their facts, and whether the app and the driver agree."""

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu_evidence.finding import Finding, Kit, finding_or_differs
from vpoc.device import describe
from vpoc.gpu_memory.amdgpu import find_cards, memory_of
from vpoc.probes.site import Site

MEMORY_TOLERANCE = 0.02
"""Relative difference allowed: driver and runtime reserve some of a card's memory, and may or may not count it."""
TOOL_S = 20


def compare_facts(site: Site, _kit: Kit) -> Finding:
    """Compare the app's facts on the device with the driver's."""
    device = site.devices[0]
    said = describe(device)
    facts = facts_of(device.type)
    numbers = {
        **facts,
        "memory_told_by_the_app": said["memory_bytes"],
        "matmul_precision": torch.get_float32_matmul_precision(),
        "tf32_override": os.environ.get("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"),
    }
    memory = facts["memory_bytes"]
    right = bool(said["name"]) and abs(said["memory_bytes"] - memory) <= MEMORY_TOLERANCE * memory
    if device.type == "cuda" and torch.version.hip:
        right &= said["gfx"] is not None and any(said["gfx"].startswith(arch) for arch in torch.cuda.get_arch_list())
    text = f"{facts['name']}, {memory / 2**30:.1f} GiB by its driver ({facts['driver'] or 'driver unknown'})"
    return finding_or_differs(
        right, f"{text}, torch {torch.__version__}; the app says {said['memory_bytes'] / 2**30:.1f} GiB", numbers
    )


def facts_of(device: str) -> dict[str, Any]:
    """Return name, target, memory in bytes and versions, which stand at the top of the page."""
    there: dict[str, Any] = {
        "torch": str(torch.__version__),
        "hip": torch.version.hip,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "kernel": platform.release(),
        "gfx": None,
        "driver": None,
    }
    if device == "cpu":
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return there | {"name": f"CPU ({platform.machine()})", "memory_bytes": _meminfo() or memory}
    properties: Any = torch.cuda.get_device_properties(0)
    # Beside another vendor's GPU there may be one of AMD's for the screen, which must not be taken for it.
    cards = [told for card in find_cards() if (told := memory_of(card.folder))] if torch.version.hip else []
    total = cards[0].total_bytes if len(cards) == 1 else int(torch.cuda.mem_get_info(0)[1])
    there |= {"name": properties.name, "memory_bytes": total, "driver": _driver()}
    if torch.version.hip:
        there["gfx"] = properties.gcnArchName
    return there


def _meminfo() -> int | None:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return None


def _driver() -> str | None:
    """Return the version of the kernel's driver, from its tool or from sysfs; None if neither tells."""
    module = Path("/sys/module/amdgpu/version")
    if torch.version.hip and module.exists():
        return f"amdgpu {module.read_text(encoding='ascii').strip()}"
    if shutil.which("nvidia-smi"):
        words = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        told = subprocess.run(words, capture_output=True, text=True, timeout=TOOL_S, check=False).stdout.split()
        return f"nvidia {told[0]}" if told else None
    return f"amdgpu of Linux {platform.release()}" if Path("/sys/module/amdgpu").exists() else None
