"""The workloads of the matrix file: the app's arguments or a program, and how long a run may take."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from harness.matrix.programs import Program
from harness.matrix.strategies import OVER_A_BACKEND, ModelKind, Strategy
from harness.matrix.strict import Strict

# Fewest sessions that the app's features look back over.
SHORTEST_LOOKBACK = 20
# Highest value of counts; products of two still fit into the numbers that are read from a record.
MOST = 10**9
Positive = Annotated[int, Field(ge=1, le=MOST)]
Layer = Annotated[int, Field(ge=1, le=65536)]
# The losses of each epoch of each model are in the result, whose size is limited.
MOST_EPOCHS = 5_000


def _number_or_auto(value: object) -> object:
    # Validate here for one message, instead of one for each half of the union.
    if value == "auto" or (isinstance(value, int) and value > 0 and value is not True):
        return value
    raise ValueError(f"{value!r} is not a number from 1 on, nor auto")


MicroBatch = Annotated[Positive | Literal["auto"], BeforeValidator(_number_or_auto)]
AcceptedRule = Annotated[str, AfterValidator(lambda name: name.replace("-", "_"))]


class SyntheticData(Strict):
    """The bars that `vpoc synth` makes, which are the same bytes on every machine."""

    sessions: int = Field(ge=1, le=11_000, description="at most 11000: the calendar has no more")
    seed: int = Field(7, ge=0, lt=2**63)


# Keys of a workload that also apply to a program, and values that the app requires of every workload.
OF_PROGRAMS = frozenset({"name", "description", "program", "strategy", "threads", "time_limit", "smoke_test"})
APP_NEEDS: Mapping[str, Any] = {"synthetic": {"sessions": 1}, "epochs": 1}


class Workload(Strict):
    """The work of a run: the app's arguments, its data, and how long it may take. Null leaves a value to the app.

    A `program` is run in place of the app; the workload then has no options of the app.
    """

    name: SkipJsonSchema[str] = ""
    description: str
    program: Program | None = Field(None, description="of your own, run in place of the app; nothing is promoted by it")
    synthetic: SyntheticData
    rows: Literal["bar", "session"] = "bar"
    as_of: Literal["close", "open"] | None = None
    target: Literal["up_30", "prior_vpoc_touched", "next_up", "next_vpoc_touched"] | None = None
    lookback: int = Field(60, ge=SHORTEST_LOOKBACK, le=MOST)
    model: tuple[ModelKind, ...] = Field(
        ("mlp",), description="trained in turn in one process; the last is the main one"
    )
    epochs: int = Field(ge=1, le=MOST_EPOCHS)
    batch_size: Positive = Field(64, description="samples of an optimizer step, over all devices")
    micro_batch_size: MicroBatch | None = None
    spare: float | None = Field(
        None, ge=0, le=0.9, description="share of a GPU's memory that a `micro_batch_size` of `auto` leaves free"
    )
    learning_rate: float = Field(0.001, gt=0, le=1)
    weight_decay: float | None = Field(None, ge=0, le=1)
    clip_norm: float | None = Field(None, ge=0)
    schedule: Literal["constant", "linear", "cosine"] | None = None
    keep: Literal["best", "last"] = Field("last", description="the epoch whose weights are the model's")
    patience: int = Field(
        0, ge=0, le=MOST, description="epochs without a better one after which it ends; 0: makes all of them"
    )
    hidden_layers: tuple[Layer, ...] = (32, 16)
    use_mixed_precision: bool = False
    mixed_precision_dtype: Literal["float16", "bfloat16"] | None = None
    sdpa: Literal["auto", "math", "flash", "efficient"] = "auto"
    activation_checkpointing: bool = False
    data_fraction: float = Field(1.0, gt=0, le=1)
    chunk_size: Positive = 50
    chunk_rows: Positive | None = Field(None, description="train from disk, this many rows at a time")
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
    time_limit: Positive = Field(description="seconds")
    max_device_memory: int | None = Field(
        None, ge=1, lt=2**63, description="bytes in use on a GPU above which a run fails"
    )
    smoke_test: bool = Field(
        False, description="whether it only shows that a cell works at all: it qualifies for nothing"
    )

    @model_validator(mode="before")
    @classmethod
    def _program_alone(cls, values: Any) -> Any:
        if not isinstance(values, Mapping) or values.get("program") is None:
            return values
        if ignored := sorted(set(values) - OF_PROGRAMS - APP_NEEDS.keys()):
            raise ValueError(f"`{ignored[0]}:` is an option of the app, which `program:` replaces; leave it out")
        return {**APP_NEEDS, **values}

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> Self:
        if not self.model:
            raise ValueError("`model:` names no model")
        if self.backend and self.strategy not in OVER_A_BACKEND:
            raise ValueError(f"strategy {self.strategy} uses no backend; leave `backend:` out")
        if self.mixed_precision_dtype and not self.use_mixed_precision:
            raise ValueError("`mixed_precision_dtype:` needs `use_mixed_precision: true`")
        return self

    @property
    def qualifies_for_promotion(self) -> bool:
        """Return whether a completed run counts as evidence for a stack in a promotion."""
        return not self.smoke_test and qualifies_for_promotion(self.model_dump())


def qualifies_for_promotion(options: Mapping[str, Any]) -> bool:
    """Return whether a completed run with these options of the app counts as evidence for a stack in a promotion.

    Only a run like those that failed for the user can show that the failure is gone. Those used the plain loop (a copy
    to the device in each step, and loader workers) on data in memory, after the VPOC phase had used the device. A
    resident loop, chunks from the disk, and profiles on the CPU leave that out. A training that may end early shows
    less than its epochs promise, and only the last weights include every step.
    """
    in_memory = options.get("chunk_rows") is None
    all_of_it = options.get("keep", "last") == "last" and not options.get("patience")
    on_the_device = options.get("vpoc_path", "cpu") != "cpu"
    return options.get("loop") == "plain" and in_memory and on_the_device and all_of_it
