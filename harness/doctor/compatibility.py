"""The compatibility of drivers, kernels and GPUs with ROCm versions, read from `compatibility.yaml`."""

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
    """A driver of AMD's packages, and the range of ROCm versions that it supports, as major.minor.

    `ends`: whether later ROCm versions are known not to be supported; False where AMD's table lists no later ones.
    """

    module: str
    release: str
    first: str
    last: str
    ends: bool

    def holds(self, rocm: str) -> bool:
        """Return whether a ROCm version is in the range; its third number is ignored."""
        return Version(self.first) <= _minor(rocm) <= Version(self.last)

    def excludes(self, rocm: str) -> bool:
        """Return whether a ROCm version is known not to be supported."""
        return _minor(rocm) < Version(self.first) or (self.ends and _minor(rocm) > Version(self.last))

    @property
    def in_words(self) -> str:
        """Return the supported range as a sentence."""
        return f"amdgpu driver {self.module} ({self.release}) is supported with ROCm {self.first} to {self.last}"


@dataclass(frozen=True)
class KernelReport:
    """The reports of users about a kernel with a GPU target.

    `fails`: whether the kernel is a known cause of failures.
    `what`: the verdict on the kernel, in words.
    `seen`: the details, with the sources.
    `fix`: the command that installs another kernel; None if none is known.
    """

    fails: bool
    what: str
    seen: str
    fix: str | None


def _minor(rocm: str) -> Version:
    return Version(".".join(rocm.split(".")[:2]))


@cache
def _table() -> Any:
    return read_yaml(Path(__file__).with_name("compatibility.yaml")).data


def window_of(module: str) -> Window | None:
    """Return the window of the driver with this module version; None if it is unknown."""
    table = _table()
    rows = [row for row in table["drivers"] if row["module"] == module]
    if not rows:
        return None
    first, last = rows[0]["rocm"]
    return Window(module, rows[0]["release"], first, last, ends=Version(last) < Version(table["listed_to"]))


def is_outside(module: str | None, stack: Stack | None) -> bool:
    """Return whether a driver, whose window is known, is not known to support the ROCm version of a stack."""
    window = window_of(module) if module else None
    return bool(window and stack and stack.rocm and not window.holds(stack.rocm))


def is_excluded(module: str | None, stack: Stack) -> bool:
    """Return whether a driver is known not to support the ROCm version of a stack."""
    window = window_of(module) if module else None
    return bool(window and stack.rocm and window.excludes(stack.rocm))


def kernel_report(kernel: str, gfx: str) -> KernelReport | None:
    """Return what is reported about a kernel with a GPU target; None if nothing is."""
    for row in _table()["kernels"]:
        if gfx in row["targets"] and re.search(row["pattern"], kernel):
            seen = f"{row['seen']} ({', '.join(row['sources'])})"
            return KernelReport(row["fails"], row["what"], seen, row.get("fix"))
    return None
