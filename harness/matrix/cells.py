"""Typed values of matrix.yaml, and its expansion into cells. Pure: `load` reads the file."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated, Literal, Self

from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pydantic import AfterValidator, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from harness.matrix.clusters import Cluster
from harness.matrix.stacks import DEFAULT_BASE, Mirrors, Stack
from harness.matrix.stages import CampaignStage
from harness.matrix.strict import ImageName, Name, PathPart, Reason, Strict
from harness.matrix.variable_names import Variables
from harness.matrix.workloads import Workload


def _distinct(devices: tuple[int, ...]) -> tuple[int, ...]:
    if not devices or min(devices) < 0 or len(set(devices)) < len(devices):
        raise ValueError("`devices:` names different GPUs, by numbers from 0 on; leave it out for any")
    return devices


# Each of its specifiers is tried on each cell.
VersionRange = Annotated[str, Field(max_length=100)]
Devices = Annotated[tuple[int, ...], AfterValidator(_distinct)]


class Preset(Strict):
    """Environment variables. `features` and `train` add variables for one phase, which then runs as its own process."""

    name: SkipJsonSchema[PathPart] = ""
    description: str
    variables: Variables = Field({})
    features: Variables = Field({})
    train: Variables = Field({})
    devices: Devices | None = None
    source: str | None = None

    @property
    def phases(self) -> tuple[Literal["features", "train"], ...]:
        """The processes that a run of this preset consists of."""
        return ("features", "train") if self.features or self.train else ("train",)

    def variables_of(self, phase: Literal["features", "train"]) -> dict[str, str]:
        """Return the variables that the process of a phase is started with."""
        return {**self.variables, **getattr(self, phase)}


class Exclusion(Strict):
    """Cells that are not run, and why. All given keys must match; version keys are specifiers such as `<2.12`."""

    stack: str | None = None
    preset: str | None = None
    accelerator: Literal["rocm", "cpu", "any"] | None = None
    rocm: VersionRange | None = None
    torch: VersionRange | None = None
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
            wanted is None or (value is not None and _is_within(value, wanted)) for wanted, value in ranges
        )


@lru_cache(maxsize=100_000)
def _is_within(version: str, versions: str) -> bool:
    """Return whether a version is in a range; the cells of a stack have the same version."""
    return Version(version) in SpecifierSet(versions)


class Selection(Strict):
    """A named part of the matrix: every listed stack with every listed preset."""

    name: SkipJsonSchema[str] = ""
    description: str
    stacks: tuple[str, ...] | Literal["all"]
    presets: tuple[str, ...] | Literal["all"]
    reasons: dict[str, Reason] = Field({}, description="stack -> why it is in it, and where")
    workload: str = "quick"


class TwoGpus(Strict):
    """Facts about stacks on two GPUs. A ROCm version stands for every version that begins with it."""

    rocm: tuple[str, ...]
    always: bool = Field(False, description="goes on to two GPUs whatever time is left")
    last_without_atomics: bool = Field(False, description="comes last where the GPUs' slots lack PCIe atomics")
    reason: Reason

    def holds(self, rocm: str) -> bool:
        """Return whether a ROCm version is one of these versions."""
        return any(rocm == own or rocm.startswith(f"{own}.") for own in self.rocm)


class MtbfHours(Strict):
    """Mean times between failures that a lower bound must exceed, in hours; 0 asks for none."""

    candidate: float = Field(0.25, ge=0, le=10_000)
    good: float = Field(1.0, ge=0, le=10_000)
    known_good: float = Field(3.0, ge=0, le=10_000)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.candidate <= self.good <= self.known_good:
            raise ValueError("thresholds must rise: candidate <= good <= known_good")
        return self


class Verdicts(Strict):
    """The thresholds of verdicts: shares of starts that a lower bound must exceed, and mean times between failures.

    `confidence` is that of each bound. `known_good_boots` is the number of boots on which a known-good cell must have
    run.
    """

    candidate: float = Field(0.5, gt=0, lt=1)
    good: float = Field(0.8, gt=0, lt=1)
    known_good: float = Field(0.9, gt=0, le=0.999, description="at most 0.999, which takes thousands of runs")
    confidence: float = Field(0.95, gt=0, lt=1)
    mtbf_hours: MtbfHours = MtbfHours()
    known_good_boots: int = Field(2, ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.candidate < self.good < self.known_good:
            raise ValueError("thresholds must rise: candidate < good < known_good")
        return self


SignatureRule = Literal["ask", "refuse", "accept"]


class SignerPolicy(Strict):
    """The signers of known-good tags in a registry that are trusted: always the user's own key and the listed keys.

    `unknown` says what to do about an unknown key, `unsigned` about a tag that nobody signed. If nobody can be asked,
    `ask` refuses.
    """

    keys: dict[Name, str] = Field({}, description="name -> public key, as `matrix keys` prints it")
    unknown: SignatureRule = "ask"
    unsigned: SignatureRule = "ask"


@dataclass(frozen=True)
class Cell:
    """A stack with a preset; `excluded` is the reason why the cell is not run, or None."""

    stack: Stack
    preset: Preset
    excluded: str | None = None

    @property
    def id(self) -> str:
        """A stable label, independent of the order of the file."""
        return f"{self.stack.name}-{self.preset.name}"


class Matrix(Strict):
    """Everything that matrix.yaml says."""

    version: Literal[2] = Field(alias="schema")
    base: ImageName = Field(DEFAULT_BASE, description="base image of every stack that names none")
    mirrors: Mirrors = Field({}, description="source of wheels -> URL to take instead, also file://; `pypi` is one")
    stacks: dict[Name, Stack]
    presets: dict[Name, Preset]
    workloads: dict[Name, Workload]
    selections: dict[Name, Selection]
    # Each is tried on each cell, of which there may be thousands.
    exclude: tuple[Exclusion, ...] = Field((), max_length=300)
    verdicts: Verdicts = Verdicts()
    signatures: SignerPolicy = SignerPolicy()
    stages: dict[Name, CampaignStage] = Field({}, description="what `matrix run` does on a host with GPUs, in order")
    hosts: dict[Name, Cluster] = Field({}, description="clusters that `matrix run --on NAME` carries runs to")
    two_gpus: tuple[TwoGpus, ...] = Field((), description="the order in which stacks go on to two GPUs")

    def cell(self, stack: str, preset: str) -> Cell:
        """Return the cell of a stack and a preset, both given by name."""
        s, p = self.stacks[stack], self.presets[preset]
        reason = s.excluded or next((e.reason for e in self.exclude if e.matches(s, p)), None)
        return Cell(s, p, reason)

    @cached_property
    def cells(self) -> dict[str, Cell]:
        """Every cell by its id."""
        return {cell.id: cell for cell in self._product(self.stacks, self.presets)}

    @property
    def rocm_versions(self) -> list[str]:
        """The ROCm versions of the stacks with torch, and `cpu`."""
        found = {s.rocm or s.accelerator for s in self.stacks.values() if s.framework == "torch"} - {"any"}
        return sorted(found, key=lambda name: Version(name if name[0].isdigit() else "0"))

    def select(self, selection: str) -> list[Cell]:
        """Return the cells of a selection in the order of the file, all presets of a stack together."""
        chosen = self.selections[selection]
        stacks = self.stacks if chosen.stacks == "all" else chosen.stacks
        presets = self.presets if chosen.presets == "all" else chosen.presets
        return list(self._product(stacks, presets))

    def _product(self, stacks: Iterable[str], presets: Iterable[str]) -> Iterator[Cell]:
        presets = tuple(presets)
        return (self.cell(stack, preset) for stack in stacks for preset in presets)
