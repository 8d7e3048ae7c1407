"""Sources of torch's wheels, and which wheels exist for which ROCm and Python: a lookup in `wheels.yaml`."""

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from datetime import date
from functools import cache
from pathlib import Path
from typing import Literal, Self

from packaging.version import Version
from pydantic import Field, model_validator

from harness.base.files.yaml_lines import read_yaml
from harness.base.wording import listed
from harness.matrix.strict import Strict

TABLE = Path(__file__).with_name("wheels.yaml")
# The source of every stack that names none.
PYTORCH = "pytorch"
# The place that everything but torch comes from. It is no source of torch, but a mirror can replace it, too.
PYPI = "pypi"
# The oldest Python that the harness supports; nothing is tested with older ones.
OLDEST_PYTHON = Version("3.11")
# From this ROCm version on, HIP has a version number of its own.
OWN_HIP = Version("10")


BudgetKind = Literal["cpu", "rocm", "packages", "base", "pypi", "any"]


class Size(Strict):
    """Budget for a stack, in GB."""

    download: float
    disk: float


class Source(Strict):
    """A place that has wheels of torch, and how to install them.

    In `url`, `{platform}` stands for `cpu` or e.g. `rocm6.3`, and `{rocm}` for the version alone.
    """

    description: str
    url: str
    rocm: Literal["inside", "packages"] = Field(description="in torch's wheel, or pip packages beside it")
    triton: str = Field(description="what the package is called, and where it is")
    strategy: Literal["first", "best"]
    said_by: tuple[str, ...] = Field(min_length=1, description="what was read, in place of the index itself")
    extra_of: Literal["rocm", "torch"] | None = Field(None, description="whose extra brings the device code")
    refuses: tuple[int, ...] = Field((), description="HTTP statuses that say that a package is not here")
    built: tuple[str, ...] = Field((), description="packages that exist only as source")
    size: Size | None = Field(None, description="where it is not that of its kind")
    beside: dict[str, str] = Field(
        {}, description="needed packages of GPU targets that begin so; nothing requires them"
    )
    folder: bool = Field(False, description="a page that lists files, not an index")

    @model_validator(mode="after")
    def _knows_its_device_code(self) -> Self:
        if (self.rocm == "packages") is not (self.extra_of is not None):
            raise ValueError("`extra_of:` goes with `rocm: packages`, and only with it")
        return self


class Release(Strict):
    """Versions of torch that a source has, and the platforms they were built for."""

    source: str = PYTORCH
    torch: tuple[str, ...]
    rocm: tuple[str, ...]
    python: tuple[str, ...]
    label: str | None = Field(None, description="of the version, where it is not rocm<ROCm>")


class Kernels(Strict):
    """The ROCm versions whose wheels have kernels for a GPU target; None means that no limit is known."""

    since: str | None = None
    until: str | None = None

    def of(self, rocm: str) -> bool:
        """Return whether the wheels of a ROCm version have these kernels."""
        later = self.until is not None and Version(rocm) > Version(self.until)
        return not later and Version(rocm) >= Version(self.since or "0")


class Wheels(Strict):
    """Everything that wheels.yaml says."""

    version: Literal[2] = Field(alias="schema")
    checked: date = Field(description="when its sources were last compared with what they are about")
    sources: dict[str, Source]
    releases: tuple[Release, ...]
    hip: dict[str, str] = Field(description="the beginning of torch.version.hip, where it is not ROCm's")
    targets: dict[str, Kernels] = Field(description="GPU targets that wheels have kernels for")
    sizes: dict[BudgetKind, Size]

    @model_validator(mode="after")
    def _refers_to_itself(self) -> Self:
        unknown = {release.source for release in self.releases} - self.sources.keys()
        if unknown:
            raise ValueError(f"releases of sources that are not listed: {', '.join(sorted(unknown))}")
        pairs = Counter((one.source, torch, rocm) for one in self.releases for torch in one.torch for rocm in one.rocm)
        if twice := [f"torch {torch} for ROCm {rocm}" for (_, torch, rocm), count in pairs.items() if count > 1]:
            raise ValueError(f"released twice by one source: {', '.join(twice)}")
        later = {_series(rocm) for _, _, rocm in pairs if Version(rocm) >= OWN_HIP}
        if later != self.hip.keys():
            raise ValueError(f"`hip:` should name ROCm {_listed(later)}, of which there are releases")
        return self


@cache
def load_wheels(file: Path = TABLE) -> Wheels:
    """Read a table of wheels, once.

    Raises:
        pydantic.ValidationError: when it has an unknown key, or refers to a source that it does not list.
    """
    return Wheels.model_validate(read_yaml(file).data)


def wheel_sources() -> Mapping[str, Source]:
    """Return every source by its name."""
    return load_wheels().sources


def release_of(torch: str, rocm: str | None, source: str) -> Release | None:
    """Return a source's release that has a torch for a ROCm version (None: for CPUs); None if there is none."""
    releases = (one for one in load_wheels().releases if one.source == source and torch in one.torch)
    return next((one for one in releases if rocm is None or rocm in one.rocm), None)


def hip_of(rocm: str) -> str | None:
    """Return the beginning of `torch.version.hip` for a ROCm version; None if it is that of ROCm itself."""
    return load_wheels().hip.get(_series(rocm))


def supported_targets() -> Set[str]:
    """Return the GPU targets that at least some of torch's wheels have kernels for."""
    return load_wheels().targets.keys()


def has_kernels(rocm: str, target: str) -> bool:
    """Return whether torch's wheels for a ROCm version have kernels for a GPU target."""
    kernels = load_wheels().targets.get(target)
    return kernels is not None and kernels.of(rocm)


def size(kind: BudgetKind) -> Size:
    """Return the download and disk space that a kind of stack takes; for packages, with those of one GPU target."""
    return load_wheels().sizes[kind]


def missing_wheel(torch: str, rocm: str | None, python: str, source: str = PYTORCH) -> str | None:
    """Return why a wheel does not exist and what exists instead; None if it exists.

    `rocm` is None for a CPU wheel, which every release from PyTorch has.
    """
    if source not in wheel_sources():
        return f"there is no source {source!r} of wheels; known are {', '.join(wheel_sources())}"
    mine = [release for release in load_wheels().releases if release.source == source]
    of_torch = [release for release in mine if torch in release.torch]
    where = "" if source == PYTORCH else f" of source {source}"
    if not of_torch:
        known = {version for release in mine for version in release.torch}
        return f"torch {torch} is not a known release{where}; known are {_listed(known)}{_elsewhere(torch, rocm)}"
    release = release_of(torch, rocm, source)
    if release is None:
        instead = {version for one in mine if rocm in one.rocm for version in one.torch}
        offers = f"ROCm {rocm} has torch {_listed(instead)}" if instead else f"no torch was released for ROCm {rocm}"
        exists = _listed(version for one in of_torch for version in one.rocm)
        no_wheel = f"torch {torch} has no wheel{where} for ROCm {rocm}: it exists for ROCm {exists}, and {offers}"
        return no_wheel + _elsewhere(torch, rocm)
    if python not in release.python:
        return f"torch {torch} has no wheel{where} for Python {python}: it exists for Python {_listed(release.python)}"
    return None


def pythons_of(torch: str, rocm: str | None, source: str) -> tuple[str, ...]:
    """Return the Pythons from 3.11 on that a torch has wheels for, oldest first; empty if the torch is unknown."""
    release = release_of(torch, rocm, source)
    versions = sorted(map(Version, release.python)) if release else []
    return tuple(str(version) for version in versions if version >= OLDEST_PYTHON)


def index_url(accelerator: str, rocm: str | None, source: str = PYTORCH, mirror: str | None = None) -> str:
    """Return the URL with the wheels of a platform: the source's own, or a mirror's."""
    platform = f"rocm{rocm}" if accelerator == "rocm" else "cpu"
    return (mirror or wheel_sources()[source].url).replace("{platform}", platform).replace("{rocm}", rocm or "")


def _series(rocm: str) -> str:
    return ".".join(rocm.split(".")[:2])


def _elsewhere(torch: str, rocm: str | None) -> str:
    """Return the end of a sentence that names a source with exactly that pair; empty if there is none."""
    having = [name for name in wheel_sources() if release_of(torch, rocm, name) and rocm is not None]
    return f"; `source: {having[0]}` has it" if having else ""


def _listed(versions: Iterable[str]) -> str:
    ordered = sorted(set(versions), key=Version)
    return listed(ordered)
