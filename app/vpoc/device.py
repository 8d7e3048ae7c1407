"""The requested device: whether it is available, what it is, and how to clean it up."""

import os
import platform
from pathlib import Path
from typing import Any

import torch

from vpoc.errors import UserError


def require_device(name: str) -> torch.device:
    """Return the device `cpu` or `cuda`.

    UserError with exit code 3 when it is not available, because there is no fallback.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError(
            f"--device cuda: torch {torch.__version__} sees no GPU; check the driver, the device nodes and that this "
            "is a GPU build of torch, or ask for --device cpu",
            exit_code=3,
        )
    return torch.device(name)


def describe(device: torch.device, rank: int = 0) -> dict[str, Any]:
    """Return the facts of the device in use: rank, device, name, gfx target (None if it has none), memory in bytes."""
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        properties = torch.cuda.get_device_properties(index)
        return {
            "rank": rank,
            "device": f"cuda:{index}",
            "name": properties.name,
            "gfx": getattr(properties, "gcnArchName", None) if torch.version.hip else None,
            "memory_bytes": int(properties.total_memory),
        }
    return {
        "rank": rank,
        "device": "cpu",
        "name": _cpu_name(),
        "gfx": None,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def clean_up(device: torch.device, *, skip: bool) -> None:
    """Wait for a GPU and return its unused memory, unless `skip`."""
    if device.type == "cuda" and not skip:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
