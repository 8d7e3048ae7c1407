"""The types of `report.json`, from which the page, the Markdown and the JUnit file are made."""

from pydantic import Field

from harness.base.files.json_files import File, Versioned
from harness.campaign.answered import Command
from harness.evidence.files.run_files import Explanation, OutcomeName
from harness.evidence.gpus.gpu_evidence import RowVerdict
from harness.evidence.verdicts.verdict import Tier
from harness.host.facts import HostFacts
from harness.matrix.lint import FindingKind


class AnswerPlace(File):
    """A cell in a grid of the answer."""

    cell: str
    tier: Tier
    text: str = Field(description="runs that passed of runs that count, and the verdict")
    group: str | None = Field(None, description="that of its runs; null where none was made")
    start_low: float | None = Field(None, description="the share of starts that succeed is above this; null: no runs")
    starts: str = Field("", description="the same in words")
    mtbf: str = Field("", description="what is shown of the mean time between failures, in words")
    reason: str | None = Field(None, description="why it is excluded")
    work: str = Field("", description="the workload of its runs, where it is not that of the title")


class AnswerGrid(File):
    """The cells of one scope on this kind of host, with what is known of each."""

    scope: str
    title: str = Field(description="in words the scope, and the workload that most of its cells ran")
    stacks: tuple[str, ...]
    presets: tuple[str, ...]
    places: tuple[AnswerPlace, ...] = Field(description="row by row: every stack of the first preset, then of the next")


class Answer(File):
    """The answer to which cell trains to the end here. The terminal, the page and the Markdown print these words."""

    sentence: str
    grids: tuple[AnswerGrid, ...] = Field(description="by scope, GPUs first")
    failures: tuple[str, ...] = Field(description="what failed most often, and why, at most three")
    next: Command = Field(description="what to type next")
    train_now: Command | None = Field(
        None, description="what trains in the cell that the answer is about before it is known-good; null: `next` says"
    )


class Answers(File):
    """Answers to further questions, in sentences from the records. Words in backquotes are names or commands."""

    use: tuple[str, ...] = Field(description="which cell to use, on how many runs")
    notes: tuple[str, ...] = Field(description="what the presets of the notes changed against `plain`")
    failures: tuple[str, ...] = Field(description="what fails, why, how often")
    criteria: tuple[str, ...] = Field(description="which of the user's own criteria are met, and by which run")
    next: tuple[Command, ...] = Field(description="what to type next")


class PassCount(File):
    """Verdict and counts of the runs at a place of a grid."""

    tier: Tier
    passes: int
    runs: int


class GridPlace(File):
    """A cell in a grid."""

    cell: str
    stack: str
    preset: str
    count: PassCount
    own: PassCount = Field(description="the same without imported runs")
    reason: str | None = Field(None, description="why it is excluded, or why its runs do not count")


class Group(File):
    """Runs that can be compared with each other: same workload, kind of host, executor and scope."""

    id: str
    workload: str
    work: str = Field("", description="workload and data, in words, and what tells it from others of its name")
    family: str = Field(description="of the workloads of its runs, which are counted together")
    host_kind: str
    host: str = Field(description="in words")
    executor: str
    scope: str
    stacks: tuple[str, ...]
    presets: tuple[str, ...]
    places: tuple[GridPlace, ...] = Field(description="row by row: every stack of the first preset, then of the next")


class VerdictLine(File):
    """The verdict on the runs of one cell and environment in a group."""

    group: str
    cell: str
    environment_hash: str
    stale: bool = Field(description="the environment, or the host, has changed since: not counted")
    changed: tuple[str, ...] = Field((), description="what of the host did: VBIOS, parameters of kernel and driver")
    qualifies_for_promotion: bool
    ran_on: str
    tier: Tier
    passes: int
    runs: int
    low: float = Field(description="the pass rate is above this at the confidence of the matrix file")
    high: float
    started: int = Field(description="starts that reached the end of the first training step")
    starts: int
    start_low: float = Field(description="the share of starts that succeed is above this")
    failures: int = Field(description="after the first step")
    hours: float = Field(description="of training after the first step")
    mtbf_low: float = Field(description="the mean time between failures is above this, in hours")
    trained: str = Field("", description="`hours` in words")
    mtbf: str = Field("", description="what is shown of the mean time between failures, in words")
    longest: float = Field(description="hours of the third-longest run: the claim is about trainings up to that length")
    boots: int = Field(description="on how many boots the runs were made")
    diagnoses: dict[str, int]
    not_counted: dict[str, int]
    imported: int = Field(description="of the runs that count, those added by `matrix import`")
    last: str = Field(description="id of the newest run")
    last_at: float = Field(description="seconds since 1970")


class FailureAges(File):
    """The ages that the trainings of a verdict reached; there is no curve without failures or beyond the first few."""

    group: str
    cell: str
    said: str = Field(description="in words")
    failures: int = Field(description="after the first step")
    hours: tuple[float, ...] = Field(description="ages, in hours of training after the first step")
    share: tuple[float, ...] = Field(
        description="of trainings that reach more than that age: the product-limit estimate"
    )
    low: tuple[float, ...] = Field(description="the share is above this, at each age for itself")
    high: tuple[float, ...]


class DiagnosedFailures(File):
    """The runs that count as failed with one diagnosis."""

    diagnosis: str
    runs: int
    cells: tuple[str, ...]
    newest: str = Field(description="id of the newest of them")
    cause: str = Field(description="of that one; empty where nothing explains it")
    remedy: str


class RunLine(File):
    """A run."""

    run_id: str
    group: str
    cell: str
    environment_hash: str
    outcome: OutcomeName
    diagnosis: str | None
    detail: str
    ran_on: str
    started: float = Field(description="seconds since 1970")
    seconds: float
    samples_per_second: float | None
    uncounted: str | None = Field(
        description="why it is not counted: injected fault, struck, stale, interrupted, not begun"
    )
    failed: bool = Field(description="it counts as failed, also where it completed and left a GPU unhealthy")
    why_counted_so: str = Field(description="in words, where its outcome does not say it")
    imported: bool
    again: int | None = Field(None, description="which of the report's commands repeats it; null if there is none")


class TrainingLine(File):
    """One model of a run."""

    kind: str
    text: str = Field(description="what was done, in words")
    time: str = Field(description="where the time went, in words")


class PhaseSpan(File):
    """A phase of a rank; times are in seconds since the start of the run."""

    rank: int
    phase: str
    start: float
    seconds: float


class MemoryCurve(File):
    """Memory use of one rank over time, thinned."""

    rank: int
    seconds: tuple[float, ...] = Field(description="since the start of the run")
    rss_mb: tuple[float, ...]
    reserved_mb: tuple[float | None, ...] = Field(description="on the device, by torch")


class GpuCurve(File):
    """The sensors of one GPU while the run used it, thinned. A value is null if the driver did not report it."""

    gpu: int = Field(description="its index on the host")
    seconds: tuple[float, ...] = Field(description="since the start of the run")
    busy_percent: tuple[float | None, ...]
    power_watts: tuple[float | None, ...]
    used_mb: tuple[float | None, ...] = Field(description="of its memory, by any process")
    celsius: dict[str, tuple[float | None, ...]] = Field(description="by sensor")
    megahertz: dict[str, tuple[float | None, ...]] = Field(description="by clock")


class KernelEvent(File):
    """A line of the kernel log during the run, about a GPU, memory or a stuck task."""

    seconds: float = Field(description="since the start of the run")
    text: str


class LossCurve(File):
    """The losses of one model, thinned. Numbers that are not finite are null."""

    model: str
    steps: tuple[int, ...] = Field(description="the first ones, and those reported about once a second")
    loss: tuple[float | None, ...] = Field(description="of each of these steps")
    epoch_ends: tuple[int, ...] = Field(description="the last step of each epoch")
    train: tuple[float | None, ...] = Field(description="mean of each epoch")
    validation: tuple[float | None, ...]


class RunDetail(File):
    """The details of a run, shown when it is opened on the page."""

    explanation: Explanation | None
    host_problems: tuple[str, ...]
    injected_fault: str | None
    exits: dict[str, str]
    last_phase: str | None
    used: str = Field(description="torch, devices and type that were really used, in words")
    memory: str = Field(description="at the peak, in words")
    data: str
    trainings: tuple[TrainingLine, ...]
    phases: tuple[PhaseSpan, ...]
    memory_curves: tuple[MemoryCurve, ...]
    gpu_curves: tuple[GpuCurve, ...] = ()
    kernel_events: tuple[KernelEvent, ...] = ()
    loss_curves: tuple[LossCurve, ...]
    variables: dict[str, dict[str, str]]
    by_hand: tuple[str, ...] = Field(description="commands that repeat the run, a line each")


class ExcludedCells(File):
    """Cells that are not run."""

    cells: tuple[str, ...]
    reason: str


class FindingLine(File):
    """A finding of the linter on a variable of a preset."""

    preset: str
    variable: str
    kind: FindingKind
    text: str
    source: str
    stacks: tuple[str, ...]


class CodeRow(File):
    """One claim about the app's code, and what was observed about it."""

    row: str
    shows: str
    verdict: RowVerdict
    detail: str
    seconds: float | None
    gpu_only: bool
    shown_red: bool = Field(description="a fault planted in the code it judges was seen to change its verdict")


class CodeRun(File):
    """One run of `make gpu-evidence`: what the app's code did on one device. It belongs to no cell."""

    file: str = Field(description="in the results folder")
    on_gpu: bool = Field(description="false: no GPU was used")
    ran_on: str = Field(description="in words")
    software: str = Field(description="in words")
    revision: str = Field(description="of the code, in words")
    started: float = Field(description="seconds since 1970")
    seconds: float
    counts: dict[RowVerdict, int] = Field(description="rows by verdict")
    rows: tuple[CodeRow, ...] = Field(description="those that differ first")
    older: tuple[str, ...] = Field(description="earlier runs on the same device with the same torch, a line each")


class CodeEvidence(File):
    """The runs of `make gpu-evidence`. Nothing else in this report uses them."""

    title: str
    about: str
    runs: tuple[CodeRun, ...] = Field(description="the newest of each device and torch, newest first")
    unreadable: tuple[str, ...] = Field(description="files that were left out, and why")


class Report(Versioned):
    """`report.json`: all verdicts and runs. `runs` are newest first; `details` are of some of them."""

    made: float = Field(description="seconds since 1970")
    harness_version: str
    confidence: float = Field(description="of each bound of a pass rate")
    headline: str
    answer: Answer
    answers: Answers
    cautions: tuple[str, ...]
    groups: tuple[Group, ...]
    verdicts: tuple[VerdictLine, ...]
    failures: tuple[DiagnosedFailures, ...] = Field((), description="the most frequent diagnosis first")
    failure_ages: tuple[FailureAges, ...] = Field((), description="those with failures first")
    runs: tuple[RunLine, ...]
    again: tuple[Command, ...] = Field((), description="what repeats a run: a `matrix` command, or those by hand")
    details: dict[str, RunDetail] = Field(description="by the id of the run")
    dockerfiles: dict[str, str] = Field(description="by cell")
    excluded: tuple[ExcludedCells, ...]
    findings: tuple[FindingLine, ...]
    hosts: tuple[HostFacts, ...]
    code: CodeEvidence

    @property
    def other_commands(self) -> tuple[Command, ...]:
        """Return the next commands that the answer itself does not name."""
        return tuple(step for step in self.answers.next[1:] if step != self.answer.train_now)
