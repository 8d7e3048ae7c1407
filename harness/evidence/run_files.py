"""The files that app and harness exchange and that a run leaves behind, as types.

`harness.cli.schemas` makes the JSON Schemas and the table in the docs from these types.
"""

from typing import Any, Literal

from pydantic import ConfigDict, Field

from harness.base.json_files import File, Versioned
from harness.evidence.app_files import InputFile, Phase, Result
from harness.host.facts import HostFacts
from harness.matrix.cells import ExecutorName

OutcomeName = Literal["completed", "failed", "hung", "interrupted", "host-fault"]
HealthCheck = Literal["memory", "kernel-log", "probe", "reset"]
HealthOccasion = Literal["before-run", "after-failure", "after-completion", "recheck"]


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
    python: str | None = Field(None, description="version of the interpreter, where no image has it")
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
    injected_fault: str | None = Field(None, description="the fault injected on purpose; such a run is no evidence")
    started: float = Field(description="seconds since 1970")


class EvidenceLine(File):
    """A line that explains; `file` is relative to the run folder, `line` counts from 1."""

    file: str
    line: int
    text: str


class Explanation(File):
    """The reason why a run did not complete, as far as its evidence tells. It never decides an outcome."""

    rule: str | None = Field(description="the signature that matched; null where none did")
    class_: str = Field(alias="class")
    cause: str
    remedy: str
    link: str | None
    presets: tuple[str, ...] = Field(description="presets of the matrix that apply the remedy")
    lines: tuple[EvidenceLine, ...]

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)


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
    longest_stall: dict[Phase, float] = Field({}, description="longest time without an advance, seconds, by phase")
    explanation: Explanation | None = None
    host_problems: tuple[str, ...] = Field((), description="what is wrong with the host or a GPU, seen after the run")

    @property
    def injected_fault(self) -> str | None:
        """The fault that was injected on purpose, as intent or result tell it; such a run is no evidence."""
        return self.intent.injected_fault or (self.result.injected_fault if self.result else None)


class HealthStep(Versioned):
    """One step of a GPU's check or recovery: a line of `results/health/MACHINE.jsonl`."""

    machine: str
    boot_id: str
    run_id: str
    environment: str = Field(description="hash of what the probe ran in, without preset")
    when: HealthOccasion
    check: HealthCheck
    gpu: int | None = Field(description="its index among the host's; null where it is no single GPU's")
    good: bool | None = Field(description="null where nothing can be concluded")
    detail: str
    at: float = Field(description="when it ended, seconds since 1970")
    seconds: float
