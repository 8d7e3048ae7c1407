"""Which torch exists for which ROCm and Python: a lookup in `wheels.yaml`."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from packaging.version import Version

from harness.base.yaml_lines import read_yaml

INDEX = "https://download.pytorch.org/whl"
# As the harness itself: with older ones nothing is tested.
OLDEST_PYTHON = Version("3.11")


@dataclass(frozen=True)
class Release:
    """The platforms one torch version was built for."""

    torch: str
    rocm: tuple[str, ...]
    python: tuple[str, ...]


@dataclass(frozen=True)
class Size:
    """Budget for a stack, in GB."""

    download: float
    disk: float


@cache
def _table() -> Any:
    return read_yaml(Path(__file__).with_name("wheels.yaml")).data


@cache
def releases() -> dict[str, Release]:
    """Every known torch release by its version."""
    return {
        version: Release(version, tuple(row["rocm"]), tuple(row["python"]))
        for row in _table()["releases"]
        for version in row["torch"]
    }


def size(accelerator: str) -> Size:
    """Return the download and the disk space that installing a stack takes."""
    return Size(**_table()["sizes"][accelerator])


def missing_wheel(torch: str, rocm: str | None, python: str) -> str | None:
    """Why there is no such wheel and what exists instead, or None where there is one.

    `rocm` is None for a CPU wheel, which every release has.
    """
    release = releases().get(torch)
    if release is None:
        return f"torch {torch} is not a known release; known are {_listed(releases())}"
    if rocm is not None and rocm not in release.rocm:
        instead = [r.torch for r in releases().values() if rocm in r.rocm]
        offers = f"ROCm {rocm} has torch {_listed(instead)}" if instead else f"no torch was released for ROCm {rocm}"
        return f"torch {torch} has no wheel for ROCm {rocm}: it exists for ROCm {_listed(release.rocm)}, and {offers}"
    if python not in release.python:
        return f"torch {torch} has no wheel for Python {python}: it exists for Python {_listed(release.python)}"
    return None


def pythons_of(torch: str) -> tuple[str, ...]:
    """Return the Pythons from 3.11 on that a torch has wheels for, oldest first; none where it is not known."""
    release = releases().get(torch)
    versions = sorted(map(Version, release.python)) if release else []
    return tuple(str(version) for version in versions if version >= OLDEST_PYTHON)


def index_url(accelerator: str, rocm: str | None) -> str:
    """The PyTorch wheel index that holds the wheels of a platform."""
    return f"{INDEX}/rocm{rocm}" if accelerator == "rocm" else f"{INDEX}/cpu"


def _listed(versions: Iterable[str]) -> str:
    names = sorted(versions, key=Version)
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
