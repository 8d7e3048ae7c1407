"""The history of known-good tags: each promotion and demotion with its evidence, a line in `promotions.jsonl`."""

from collections.abc import Iterable
from io import BytesIO
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from harness.base.errors import UserError
from harness.base.files.json_files import Moment, Versioned
from harness.base.files.json_lines import append_line
from harness.base.files.storage import read_regular
from harness.base.validation_errors import headline
from harness.evidence.files.app_files import Sha256
from harness.evidence.records import Results
from harness.evidence.verdicts.totals import Life, Totals
from harness.evidence.verdicts.words import hours_in_words, in_words, shows_mtbf
from harness.matrix.stacks import ExecutorName

PROMOTIONS = "promotions.jsonl"
# Limits, because anybody may write a registry's history, and values that no promotion writes are damage. Hours are
# limited to a hundred years.
Seconds = Annotated[float, Field(ge=0, lt=1e10, allow_inf_nan=False)]
Hours = Annotated[float, Field(ge=0, lt=1e6, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Number = Annotated[int, Field(ge=0, le=1_000_000)]
# Registries limit a repository to 255 characters. Names are printed, and one with a line end could pose as our words.
ShortName = Annotated[str, Field(max_length=300, pattern=r"^[^\x00-\x1f\x7f]*$")]
# The grammar of registries: a tag is a part of the URL of a request.
TagName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$")]
# The lock of a stack is a file of this name.
StackName = Annotated[str, Field(max_length=200, pattern=r"^[!-.0-~]*$")]
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


# Most moves of a history, and most values in all of them together; after years of daily promotions there are half as
# many. A value of three bytes takes up to a hundred bytes in memory, and a move without any takes six thousand.
MOST_MOVES, MOST_VALUES = 5000, 1 << 19


class KnownGood(Versioned):
    """The evidence of a known-good tag: the image, the counts of its runs, their host and workload."""

    tag: TagName
    scope: ShortName = Field(
        description="strategy and kind of GPU it is valid for, such as `cpu`, `gfx1100`, `gfx1100-ddp-2`"
    )
    cell: ShortName
    stack: StackName
    digest: Digest | None = Field(description="of the image's manifest in the registry; null without one")
    repository: ShortName | None = Field(description="in the registry, such as `ghcr.io/me/vpoc`; null without one")
    image: Digest = Field(description="the image's id, which is the digest of its configuration")
    passes: Number
    runs: Number
    low: Share = Field(description="the share of starts that succeed is above this, with `confidence`")
    high: Share = Field(description="the pass rate is below this, with `confidence`")
    confidence: Share = Field(description="of all bounds together: each is held to more where `among` is more than 1")
    among: Number = Field(1, description="cells, each in each of its scopes, that it was the best of")
    started: Number | None = Field(None, description="starts that reached the end of the first training step")
    starts: Number | None = None
    failures: Number | None = Field(None, description="after the first step")
    incidents: Number | None = Field(None, description="those failures, where the ones of a burst are one")
    restart_seconds: Seconds | None = Field(None, description="what a failure cost beside the steps that were lost")
    hours: Hours | None = Field(None, description="of training after the first step")
    mtbf_low: Hours | None = Field(None, description="the mean time between failures is above this, in hours")
    longest_hours: Hours | None = Field(None, description="the claim is about trainings up to that length")
    boots: Number | None = Field(None, description="on how many boots the runs were made")
    tier: Literal["known-good"] = "known-good"
    host_kind: ShortName
    host_fingerprint: ShortName
    gfx: tuple[str, ...] = Field(description="targets of the GPUs used; none on a CPU")
    gpu_count: Number = Field(description="GPUs used by a run; 0 on a CPU")
    driver: ShortName | None
    kernel: ShortName
    firmware: dict[str, tuple[dict[str, str], ...]] = Field(
        {}, description="target -> version by block of each of the GPUs used; empty where it was not told"
    )
    settings: dict[str, str] = Field({}, description="VBIOS of its host's GPUs, parameters of kernel and driver")
    environment_hash: Sha256
    environment: dict[str, Any]
    workload: ShortName
    workload_hash: Sha256 = Field(description="of the newest run")
    family: Sha256 | None = Field(None, description="of the workloads of all runs, which are counted together")
    executor: ExecutorName
    run_ids: tuple[str, ...] = Field(description="the runs of that image that count, oldest first")
    struck: dict[str, str] = Field({}, description="runs that a person struck out, with the reason of each")
    promoted_at: Moment = Field(description="seconds since 1970")
    expires_at: Moment = Field(description="seconds since 1970")
    harness_version: str
    previous: Digest | None = Field(description="the target of the tag before")

    @property
    def target(self) -> str:
        """Return the target of the tag: the digest in the registry, or the id of an image that is in no registry."""
        return self.digest or self.image

    @property
    def shown(self) -> str:
        """Return what its runs showed, in words; for a tag from before hours were counted, how many runs passed."""
        if self.started is None or self.starts is None or self.hours is None:
            return f"{self.passes} of {self.runs} runs passed"
        lives = (Life(self.hours),) if self.hours else ()
        totals = Totals(self.started, self.starts, self.failures or 0, lives, self.boots or 0)
        lasts = f", MTBF above {hours_in_words(self.mtbf_low)}" if self.mtbf_low and shows_mtbf(self.mtbf_low) else ""
        long = f", in trainings up to {hours_in_words(self.longest_hours)}" if self.longest_hours else ""
        return f"{in_words(totals)}{lasts}{long}"

    @property
    def reference(self) -> str:
        """Return the reference of the image for an engine: by digest, or its id if it is in no registry."""
        return f"{self.repository}@{self.digest}" if self.repository and self.digest else self.image


class TagMove(Versioned):
    """A promotion or demotion of a tag."""

    move: Literal["promoted", "demoted"]
    at: Moment = Field(description="seconds since 1970")
    reason: str | None = Field(None, description="of a demotion")
    evidence: KnownGood


def standing_tags(moves: Iterable[TagMove]) -> dict[str, KnownGood]:
    """Return the tags in force by name, which were promoted and not demoted since; moves are oldest first."""
    last = {move.evidence.tag: move for move in moves}
    return {tag: move.evidence for tag, move in last.items() if move.move == "promoted"}


def place_of(image: str, moves: Iterable[TagMove]) -> tuple[str | None, str | None]:
    """Return repository and digest of the last promotion of an image, by its id, in a registry; None without one.

    The content under a digest never changes, whatever happens to tags. Moves are oldest first.
    """
    known = [move.evidence for move in moves if move.evidence.image == image and move.evidence.digest]
    return (known[-1].repository, known[-1].digest) if known else (None, None)


def to_line(move: TagMove) -> bytes:
    """Return a move as a line of the file."""
    return move.model_dump_json(by_alias=True).encode() + b"\n"


def from_lines(content: bytes, place: str) -> list[TagMove]:
    """Return the moves in a file, oldest first. A last line without newline was cut off by a crash, and is ignored.

    Raises:
        UserError: when a line is damaged, or there are too many, so that the tags in force are unknown.
    """
    moves, values = list[TagMove](), 0
    # Read line by line, because a registry may be anybody's, and millions of empty lines take much more memory than
    # text.
    for number, line in enumerate(BytesIO(content), 1):
        if not line.endswith(b"\n"):
            break
        values += sum(map(line.count, (b",", b"[", b"{")))
        if number > MOST_MOVES or values > MOST_VALUES:
            raise UserError(
                f"{place}: holds more than {MOST_MOVES:,} promotions and demotions, or {MOST_VALUES:,} values in them; "
                "remove it and promote again"
            )
        try:
            moves.append(TagMove.parse(line))
        except ValidationError as error:
            raise UserError(f"{place}:{number}: is damaged: {headline(error)}; remove that line") from None
    return moves


def read_moves(results: Results) -> list[TagMove]:
    """Return every promotion and demotion made on this results folder, oldest first.

    Raises:
        UserError: when the file is damaged or cannot be read.
    """
    file = results.folder / PROMOTIONS
    try:
        return from_lines(read_regular(file), str(file))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}; fix its permissions") from None


def append_move(results: Results, move: TagMove) -> None:
    """Add a move to the file, durably.

    Raises:
        UserError: when the results folder cannot be written.
    """
    append_line(results.folder / PROMOTIONS, move, cuts=True)
