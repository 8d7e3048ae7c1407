"""Compatibility of drivers, kernels and GPUs with ROCm versions, from `compatibility.yaml`."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from packaging.version import Version

from harness.base.files.yaml_lines import read_yaml
from harness.matrix.stacks import Stack


@dataclass(frozen=True)
class Window:
    """A driver of AMD's packages, and the ROCm versions it is supported with, by major and minor."""

    module: str
    release: str
    first: str
    last: str

    def holds(self, rocm: str) -> bool:
        """Return whether a ROCm version is inside; its third number does not count."""
        minor = Version(".".join(rocm.split(".")[:2]))
        return Version(self.first) <= minor <= Version(self.last)

    @property
    def in_words(self) -> str:
        """Return what is supported."""
        return f"amdgpu driver {self.module} ({self.release}) is supported with ROCm {self.first} to {self.last}"


@dataclass(frozen=True)
class KernelReport:
    """The reports of users on a kernel with a GPU target.

    `fails`: it is a known cause of failures; `fix` is then the command that replaces it. `seen` names its sources.
    """

    fails: bool
    what: str
    seen: str
    fix: str | None


@cache
def _table() -> Any:
    return read_yaml(Path(__file__).with_name("compatibility.yaml")).data


def window_of(module: str) -> Window | None:
    """Return the window of a driver by the version of its module; None if it is unknown."""
    rows = (row for row in _table()["drivers"] if row["module"] == module)
    return next((Window(module, row["release"], *row["rocm"]) for row in rows), None)


def is_outside(module: str | None, stack: Stack | None) -> bool:
    """Return whether a driver is known not to be supported with the ROCm of a stack."""
    window = window_of(module) if module else None
    return bool(window and stack and stack.rocm and not window.holds(stack.rocm))


def kernel_report(kernel: str, gfx: str) -> KernelReport | None:
    """Return what is reported of a kernel with a GPU target; None if nothing is."""
    for row in _table()["kernels"]:
        if gfx in row["targets"] and re.search(row["pattern"], kernel):
            seen = f"{row['seen']} ({', '.join(row['sources'])})"
            return KernelReport(row["fails"], row["what"], seen, row.get("fix"))
    return None
