"""The types of the files that app and harness exchange and that a run leaves behind.

`harness.cli.schemas` generates the JSON Schemas and the table in the docs from these types.
"""

from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field

from harness.base.contract import CONTRACT, OLD_CONTRACT
from harness.base.files.json_files import File, Moment, OneLine, Versioned
from harness.base.text import LONGEST_QUOTE, safe_text
from harness.environments.executors.container import container_from_record
from harness.evidence.files.app_files import InputFile, Phase, Result, Wait
from harness.host.facts import HostFacts
from harness.host.jobs import NODE_NAME
from harness.matrix.programs import Program
from harness.matrix.stacks import ExecutorName

OutcomeName = Literal["completed", "failed", "hung", "interrupted", "host-fault"]
HealthCheck = Literal["memory", "kernel-log", "probe", "reset"]
HealthOccasion = Literal["before-run", "after-failure", "after-completion", "recheck"]
Interruption = Literal["ctrl-c", "hup", "term", "shutdown", "harness", "harness-killed", "engine", "scheduler"]


def _of_a_container(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a container of which there is a command line."""
    try:
        container_from_record(values).command_line({}, ())
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"they are of no container: {error}") from None
    return values


class Scheduled(File):
    """The job of a scheduler in which a run is made."""

    scheduler: Literal["slurm"]
    job: str
    node: str = Field(description="the name of the host there", pattern=f"^{NODE_NAME}$")


class Intent(Versioned):
    """`intent.json`: what is about to be run; durable before the start."""

    run_id: str
    campaign: OneLine | None
    repeat: int
    cell: OneLine
    stack: OneLine
    preset: OneLine
    executor: ExecutorName
    host: HostFacts
    environment_hash: str
    environment: dict[str, Any]
    python: OneLine | None = Field(None, description="version of the interpreter, where no image has it")
    image: str | None = Field(None, description="id of the cell's image")
    revision: str | None = Field(
        None, description="commit of the source that the image names; `-dirty` for changes that no commit has"
    )
    container: Annotated[dict[str, Any], AfterValidator(_of_a_container)] | None = Field(
        None, description="what limits the container, as it was asked for"
    )
    workload: OneLine
    workload_hash: str
    family: str | None = Field(None, description="hash of all options but epochs, sessions and data")
    smoke_test: bool = Field(False, description="whether it only shows that a cell works at all")
    data: InputFile
    device: Literal["cpu", "cuda"]
    gpus: tuple[int, ...]
    torch: OneLine | None = Field(description="the version the stack declares")
    rocm: OneLine | None = Field(description="the version the stack declares")
    index: str | None = Field(None, description="where this host takes the stack's torch from")
    options: dict[str, Any] = Field(description="the app's options, resolved")
    program: Program | None = Field(None, description="the user's own, run in place of the app")
    time_limit: int = Field(description="seconds")
    commands: dict[str, tuple[str, ...]] = Field(description="phase -> argument list")
    variables: dict[str, dict[str, str]] = Field(description="phase -> environment")
    nonce: str | None = Field(None, description="a random word that progress and result of the run have to repeat")
    contract: int = Field(OLD_CONTRACT, description="the version that the app follows in what its files say")
    resumed: tuple[int, ...] = Field((), description="steps in the checkpoint it was given of each model; 0 for none")
    verifier: dict[str, Any] | None = Field(None, description="identity of what this host verifies it in")
    verifier_image: str | None = Field(None, description="id of the image that environment is in, if any")
    not_verified: OneLine | None = Field(None, description="why this host has nothing to verify it in")
    harness_version: str
    owner_pid: int
    owner_started: int = Field(description="clock ticks since boot")
    injected_fault: OneLine | None = Field(None, description="the fault injected on purpose; such a run is no evidence")
    beside: tuple[str, ...] = Field((), description="runs that were begun together with it, on other GPUs")
    rehearsal: bool = Field(False, description="made by `matrix rehearse`: it shows nothing of its stack")
    scheduled: Scheduled | None = Field(None, description="the job of a scheduler that it is made in, if any")
    started: Moment = Field(description="seconds since 1970")
    since_boot: Moment | None = Field(
        None, description="the same moment in seconds since boot, which no clock change moves"
    )

    @property
    def verified(self) -> bool:
        """Return whether the run is to be verified: its app follows this contract, and this host has a verifier."""
        return self.contract == CONTRACT and self.nonce is not None and self.verifier is not None


MOST_LINES = 20
"""Of what explains a failure, which names the few that tell most."""


class EvidenceLine(File):
    """A line that explains a failure. `file` is relative to the run folder, `line` counts from 1."""

    file: OneLine
    line: int
    text: OneLine


class Explanation(File):
    """The reason why a run did not complete, as far as its evidence shows. It never decides an outcome."""

    rule: OneLine | None = Field(description="the signature that matched; null where none did")
    class_: OneLine = Field(alias="class")
    cause: OneLine
    remedy: OneLine
    link: OneLine | None
    presets: tuple[OneLine, ...] = Field(description="presets of the matrix that apply the remedy")
    lines: tuple[EvidenceLine, ...] = Field(max_length=MOST_LINES)

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)


def _quoted(value: Any) -> Any:
    """Return a value of JSON with all its texts quoted."""
    match value:
        case str():
            return safe_text(value, LONGEST_QUOTE)
        case list() | tuple():
            return type(value)(map(_quoted, value))
        case dict():
            return {_quoted(name): _quoted(one) for name, one in value.items()}
    return value


class Record(Versioned):
    """`record.json`: the durable statement about a run."""

    intent: Intent
    outcome: OutcomeName
    diagnosis: OneLine | None
    detail: OneLine
    exit: dict[OneLine, OneLine] = Field(description="phase -> how its process ended")
    ran_on: OneLine
    finished: Moment = Field(description="seconds since 1970")
    seconds: float = Field(description="of the app's processes")
    last_phase: Phase | None
    result: Result | None
    not_verified: OneLine | None = Field(None, description="what of this host cut its verification short")
    steps_accounted: tuple[int, ...] | None = Field(
        None, description="optimizer steps that its progress accounts for, by model, in order; null where unknown"
    )
    longest_stall: dict[Wait, float] = Field({}, description="longest time without an advance, seconds, by phase")
    first_step: bool | None = Field(None, description="whether its first training step ended; null where unknown")
    exposure_seconds: float | None = Field(
        None, ge=0, lt=1e11, description="from the end of the first step to the last advance, by the harness's clock"
    )
    interrupted_by: Interruption | None = Field(None, description="what ended a run that is `interrupted`")
    idle_seconds: float | None = Field(None, description="since when no rank had advanced when it was interrupted")
    idle_limit: float | None = Field(None, description="how long that rank might have stalled, seconds")
    explanation: Explanation | None = None
    host_problems: tuple[OneLine, ...] = Field(
        (), description="what is wrong with the host or a GPU, seen after the run"
    )

    @property
    def ended(self) -> str:
        """The outcome with its diagnosis, such as `failed (app-error)`."""
        return f"{self.outcome} ({self.diagnosis})" if self.diagnosis else self.outcome

    def quoted(self) -> Self:
        """Return the record of another user or host with its texts quoted, so that none passes for our own words.

        Its commands are left out: they could be any, for this user to type.
        """
        intent, quote = self.intent, partial(safe_text, most=LONGEST_QUOTE)
        names = {name: quote(getattr(intent, name)) for name in ("cell", "stack", "preset", "workload")}
        fault = intent.injected_fault and quote(intent.injected_fault)
        data = intent.data.model_copy(update={"path": quote(intent.data.path)})
        changed: dict[str, Any] = {**names, "injected_fault": fault, "data": data, "commands": {}}
        changed |= {"options": _quoted(intent.options)}
        if program := intent.program:
            words = {name: _quoted(getattr(program, name)) for name in ("command", "environment", "progress")}
            produces = tuple(one.model_copy(update={"file": quote(one.file)}) for one in program.produces)
            changed |= {"program": program.model_copy(update={**words, "produces": produces})}
        texts = {
            "intent": intent.model_copy(update=changed),
            "diagnosis": self.diagnosis and quote(self.diagnosis),
            "detail": quote(self.detail),
            "exit": {quote(phase): quote(how) for phase, how in self.exit.items()},
            "ran_on": quote(self.ran_on),
            "host_problems": tuple(map(quote, self.host_problems)),
        }
        return self.model_copy(update=texts)

    @classmethod
    def bare(
        cls,
        intent: Intent,
        outcome: OutcomeName,
        diagnosis: str | None,
        detail: str,
        *,
        finished: float,
        seconds: float = 0.0,
        steps_accounted: tuple[int, ...] | None = (),
        first_step: bool | None = None,
        interrupted_by: Interruption | None = None,
        idle_seconds: float | None = None,
        idle_limit: float | None = None,
    ) -> Self:
        """Return a record without anything that the app wrote, for a run of which no more is known."""
        return cls(
            intent=intent,
            outcome=outcome,
            diagnosis=diagnosis,
            detail=detail,
            exit={},
            ran_on="unknown",
            finished=finished,
            seconds=seconds,
            last_phase=None,
            result=None,
            steps_accounted=steps_accounted,
            first_step=first_step,
            interrupted_by=interrupted_by if outcome == "interrupted" else None,
            idle_seconds=idle_seconds,
            idle_limit=idle_limit,
        )

    @property
    def injected_fault(self) -> str | None:
        """The fault that was injected on purpose; such a run is no evidence. What the app says about one is ignored."""
        return self.intent.injected_fault

    @property
    def verified(self) -> bool:
        """Return whether the run was verified, if it got that far, and no limit of this host cut that short."""
        return self.intent.verified and self.not_verified is None


class HealthStep(Versioned):
    """One step of the check or recovery of a GPU: a line of `results/health/MACHINE.jsonl`."""

    machine: str
    boot_id: str
    run_id: str
    environment: str = Field(description="hash of what the probe ran in, without preset")
    when: HealthOccasion
    check: HealthCheck
    gpu: int | None = Field(description="its index among the host's; null where it is no single GPU's")
    good: bool | None = Field(description="null where nothing can be concluded")
    detail: OneLine
    at: float = Field(description="when it ended, seconds since 1970")
    seconds: float
