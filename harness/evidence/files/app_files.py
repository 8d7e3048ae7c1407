"""The types of the files that the app writes: progress, result, verification."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field
from pydantic_core import to_json

from harness.base.contract import OLD_CONTRACT
from harness.base.files.json_bounds import excess_of
from harness.base.files.json_files import File, Versioned
from harness.matrix.strategies import ModelKind

Phase = Literal["import", "init", "data", "features", "first-step", "step", "validate", "checkpoint", "teardown"]
Wait = Phase | Literal["resume"]
"""The kinds of wait: for an advance in a phase, or for the first step after a validation or a checkpoint (`resume`)."""
TimeKind = Literal["device", "loader", "copy", "validate", "checkpoint", "bookkeeping"]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, le=2**53)]
"""A number of countable things. Larger numbers are in no file of a real run, and would overflow in computations."""

# Matches the names of the bars that the harness makes. If a person uses such a name, it is a name of data.
SYNTHETIC = re.compile(r"synthetic-\d+-\d+-[0-9a-f]{12}\.csv")
# Largest options of a result, in bytes of JSON.
MOST_OPTIONS_BYTES = 64 << 10
# Of any file, by Linux.
LONGEST_PATH = 4096


def _of_some_size(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options if a record can hold them: the app may add any options to those that were requested."""
    size = len(to_json(options))
    if size > MOST_OPTIONS_BYTES:
        raise ValueError(f"they have {size} bytes, more than {MOST_OPTIONS_BYTES}")
    if excess_of([[[[[[[[options]]]]]]]]):
        # The record nests the result more deeply, and has to be readable again.
        raise ValueError("they are nested too deeply")
    return options


class Memory(File):
    """Bytes in use by one process."""

    rss_bytes: int
    device_allocated_bytes: int | None
    device_reserved_bytes: int | None


class EpochLosses(File):
    """Mean losses of one epoch."""

    epoch: Count
    train: float
    validation: float | None
    inner: float | None = Field(None, description="on the sessions that choose the epoch; null where none do")


class Progress(Versioned):
    """One line of `progress-<rank>.jsonl`, written only by the thread that does the work."""

    wall: float = Field(description="seconds since 1970", allow_inf_nan=False)
    monotonic: float = Field(description="seconds, never set back", allow_inf_nan=False)
    rank: int
    pid: int
    nonce: str | None = Field(None, description="that of the intent; null in files of older apps, as the next two")
    number: Count | None = Field(None, description="of the line, from 1 in each process")
    phase: Phase
    done: Count
    total: Count | None
    max_step_s: float | None = Field(description="longest step since the last line, seconds")
    loss: float | None
    gradient_norm: float | None
    epoch_losses: EpochLosses | None = Field(None, description="where an epoch has just ended")
    memory: Memory


class InputFile(File):
    """The data file that a run is given."""

    path: str = Field(max_length=LONGEST_PATH)
    sha256: Sha256

    @property
    def is_synthetic(self) -> bool:
        """Return whether the harness made these bars; their name says so."""
        return SYNTHETIC.fullmatch(Path(self.path).name) is not None


class DataFile(InputFile):
    """The data file that the app read."""

    rows: int


class TorchVersion(File):
    """The build of torch, as torch reports it; `hip` decides which ROCm really ran."""

    version: str
    hip: str | None
    cuda: str | None


class Device(File):
    """A device that a rank used."""

    rank: int
    device: str
    name: str
    gfx: str | None
    memory_bytes: int | None


class Sessions(File):
    """Numbers of trading sessions: in the file, after lookback and fraction, and in each split."""

    total: int
    used: int
    train: int
    inner: int = 0
    validation: int


class Samples(File):
    """Numbers of rows in each split."""

    train: Count
    inner: Count = Field(0, description="that choose the epoch")
    validation: Count


class StepNumbers(File):
    """Loss and gradient norm of one optimizer step, counted from 1."""

    step: Count
    loss: float
    gradient_norm: float | None = Field(description="null where it was not finite and a loss scaler skipped the step")


class KeptState(StepNumbers):
    """The weights from before an optimizer step, in a file, with the loss and gradient norm of that step."""

    file: str
    sha256: Sha256
    step: int = Field(ge=1, le=2**53)


class Throughput(File):
    """Training speed."""

    samples_per_second: float
    train_seconds: float


class ModelFile(File):
    """The model that was saved; `file` is relative to the output folder."""

    file: str
    sha256: Sha256
    bytes: int
    parameters: int


class MemoryOwner(File):
    """A process that held memory on a device, as the system reported it."""

    pid: int
    name: str | None
    bytes: int
    source: str
    card: str | None = Field(None, description="PCI address")


class MemoryPeaks(File):
    """The most that the first rank held; null where it could not be determined."""

    peak_allocated_bytes: int | None = Field(description="in tensors on its devices")
    peak_reserved_bytes: int | None = Field(description="taken from the driver for its devices")
    peak_driver_bytes: int | None = Field(description="in use on its fullest device, by any process")
    peak_rss_bytes: int | None
    fragmentation: float | None = Field(description="1 - allocated / reserved")
    owners: tuple[MemoryOwner, ...] | None

    @property
    def peak_on_device(self) -> int | None:
        """The bytes in use on a device, as its driver reported; without that, the bytes that torch had reserved."""
        return self.peak_reserved_bytes if self.peak_driver_bytes is None else self.peak_driver_bytes


class Training(File):
    """The training of one model, from its first step to its file. Files of older apps lack the keys with a default."""

    model_kind: ModelKind = "mlp"
    batch_size: int | None = Field(None, description="samples of an optimizer step, over all ranks")
    micro_batch_size: int | None = Field(None, description="samples of one forward and backward pass on one device")
    epochs_requested: Count
    epochs_done: Count
    stopped_early: bool = False
    kept_epoch: Count | None = Field(None, description="whose weights are the model's; null in files of older apps")
    steps_per_epoch: Count
    steps_done: Count
    steps_skipped: Count = Field(description="updates left out because a gradient was not finite")
    resumed_at: tuple[int, ...] = Field((), max_length=10_000, description="steps at which it was resumed")
    samples: Samples
    first_steps: tuple[StepNumbers, ...] = Field(max_length=1000)
    states: tuple[KeptState, ...] = Field(
        (), max_length=1000, description="files in the folder of states, in order of their steps"
    )
    epoch_losses: tuple[EpochLosses, ...]
    throughput: Throughput
    time: dict[TimeKind, float] | None = Field(None, description="where the seconds went")
    rank_weights_sha256: tuple[Sha256, ...] = Field(
        max_length=1024, description="of the weights that each rank ended with"
    )
    kept_weights_sha256: Sha256 | None = Field(None, description="of those of the kept epoch; null as above")
    model: ModelFile
    metadata_file: str


class Result(Training, Versioned):
    """`result.json`: the app's account of what it did, written last. Its own training is that of the last, main model.

    `earlier`: the trainings before that in the same process, in order.
    """

    app_version: str
    command: Literal["train"]
    contract: int = Field(OLD_CONTRACT, description="version of what the app says in its files")
    nonce: str | None = Field(None, description="that of the intent; null in files of older apps")
    workload_hash: str | None
    options: Annotated[dict[str, Any], AfterValidator(_of_some_size)]
    data: DataFile
    python: str
    torch: TorchVersion
    framework: Literal["torch", "jax"] = Field("torch", description="what made the steps")
    jax: dict[str, str] | None = Field(None, description="versions of JAX and its plugins where it made them")
    numpy: str
    polars: str
    device: Literal["cpu", "cuda"]
    devices: tuple[Device, ...] = Field(max_length=1024)
    strategy: str
    world_size: int
    threads: int
    dtype: Literal["float32", "bfloat16", "float16"]
    sessions: Sessions
    earlier: tuple[Training, ...] = Field((), max_length=100)
    injected_fault: str | None = Field(
        None, description="the fault that was injected on purpose; such a run is no evidence"
    )
    memory: MemoryPeaks | None = None

    @property
    def jax_version(self) -> str | None:
        """The version of JAX that made the steps; None where torch made them."""
        return (self.jax or {}).get("jax", "of no known version") if self.framework == "jax" else None

    @property
    def trainings(self) -> tuple[Training, ...]:
        """Every model that was trained, in order: the main model last."""
        return (*self.earlier, self)

    def done_before(self, resumed: Sequence[int]) -> tuple[int, ...]:
        """Return how many steps of each model runs before this one made, at most.

        `resumed`: those of the newest checkpoints that it was given. Without any that it could read it began at 0.
        """
        return tuple(before if told.resumed_at else 0 for told, before in zip(self.trainings, resumed, strict=False))


class LoadedModel(File):
    """A model file that loads and computes."""

    sha256: Sha256
    bytes: int
    parameters: int
    weights_sha256: Sha256


class ReplayedStep(File):
    """An optimizer step that was computed again from the weights before it; null where a number is not finite."""

    step: int
    sha256: Sha256 = Field(description="of the file that had the weights")
    loss: float | None
    gradient_norm: float | None


class VerifiedTraining(File):
    """A trained model of which parts were computed again; null where that was not possible, with the reason."""

    model_kind: ModelKind = "mlp"
    samples: Samples
    steps: tuple[StepNumbers, ...]
    model: LoadedModel | None
    model_problem: str | None
    validation_loss: float | None
    constant_rate_loss: float | None = Field(
        None, description="on the validation samples, of always answering the training samples' rate"
    )
    replay: ReplayedStep | None
    replay_problem: str | None


class Verification(VerifiedTraining, Versioned):
    """`verification.json`: parts of a training computed again, on the CPU in float32. Its own model is the main one."""

    workload_hash: str | None
    data_sha256: Sha256
    seed: int
    dtype: Literal["float32"]
    torch: str
    earlier: tuple[VerifiedTraining, ...] = ()

    @property
    def models(self) -> tuple[VerifiedTraining, ...]:
        """Every model that was verified, in order: the main model last."""
        names = VerifiedTraining.model_fields
        return (*self.earlier, VerifiedTraining(**{name: getattr(self, name) for name in names}))
