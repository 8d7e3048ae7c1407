"""The stages of a campaign in the matrix file: what they run, on which GPUs, and which cells go on. Pure."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from harness.matrix.strategies import ModelKind, Strategy
from harness.matrix.strict import Strict

# The workload options that a change of a stage may set.
CHANGEABLE = ("vpoc_path", "sdpa", "model")


class Otherwise(Strict):
    """A change to try after a cell failed in a stage: another preset, strategy or workload option."""

    after: Literal["features", "training"] | None = Field(None, description="only where it failed there")
    preset: str | None = None
    strategy: Strategy | None = None
    vpoc_path: Literal["cpu", "naive", "chunked", "preallocated", "pooled"] | None = None
    sdpa: Literal["auto", "math", "flash", "efficient"] | None = None
    model: tuple[ModelKind, ...] | None = None

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if not (self.preset or self.strategy or self.options):
            raise ValueError("changes nothing; give `preset:`, `strategy:`, `vpoc_path:`, `sdpa:` or `model:`")
        return self

    @property
    def options(self) -> dict[str, Any]:
        """The workload options that this change sets."""
        return {name: value for name in CHANGEABLE if (value := getattr(self, name)) is not None}


class CampaignStage(Strict):
    """A part of a campaign. A stage without a workload is a check by the doctor.

    Stages entered by the `selection` and by `survivors` explore stack by stack; those of the `best` and the `winner`
    follow.
    """

    name: SkipJsonSchema[str] = ""
    description: str
    workload: str | None = None
    enters: Literal["selection", "survivors", "best", "winner"] = Field(
        "survivors",
        description="the selection, what came through the stage before, the best of that, or what is good",
    )
    devices: Literal["one", "each", "all"] = Field("one", description="the first GPU, each GPU alone, or all at once")
    strategy: Strategy = "single"
    otherwise: tuple[Otherwise, ...] = Field((), description="what is tried where a cell failed, in order")
    otherwise_later: int | None = Field(
        None,
        ge=0,
        description="how many of `otherwise` on stacks after the first there; the rest once every stack had its turn",
    )
    beside: tuple[Strategy, ...] = Field(
        (), description="strategies tried at the end, or where none comes through; they count for themselves alone"
    )
    tries: int | None = Field(
        None, ge=1, description="how many cells of a stack are tried before every stack had its turn"
    )
    tries_later: int | None = Field(None, ge=1, description="how many of them on stacks after the first there")
    until: Literal["candidate", "good"] | None = Field(None, description="the tier that its runs are to show")
    minutes: float = Field(3.0, gt=0, description="of a run, assumed until runs here tell")

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        several = (self.strategy, *self.beside, *(one.strategy for one in self.otherwise if one.strategy))
        if self.devices != "all" and any(one != "single" for one in several):
            raise ValueError("a strategy of several devices needs `devices: all`")
        if self.devices == "all" and "single" in several:
            raise ValueError("`devices: all` needs a strategy of several devices")
        if len(set(self.otherwise)) < len(self.otherwise):
            raise ValueError("`otherwise:` lists the same twice")
        if (self.enters == "best") != (self.until is not None):
            raise ValueError("a stage of the best has `until:`, and no other has")
        return self


def exploring(stages: "dict[str, CampaignStage]") -> list[CampaignStage]:
    """Return the stages that every stack goes through, in order."""
    return [stage for stage in stages.values() if stage.workload and stage.enters in ("selection", "survivors")]


def endurance(stages: "dict[str, CampaignStage]") -> CampaignStage | None:
    """Return the stage that shows the tier of the best cell; None if there is none."""
    return next((stage for stage in stages.values() if stage.enters == "best"), None)


def of_winner(stages: "dict[str, CampaignStage]") -> list[CampaignStage]:
    """Return the stages for the cell that reached the tier."""
    return [stage for stage in stages.values() if stage.enters == "winner"]
