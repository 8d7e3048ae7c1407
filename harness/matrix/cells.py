"""matrix.yaml as typed values, and its expansion into cells. Pure: reading the file is in `matrix_file`."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from harness.base.urls import without_credentials
from harness.matrix.clusters import Cluster
from harness.matrix.programs import Program
from harness.matrix.stages import CampaignStage
from harness.matrix.strategies import OVER_A_BACKEND, ModelKind, Strategy
from harness.matrix.variable_names import Variables
from harness.matrix.wheels import (
    PYPI,
    PYTORCH,
    Size,
    Source,
    index_url,
    missing_wheel,
    pythons_of,
    release_of,
    size,
    wheel_sources,
)

# What the app's features look back over.
SHORTEST_LOOKBACK = 20

# Debian bookworm: newer glibc refuses libraries that ask for an executable stack, as those of older ROCm wheels do.
DEFAULT_BASE = "python:3.11-slim-bookworm"


def _distinct(devices: tuple[int, ...]) -> tuple[int, ...]:
    if not devices or min(devices) < 0 or len(set(devices)) < len(devices):
        raise ValueError("`devices:` names different GPUs, by numbers from 0 on; leave it out for any")
    return devices


def _sorted_targets(targets: tuple[str, ...]) -> tuple[str, ...]:
    for target in targets:
        if not re.fullmatch(r"gfx[0-9a-f]{3,4}", target):
            raise ValueError(f"{target!r} is not a GPU target such as gfx1100")
    return tuple(sorted(set(targets)))


def known_mirrors(mirrors: dict[str, str]) -> dict[str, str]:
    """Return mirrors as they are.

    Raises:
        ValueError: where one is of a source that there is not, or no URL.
    """
    for name, url in mirrors.items():
        if name not in (known := (*wheel_sources(), PYPI)):
            raise ValueError(f"there is no source {name!r} of wheels; known are {', '.join(known)}")
        if not re.match(r"(https?|file)://\S+$", url):
            raise ValueError(f"{name}: {url!r} is not a URL with https://, http:// or file://")
    return mirrors


Mirrors = Annotated[dict[str, str], AfterValidator(known_mirrors)]
Targets = Annotated[tuple[str, ...], AfterValidator(_sorted_targets)]
Devices = Annotated[tuple[int, ...], AfterValidator(_distinct)]
Positive = Annotated[int, Field(ge=1)]
Layer = Annotated[int, Field(ge=1, le=65536)]


def _number_or_auto(value: object) -> object:
    # One message instead of one for each half of the union.
    if value == "auto" or (isinstance(value, int) and value > 0 and value is not True):
        return value
    raise ValueError(f"{value!r} is not a number from 1 on, nor auto")


MicroBatch = Annotated[Positive | Literal["auto"], BeforeValidator(_number_or_auto)]
AcceptedRule = Annotated[str, AfterValidator(lambda name: name.replace("-", "_"))]
Reason = Annotated[str, Field(min_length=10)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")]
ExecutorName = Literal["process", "docker"]
Framework = Literal["torch", "jax", "tensorflow"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Stack(_Strict):
    """A runtime to install. `accelerator: any` is the user's own interpreter, whose torch decides."""

    name: SkipJsonSchema[str] = ""
    accelerator: Literal["rocm", "cpu", "any"]
    framework: Framework = Field("torch", description="what makes the steps; beside `jax` torch does all else")
    jax: str | None = None
    rocm: str | None = None
    torch: str | None = None
    python: str = "3.11"
    source: str = Field(PYTORCH, description="where its wheels come from: a source of harness/matrix/wheels.yaml")
    targets: Targets = Field((), description="GPUs to install device code for, where that is packages of its own")
    mirror: SkipJsonSchema[str | None] = Field(None, description="in place of its source's URL")
    pypi: SkipJsonSchema[str | None] = Field(None, description="in place of PyPI, for what its source does not have")
    base: str = DEFAULT_BASE
    torch_from_base: bool = Field(False, description="torch is in the base image; no wheel of it is installed")
    executors: tuple[ExecutorName, ...] = ("process", "docker")
    excluded: Reason | None = None

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
        if self.jax and (self.executors != ("process",) or self.torch_from_base or self.accelerator == "any"):
            raise ValueError("a jax stack has a wheel of torch, and `executors: [process]`")
        if self.accelerator == "any":
            return self
        if self.torch is None:
            raise ValueError("a torch stack needs `torch:`")
        if self.torch_from_base:
            if "process" in self.executors:
                raise ValueError("a stack whose torch is in the base image has `executors: [docker]`")
            return self
        problem = missing_wheel(self.torch, self.rocm, self.python, self.source)
        if problem:
            raise ValueError(problem)
        if self.targets and self.origin.rocm != "packages":
            raise ValueError(f"source {self.source} has the code of every GPU in one wheel; leave `targets:` out")
        return self

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """The app's device: the accelerator fixes it."""
        return "cuda" if self.accelerator == "rocm" else "cpu"

    @property
    def pythons(self) -> tuple[str, ...]:
        """The Pythons it can take as a process, oldest first: all that its torch has wheels for. Its image has one."""
        return pythons_of(self.torch, self.rocm, self.source) if self.torch else (self.python,)

    @property
    def origin(self) -> Source:
        """The source its wheels come from."""
        return wheel_sources()[self.source]

    @property
    def budget(self) -> Size:
        """The download and the disk space that installing it takes."""
        if self.torch_from_base and self.accelerator == "rocm":
            return size("base")
        release = release_of(self.torch or "", self.rocm, self.source)
        packages = self.accelerator == "rocm" and self.origin.rocm == "packages"
        return (release and release.size) or size("packages" if packages else self.accelerator)

    @property
    def index(self) -> str:
        """The URL of the wheel index that torch comes from: the source's own, or a mirror's."""
        url = index_url(self.accelerator, self.rocm, self.source, self.mirror)
        # What a page lists is beside it only where its URL ends so.
        return f"{url.rstrip('/')}/" if self.origin.folder else url

    @property
    def shown_index(self) -> str | None:
        """The index as it may be shown, without name and password; None where no wheel of torch is installed."""
        installed = self.torch is not None and not self.torch_from_base
        return without_credentials(self.index) if installed else None

    @property
    def label(self) -> str:
        """The label of its torch's version, such as rocm6.3 or cpu."""
        release = release_of(self.torch or "", self.rocm, self.source)
        return (release and release.label) or (f"rocm{self.rocm}" if self.rocm else "cpu")

    @property
    def hip(self) -> str | None:
        """The beginning of its `torch.version.hip`, two numbers; None without ROCm."""
        release = release_of(self.torch or "", self.rocm, self.source)
        series = ".".join(self.rocm.split(".")[:2]) if self.rocm else None
        return (release and release.hip) or series

    @property
    def runtime(self) -> str:
        """The version that the build of its image compares `torch.version.hip` with, or `cpu`."""
        release = release_of(self.torch or "", self.rocm, self.source)
        return (release and release.hip) or self.rocm or "cpu"

    @property
    def beside(self) -> tuple[str, ...]:
        """The requirements of its GPU targets that no package has, though they are needed."""
        release = release_of(self.torch or "", self.rocm, self.source)
        named = release.beside.items() if release else ()
        wanted = [text for prefix, text in named if any(target.startswith(prefix) for target in self.targets)]
        return tuple(text.replace("{version}", f"{self.torch}+{self.label}") for text in wanted)


class Preset(_Strict):
    """Environment variables. `features` and `train` are added for one phase, which then is a process of its own."""

    name: SkipJsonSchema[str] = ""
    description: str
    variables: Variables = {}
    features: Variables = {}
    train: Variables = {}
    devices: Devices | None = None
    source: str | None = None

    @property
    def phases(self) -> tuple[Literal["features", "train"], ...]:
        """The processes a run of this preset consists of."""
        return ("features", "train") if self.features or self.train else ("train",)

    def variables_of(self, phase: Literal["features", "train"]) -> dict[str, str]:
        """The variables the process of a phase is started with."""
        return {**self.variables, **getattr(self, phase)}


class SyntheticData(_Strict):
    """The bars that `vpoc synth` makes: the same bytes on every machine."""

    sessions: int = Field(ge=1)
    seed: int = 7


# The keys of a workload that are about a program, too; and what is asked of the app in every one.
OF_PROGRAMS = frozenset({"name", "description", "program", "strategy", "threads", "time_limit", "smoke_test"})
APP_NEEDS: Mapping[str, Any] = {"synthetic": {"sessions": 1}, "epochs": 1}


class Workload(_Strict):
    """The work of a run: the app's arguments, its data, and how long it may take. Null is left to the app.

    With a `program` that is run in place of the app, which then has no options.
    """

    name: SkipJsonSchema[str] = ""
    description: str
    program: Program | None = Field(None, description="of your own, run in place of the app; nothing is promoted by it")
    synthetic: SyntheticData
    rows: Literal["bar", "session"] = "bar"
    as_of: Literal["close", "open"] | None = None
    target: Literal["up_30", "prior_vpoc_touched", "next_up", "next_vpoc_touched"] | None = None
    lookback: int = Field(60, ge=SHORTEST_LOOKBACK)
    model: tuple[ModelKind, ...] = Field(
        ("mlp",), description="trained in turn in one process; the last is the main one"
    )
    epochs: int = Field(ge=1)
    batch_size: int = Field(64, ge=1, description="samples of an optimizer step, over all devices")
    micro_batch_size: MicroBatch | None = None
    learning_rate: float = Field(0.001, gt=0, le=1)
    weight_decay: float | None = Field(None, ge=0, le=1)
    clip_norm: float | None = Field(None, ge=0)
    schedule: Literal["constant", "linear", "cosine"] | None = None
    keep: Literal["best", "last"] = Field("last", description="the epoch whose weights are the model's")
    patience: int = Field(0, ge=0, description="epochs without a better one after which it ends; 0: makes all of them")
    hidden_layers: tuple[Layer, ...] = (32, 16)
    use_mixed_precision: bool = False
    mixed_precision_dtype: Literal["float16", "bfloat16"] | None = None
    sdpa: Literal["auto", "math", "flash", "efficient"] = "auto"
    activation_checkpointing: bool = False
    data_fraction: float = Field(1.0, gt=0, le=1)
    chunk_size: int = Field(50, ge=1)
    chunk_rows: Positive | None = Field(None, description="train from disk, so many rows at a time")
    placement: Literal["uniform", "close", "typical", "ticks"] | None = None
    value_area: Literal["two_row", "one_row"] | None = None
    rth_close: Literal["16:00", "16:15"] | None = None
    rolls: Literal["auto", "column", "calendar", "none"] | None = None
    accepted: tuple[AcceptedRule, ...] | None = Field(
        None, description="rules of `vpoc check` that the user's data may break, as its --accept"
    )
    vpoc_path: Literal["cpu", "naive", "chunked", "preallocated", "pooled"] = "cpu"
    loop: Literal["plain", "resident"] = "plain"
    loader_workers: int = Field(2, ge=0, le=64)
    strategy: Strategy = "single"
    backend: Literal["gloo", "nccl"] | None = None
    seed: int = Field(7, ge=0, lt=2**63)
    threads: int = Field(1, ge=1, le=1024)
    time_limit: int = Field(description="seconds", ge=1)
    max_device_memory: Positive | None = Field(None, description="bytes in use on a GPU above which a run fails")
    smoke_test: bool = Field(
        False, description="whether it only shows that a cell works at all: it qualifies for nothing"
    )

    @model_validator(mode="before")
    @classmethod
    def _program_alone(cls, values: Any) -> Any:
        if not isinstance(values, Mapping) or values.get("program") is None:
            return values
        if ignored := sorted(set(values) - OF_PROGRAMS - APP_NEEDS.keys()):
            raise ValueError(f"`{ignored[0]}:` is the app's, which `program:` takes the place of; leave it out")
        return {**APP_NEEDS, **values}

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> Self:
        if not self.model:
            raise ValueError("`model:` names none")
        if self.backend and self.strategy not in OVER_A_BACKEND:
            raise ValueError(f"strategy {self.strategy} uses no backend; leave `backend:` out")
        if self.mixed_precision_dtype and not self.use_mixed_precision:
            raise ValueError("`mixed_precision_dtype:` needs `use_mixed_precision: true`")
        return self

    @property
    def qualifies_for_promotion(self) -> bool:
        """True if a completed run speaks for a stack."""
        return not self.smoke_test and qualifies_for_promotion(self.model_dump())


def qualifies_for_promotion(options: Mapping[str, Any]) -> bool:
    """Return whether a completed run with these options of the app speaks for a stack.

    Only what failed for the user can show that it no longer does. That was the plain loop (a copy to the device in each
    step, loader workers) on data in memory, after the VPOC phase had used the device. A resident loop, chunks from the
    disk and profiles on the CPU leave that out. A training that may end early says less than its epochs promise, and
    the last weights are those that every step went into.
    """
    in_memory = options.get("chunk_rows") is None
    all_of_it = options.get("keep", "last") == "last" and not options.get("patience")
    on_the_device = options.get("vpoc_path", "cpu") != "cpu"
    return options.get("loop") == "plain" and in_memory and on_the_device and all_of_it


class Exclusion(_Strict):
    """Cells that are not run, and why. Every key given must match; version keys are specifiers such as `<2.12`."""

    stack: str | None = None
    preset: str | None = None
    accelerator: Literal["rocm", "cpu", "any"] | None = None
    rocm: str | None = None
    torch: str | None = None
    reason: Reason

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not any((self.stack, self.preset, self.accelerator, self.rocm, self.torch)):
            raise ValueError("an exclusion without a key to match would exclude everything")
        for specifier in (self.rocm, self.torch):
            SpecifierSet(specifier or "")
        return self

    def matches(self, stack: Stack, preset: Preset) -> bool:
        """Return whether every key that is given holds for the cell."""
        exact = ((self.stack, stack.name), (self.preset, preset.name), (self.accelerator, stack.accelerator))
        ranges = ((self.rocm, stack.rocm), (self.torch, stack.torch))
        return all(wanted is None or wanted == value for wanted, value in exact) and all(
            wanted is None or (value is not None and Version(value) in SpecifierSet(wanted)) for wanted, value in ranges
        )


class Selection(_Strict):
    """A named part of the matrix: every listed stack with every listed preset."""

    name: SkipJsonSchema[str] = ""
    description: str
    stacks: tuple[str, ...] | Literal["all"]
    presets: tuple[str, ...] | Literal["all"]
    reasons: dict[str, Reason] = Field({}, description="stack -> why it is in it, and where")
    workload: str = "quick"


class TwoGpus(_Strict):
    """A step of the order in which stacks go on to two GPUs. A version stands for every one that begins so."""

    rocm: tuple[str, ...]
    always: bool = Field(False, description="goes on to two GPUs whatever time is left")
    last_without_atomics: bool = Field(False, description="comes last where the GPUs' slots lack PCIe atomics")
    reason: Reason

    def holds(self, rocm: str) -> bool:
        """Return whether a ROCm version is one of its own."""
        return any(rocm == own or rocm.startswith(f"{own}.") for own in self.rocm)


class MtbfHours(_Strict):
    """Mean times between failures that a lower bound must exceed, in hours; 0 asks for none."""

    candidate: float = Field(0.25, ge=0)
    good: float = Field(1.0, ge=0)
    known_good: float = Field(3.0, ge=0)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.candidate <= self.good <= self.known_good:
            raise ValueError("thresholds must rise: candidate <= good <= known_good")
        return self


class Verdicts(_Strict):
    """The thresholds of verdicts: shares of starts that a lower bound must exceed, and mean times between failures.

    `confidence` is that of each bound; `known_good_boots` on how many boots the runs of a known-good cell were made.
    """

    candidate: float = Field(0.5, gt=0, lt=1)
    good: float = Field(0.8, gt=0, lt=1)
    known_good: float = Field(0.9, gt=0, lt=1)
    confidence: float = Field(0.95, gt=0, lt=1)
    mtbf_hours: MtbfHours = MtbfHours()
    known_good_boots: int = Field(2, ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.candidate < self.good < self.known_good:
            raise ValueError("thresholds must rise: candidate < good < known_good")
        return self


SignatureRule = Literal["ask", "refuse", "accept"]


class SignerPolicy(_Strict):
    """Whose signature of a known-good tag in a registry is enough: the user's own and those listed always are.

    `unknown`: what to do about a key that is not known; `unsigned`: about a tag that nobody signed. Where nobody can be
    asked, `ask` refuses.
    """

    keys: dict[Name, str] = Field({}, description="name -> public key, as `matrix keys` prints it")
    unknown: SignatureRule = "ask"
    unsigned: SignatureRule = "ask"


@dataclass(frozen=True)
class Cell:
    """A stack with a preset; `excluded` says why it is not run."""

    stack: Stack
    preset: Preset
    excluded: str | None = None

    @property
    def id(self) -> str:
        """A stable label, independent of the order of the file."""
        return f"{self.stack.name}-{self.preset.name}"


class Matrix(_Strict):
    """Everything matrix.yaml says."""

    version: Literal[2] = Field(alias="schema")
    base: str = Field(DEFAULT_BASE, description="base image of every stack that names none")
    mirrors: Mirrors = Field({}, description="source of wheels -> URL to take instead, also file://; `pypi` is one")
    stacks: dict[Name, Stack]
    presets: dict[Name, Preset]
    workloads: dict[Name, Workload]
    selections: dict[Name, Selection]
    exclude: tuple[Exclusion, ...] = ()
    verdicts: Verdicts = Verdicts()
    signatures: SignerPolicy = SignerPolicy()
    stages: dict[Name, CampaignStage] = Field({}, description="what `matrix run` does on a host with GPUs, in order")
    hosts: dict[Name, Cluster] = Field({}, description="clusters that `matrix run --on NAME` carries runs to")
    two_gpus: tuple[TwoGpus, ...] = Field((), description="the order in which stacks go on to two GPUs")

    def cell(self, stack: str, preset: str) -> Cell:
        """The cell of a stack and a preset, both by name."""
        s, p = self.stacks[stack], self.presets[preset]
        reason = s.excluded or next((e.reason for e in self.exclude if e.matches(s, p)), None)
        return Cell(s, p, reason)

    @cached_property
    def cells(self) -> dict[str, Cell]:
        """Every cell by its id."""
        return {cell.id: cell for cell in self._product(self.stacks, self.presets)}

    def select(self, selection: str) -> list[Cell]:
        """The cells of a selection, stacks first, in the order of the file."""
        chosen = self.selections[selection]
        stacks = self.stacks if chosen.stacks == "all" else chosen.stacks
        presets = self.presets if chosen.presets == "all" else chosen.presets
        return list(self._product(stacks, presets))

    def _product(self, stacks: Iterable[str], presets: Iterable[str]) -> Iterator[Cell]:
        presets = tuple(presets)
        return (self.cell(stack, preset) for stack in stacks for preset in presets)
