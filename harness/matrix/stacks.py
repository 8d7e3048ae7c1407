"""The stacks of the matrix file: runtimes to install."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, Field, computed_field, model_validator
from pydantic.json_schema import SkipJsonSchema

from harness.base.urls import without_credentials
from harness.matrix.strict import ImageName, PathPart, Reason, Strict
from harness.matrix.wheels import (
    PYPI,
    PYTORCH,
    Release,
    Size,
    Source,
    hip_of,
    index_url,
    missing_wheel,
    pythons_of,
    release_of,
    size,
    wheel_sources,
)

# Debian bookworm, because newer glibc refuses libraries that ask for an executable stack, as older ROCm wheels do.
DEFAULT_BASE = "python:3.11-slim-bookworm"


def is_target(target: str) -> bool:
    """Return whether this may be the name of a GPU target, such as gfx1100."""
    return re.fullmatch(r"gfx[0-9a-f]{3,4}", target) is not None


def _sorted_targets(targets: tuple[str, ...]) -> tuple[str, ...]:
    for target in targets:
        if not is_target(target):
            raise ValueError(f"{target!r} is not a GPU target such as gfx1100")
    return tuple(sorted(set(targets)))


def _version(text: str) -> str:
    # What a version of Python's packaging may have besides, such as spaces, would be words of a shell in a Dockerfile.
    try:
        if re.fullmatch(r"[0-9][0-9A-Za-z.+_-]*", text):
            Version(text)
            return text
    except InvalidVersion:
        pass
    raise ValueError(f"{text!r} is not a version such as 2.9.1")


def check_mirrors(mirrors: dict[str, str]) -> dict[str, str]:
    """Check mirrors, and return them unchanged.

    Raises:
        ValueError: when a source is unknown, or a value is no URL.
    """
    for name, url in mirrors.items():
        if name not in (known := (*wheel_sources(), PYPI)):
            raise ValueError(f"there is no source {name!r} of wheels; known are {', '.join(known)}")
        if not re.match(r"(https?|file)://\S+$", url):
            raise ValueError(f"{name}: {url!r} is not a URL with https://, http:// or file://")
    return mirrors


Mirrors = Annotated[dict[str, str], AfterValidator(check_mirrors)]
VersionText = Annotated[str, AfterValidator(_version)]
Targets = Annotated[tuple[str, ...], AfterValidator(_sorted_targets)]
ExecutorName = Literal["process", "docker"]
Framework = Literal["torch", "jax", "tensorflow"]


def _executors(accelerator: object, jax: object, torch_from_base: object) -> tuple[ExecutorName, ...]:
    if torch_from_base:
        return ("docker",)
    return ("process",) if jax or accelerator == "any" else ("process", "docker")


class Stack(Strict):
    """A runtime to install. `accelerator: any` is the user's own interpreter, whose torch decides the accelerator."""

    name: SkipJsonSchema[PathPart] = ""
    accelerator: Literal["rocm", "cpu", "any"]
    framework: Framework = Field("torch", description="what makes the steps; beside `jax` torch does all else")
    jax: VersionText | None = None
    rocm: VersionText | None = None
    torch: VersionText | None = None
    python: VersionText = "3.11"
    source: str = Field(PYTORCH, description="where its wheels come from: a source of harness/matrix/wheels.yaml")
    targets: Targets = Field((), description="GPUs to install device code for, where that is packages of its own")
    mirror: SkipJsonSchema[str | None] = Field(None, description="in place of its source's URL")
    pypi: SkipJsonSchema[str | None] = Field(None, description="in place of PyPI, for what its source does not have")
    base: ImageName = DEFAULT_BASE
    torch_from_base: bool = Field(False, description="torch is in the base image; no wheel of it is installed")
    excluded: Reason | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_executors(cls, values: Any) -> Any:
        """Return the values without `executors:`, which files of earlier versions give.

        Raises:
            ValueError: when they differ from those that follow from the stack, which would silently be left out of
                runs.
        """
        if not isinstance(values, Mapping) or "executors" not in values:
            return values
        of_stack = _executors(*map(values.get, ("accelerator", "jax", "torch_from_base")))
        given = values["executors"]
        if not isinstance(given, list | tuple) or set(map(str, given)) != set(of_stack):
            raise ValueError(f"its executors follow from it: {', '.join(of_stack)}; leave `executors:` out")
        return {key: value for key, value in values.items() if key != "executors"}

    @model_validator(mode="after")
    def _exists(self) -> Self:
        if self.accelerator == "rocm" and self.rocm is None:
            raise ValueError("a rocm stack needs `rocm:`")
        if self.accelerator != "rocm" and self.rocm is not None:
            raise ValueError(f"a stack with accelerator {self.accelerator} has no `rocm:`")
        if self.framework == "tensorflow" and self.excluded is None:
            raise ValueError("tensorflow stacks cannot run here; give the reason as `excluded:`")
        if self.framework != "torch" and self.excluded:
            return self
        if (self.framework == "jax") != (self.jax is not None):
            raise ValueError("`framework: jax` and the version, `jax:`, go together")
        if self.jax and (self.torch_from_base or self.accelerator == "any"):
            raise ValueError("a jax stack needs a wheel of torch")
        if self.accelerator == "any":
            return self
        if self.torch is None:
            raise ValueError("a torch stack needs `torch:`")
        if self.torch_from_base:
            return self
        problem = missing_wheel(self.torch, self.rocm, self.python, self.source)
        if problem:
            raise ValueError(problem)
        if self.targets and self.origin.rocm != "packages":
            raise ValueError(f"source {self.source} has the code of every GPU in one wheel; leave `targets:` out")
        return self

    @computed_field  # type: ignore[prop-decorator]
    @property
    def executors(self) -> tuple[ExecutorName, ...]:
        """How it can be run: torch of a base image only in an image, the user's Python and JAX only as a process."""
        return _executors(self.accelerator, self.jax, self.torch_from_base)

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """The app's device, which follows from the accelerator."""
        return "cuda" if self.accelerator == "rocm" else "cpu"

    @property
    def pythons(self) -> tuple[str, ...]:
        """The Pythons that the stack can use as a process, oldest first: all that its torch has wheels for."""
        return pythons_of(self.torch, self.rocm, self.source) if self.torch else (self.python,)

    @property
    def origin(self) -> Source:
        """The source that the stack's wheels come from."""
        return wheel_sources()[self.source]

    @property
    def release(self) -> Release | None:
        """The release of the stack's torch in the table of wheels; None if the table has none."""
        return release_of(self.torch or "", self.rocm, self.source)

    @property
    def budget(self) -> Size:
        """The download and the disk space that installing the stack takes."""
        if self.torch_from_base and self.accelerator == "rocm":
            return size("base")
        packages = self.accelerator == "rocm" and self.origin.rocm == "packages"
        return self.origin.size or size("packages" if packages else self.accelerator)

    @property
    def index(self) -> str:
        """The URL of the wheel index that torch comes from: the source's own, or a mirror's."""
        url = index_url(self.accelerator, self.rocm, self.source, self.mirror)
        # Files that a page lists are resolved relative to it only if its URL ends with a slash.
        return f"{url.rstrip('/')}/" if self.origin.folder else url

    @property
    def shown_index(self) -> str | None:
        """The index without user name and password; None if no wheel of torch is installed."""
        installed = self.torch is not None and not self.torch_from_base
        return without_credentials(self.index) if installed else None

    @property
    def label(self) -> str:
        """The label of the version of the stack's torch, such as rocm6.3 or cpu."""
        return (self.release and self.release.label) or (f"rocm{self.rocm}" if self.rocm else "cpu")

    @property
    def hip(self) -> str | None:
        """The beginning of the stack's `torch.version.hip`, two numbers; None without ROCm."""
        return self.rocm and (hip_of(self.rocm) or ".".join(self.rocm.split(".")[:2]))

    @property
    def runtime(self) -> str:
        """The version that the build of the stack's image compares with `torch.version.hip`, or `cpu`."""
        return (self.rocm and hip_of(self.rocm)) or self.rocm or "cpu"

    @property
    def beside(self) -> tuple[str, ...]:
        """Requirements of the stack's GPU targets that are needed, although no package requires them."""
        named = self.origin.beside.items()
        wanted = [text for prefix, text in named if any(target.startswith(prefix) for target in self.targets)]
        return tuple(text.replace("{version}", f"{self.torch}+{self.label}") for text in wanted)
