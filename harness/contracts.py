"""The files that app and harness exchange and that a run leaves behind, as types.

`contract_files` makes the JSON Schemas and the table in the docs from these types.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Phase = Literal["import", "init", "data", "features", "first-step", "step", "validate", "checkpoint", "teardown"]
OutcomeName = Literal["completed", "failed", "hung", "interrupted", "host-fault"]
ExecutorName = Literal["process", "docker"]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _File(BaseModel):
    # JSON has no word for NaN: an app that computed one is quoted with a string, which reads back as NaN.
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")


class Versioned(_File):
    """A file of its own: says which version of its layout it follows."""

    version: Literal[1] = Field(1, alias="schema")

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)


class Memory(_File):
    """Bytes in use by one process."""

    rss_bytes: int
    device_allocated_bytes: int | None
    device_reserved_bytes: int | None


class Progress(Versioned):
    """One line of `progress-<rank>.jsonl`, written only by the thread that does the work."""

    wall: float = Field(description="seconds since 1970")
    monotonic: float = Field(description="seconds, never set back")
    rank: int
    pid: int
    phase: Phase
    done: int
    total: int | None
    max_step_s: float | None = Field(description="longest step since the last line, seconds")
    loss: float | None
    gradient_norm: float | None
    memory: Memory


class InputFile(_File):
    """The data a run is given."""

    path: str
    sha256: Sha256


class DataFile(InputFile):
    """The data that was read."""

    rows: int


class TorchVersion(_File):
    """What torch says of itself; `hip` decides which ROCm really ran."""

    version: str
    hip: str | None
    cuda: str | None


class Device(_File):
    """A device that a rank really used."""

    rank: int
    device: str
    name: str
    gfx: str | None
    memory_bytes: int | None


class Sessions(_File):
    """Trading sessions: in the file, after warm-up and fraction, and in each split."""

    total: int
    used: int
    train: int
    validation: int


class Samples(_File):
    """Rows in each split."""

    train: int
    validation: int


class StepNumbers(_File):
    """Loss and gradient norm of one optimizer step, counted from 1."""

    step: int
    loss: float
    gradient_norm: float | None = Field(description="null where it was not finite and a loss scaler skipped the step")


class EpochLosses(_File):
    """Mean losses of one epoch."""

    epoch: int
    train: float
    validation: float | None


class Throughput(_File):
    """Training speed."""

    samples_per_second: float
    train_seconds: float


class ModelFile(_File):
    """The model that was saved; `file` is relative to the output folder."""

    file: str
    sha256: Sha256
    bytes: int
    parameters: int


class Result(Versioned):
    """`result.json`: what the app says it did. Written last."""

    app_version: str
    command: Literal["train"]
    workload_hash: str | None
    options: dict[str, Any]
    data: DataFile
    python: str
    torch: TorchVersion
    numpy: str
    polars: str
    device: Literal["cpu", "cuda"]
    devices: tuple[Device, ...]
    strategy: str
    world_size: int
    threads: int
    dtype: Literal["float32", "bfloat16", "float16"]
    sessions: Sessions
    samples: Samples
    epochs_requested: int
    epochs_done: int
    steps_per_epoch: int
    steps_done: int
    steps_skipped: int = Field(description="updates left out because a gradient was not finite")
    first_steps: tuple[StepNumbers, ...]
    epoch_losses: tuple[EpochLosses, ...]
    throughput: Throughput
    rank_weights_sha256: tuple[Sha256, ...]
    model: ModelFile
    metadata_file: str


class Reference(Versioned):
    """`reference.json`: the first steps of the same workload on the CPU in float32."""

    workload_hash: str | None
    data_sha256: Sha256
    samples: Samples
    seed: int
    dtype: Literal["float32"]
    steps: tuple[StepNumbers, ...]
    torch: str


class ModelCheck(Versioned):
    """What `vpoc check-model --json` prints of a model that loads and computes."""

    file: str
    sha256: Sha256
    bytes: int
    parameters: int
    weights_sha256: Sha256
    target: str
    rows: Literal["bar", "session"]
    features: tuple[str, ...]


class GpuFacts(_File):
    """A GPU as the host's driver describes it."""

    index: int
    gfx: str
    name: str
    memory_bytes: int | None
    render_node: str | None
    kfd_id: int | None = Field(description="the driver's id of it, in /sys/class/kfd/kfd/proc")


class HostFacts(_File):
    """The machine. Its kind (what evidence is bound to) is GPU targets, their count, driver and kernel."""

    fingerprint: str
    kind: str
    machine: str = Field(description="the same whatever kernel and driver it runs")
    operating_system: str
    kernel: str
    driver: str | None
    cpu: str
    cores: int
    memory_bytes: int
    gpus: tuple[GpuFacts, ...]
    boot_id: str


class Intent(Versioned):
    """`intent.json`: what is about to be run. Durable before the start."""

    run_id: str
    campaign: str | None
    repeat: int
    cell: str
    stack: str
    preset: str
    executor: ExecutorName
    host: HostFacts
    environment_hash: str
    environment: dict[str, Any]
    image: str | None = Field(None, description="id of the cell's image")
    container: dict[str, Any] | None = Field(None, description="what limits the container, as it was asked for")
    workload: str
    workload_hash: str
    data: InputFile
    device: Literal["cpu", "cuda"]
    gpus: tuple[int, ...]
    torch: str | None = Field(description="the version the stack declares")
    rocm: str | None = Field(description="the version the stack declares")
    options: dict[str, Any] = Field(description="the app's options, resolved")
    time_limit: int = Field(description="seconds")
    commands: dict[str, tuple[str, ...]] = Field(description="phase -> argument list")
    variables: dict[str, dict[str, str]] = Field(description="phase -> environment")
    harness_version: str
    owner_pid: int
    owner_started: int = Field(description="clock ticks since boot")
    started: float = Field(description="seconds since 1970")


class Record(Versioned):
    """`record.json`: the durable statement about a run."""

    intent: Intent
    outcome: OutcomeName
    diagnosis: str | None
    detail: str
    exit: dict[str, str] = Field(description="phase -> how its process ended")
    ran_on: str
    finished: float = Field(description="seconds since 1970")
    seconds: float = Field(description="of the app's processes")
    last_phase: Phase | None
    result: Result | None
