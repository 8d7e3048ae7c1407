"""Compatibility of drivers, kernels and GPUs with ROCm versions, from `compatibility.yaml`."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from packaging.version import Version

from harness.base.yaml_lines import read_yaml


@dataclass(frozen=True)
class Window:
    """A driver of AMD's packages, and the ROCm versions it is supported with, by major and minor."""

    release: str
    first: str
    last: str

    def holds(self, rocm: str) -> bool:
        """Return whether a ROCm version is inside; its third number does not count."""
        minor = Version(".".join(rocm.split(".")[:2]))
        return Version(self.first) <= minor <= Version(self.last)


@dataclass(frozen=True)
class BadKernel:
    """The failures seen with a kernel, and the command that replaces it."""

    seen: str
    fix: str


@cache
def _table() -> Any:
    return read_yaml(Path(__file__).with_name("compatibility.yaml")).data


def window_of(module: str) -> Window | None:
    """Return the window of a driver by the version of its module; None if it is unknown."""
    return next((Window(row["release"], *row["rocm"]) for row in _table()["drivers"] if row["module"] == module), None)


def windows() -> tuple[Window, ...]:
    """Return every window, oldest driver first."""
    return tuple(Window(row["release"], *row["rocm"]) for row in _table()["drivers"])


def bad_kernel(kernel: str, gfx: str) -> BadKernel | None:
    """Return the known failures of a kernel with a GPU target; None if there are none."""
    for row in _table()["kernels"]:
        if gfx in row["targets"] and re.search(row["pattern"], kernel):
            return BadKernel(row["seen"], row["fix"])
    return None


def has_kernels(rocm: str, gfx: str) -> bool:
    """Return whether the PyTorch wheels of a ROCm version have kernels for a target that some wheels support."""
    return Version(rocm) >= Version(_table()["targets"].get(gfx, "0"))
