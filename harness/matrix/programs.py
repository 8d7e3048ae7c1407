"""The user's own program, as a workload runs it in place of the app. Pure."""

import re
import shlex
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from harness.base.durations import span
from harness.base.text import safe_text
from harness.matrix.strict import Strict
from harness.matrix.variable_names import Variables

STDOUT, LINES = "stdout", "lines"
# Placeholders: `{data}` in the command is the folder with the data, `{checkpoint}` in `resume:` is a checkpoint.
DATA, CHECKPOINT = "{data}", "{checkpoint}"
# Names in the folder of readable files that the harness uses itself.
SOURCE, PACKAGES = "source", "packages"


def _words(value: object) -> object:
    """Return a command line split into words as a shell would split it."""
    if not isinstance(value, str):
        return value
    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise ValueError(f"{value!r} cannot be split into words: {error}") from None


def _within(file: str) -> str:
    path = PurePosixPath(file)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"{file!r} is not a place in the folder that the program works in; give a relative path")
    return path.as_posix()


def _pattern(progress: str) -> str:
    if progress in (STDOUT, LINES):
        return progress
    try:
        groups = re.compile(progress).groupindex
    # The library counts repetitions in an integer of limited size, and calls itself for each parenthesis.
    except (re.error, OverflowError, RecursionError) as error:
        shown = safe_text(progress)
        raise ValueError(f"{shown} is neither {STDOUT} nor {LINES}, nor a regular expression: {error}") from None
    if "step" not in groups or set(groups) - {"step", "total", "loss"}:
        raise ValueError(f"'{progress}' needs a group (?P<step>...), and may have (?P<total>...) and (?P<loss>...)")
    return progress


def linear_pattern(progress: str) -> Any:
    """Return a regular expression that takes linear time on any line; None if there can be none.

    Python's `re` takes exponential time for some expressions: a line of forty characters could stop the harness from
    watching.
    """
    # Import here, because most commands need no expression.
    import re2  # noqa: PLC0415

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(progress, options)
    except re2.error:
        return None


def _of_different_names(data: tuple[str, ...]) -> tuple[str, ...]:
    names = [Path(place).name for place in data]
    for name in names:
        if not name or name in (SOURCE, PACKAGES) or names.count(name) > 1:
            raise ValueError(f"{name!r}: files are found by name, so names must differ; rename it")
    return data


Words = Annotated[tuple[str, ...], BeforeValidator(_words)]
Within = Annotated[str, AfterValidator(_within)]


class Product(Strict):
    """A file that the program must write after its start."""

    file: Within = Field(description="relative to the folder it works in")
    loads: Literal["safetensors", "torch"] | None = Field(None, description="how it must load: as weights, safely")
    finite: tuple[str, ...] = Field((), description="keys of a JSON file whose numbers must be finite; a.b: b in a")

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.loads and self.finite:
            raise ValueError("`loads:` is for weights and `finite:` for JSON; give one of them")
        return self


class ProgramCopy(Strict):
    """A copy of a program's files, made when the program was taken.

    `folder` holds the copy of its source. `version` is the hash of source, data and requirements. `requirements` are
    the lines of the requirements file.
    """

    folder: str
    version: str
    requirements: tuple[str, ...] = ()


class Program(Strict):
    """The user's own program: what to start, from which folder, and what shows that it worked.

    Paths are on this host. The program is not trusted: it reads a copy of its source, and writes to the run's folder
    only.
    """

    command: Words = Field(min_length=1, description="a line, or its words; {data} is the folder with `data`")
    source: str = Field(description="folder with the program, which it can read; relative to the matrix file")
    data: Annotated[tuple[str, ...], AfterValidator(_of_different_names)] = Field(
        (), description="files and folders it can read, by their names in $MATRIX_DATA"
    )
    requirements: str | None = Field(None, description="packages to install beside those of the stack")
    environment: Variables = Field({})
    produces: tuple[Product, ...] = ()
    progress: Annotated[str, AfterValidator(_pattern)] = Field(
        STDOUT, description="stdout: any line; lines: JSON in $MATRIX_PROGRESS; else a regular expression with `step`"
    )
    resume: Words = Field((), description="arguments to add when it is started again; {checkpoint}: the newest one")
    checkpoint: Within | None = Field(
        None, description="file or folder that it resumes from, such as out/step-*.pt; without: all that it wrote"
    )
    stall_limit: int = Field(600, ge=2, description="seconds without progress after which it hangs")
    taken: SkipJsonSchema[ProgramCopy | None] = None

    @model_validator(mode="after")
    def _names_a_checkpoint(self) -> Self:
        if any(CHECKPOINT in word for word in self.resume) and self.checkpoint is None:
            raise ValueError(f"{CHECKPOINT} in `resume:` is what `checkpoint:` matches; give that, too")
        return self

    def __hash__(self) -> int:
        """Return the hash of the values; the default would fail because one of them is a mapping."""
        return hash(self.model_dump_json())

    @property
    def options(self) -> dict[str, Any]:
        """The values that decide how the program behaves; its files are represented by their hash."""
        others = {"source", "data", "requirements", "resume", "checkpoint", "stall_limit", "taken"}
        version = {"version": self.taken.version} if self.taken else {}
        return {**self.model_dump(mode="json", exclude=others, exclude_defaults=True), **version}

    @property
    def hangs_when(self) -> str:
        """When the program counts as hung, and how to change that, in words."""
        lacks = "a line of output" if self.progress == STDOUT else "progress"
        limit = f"{span(self.stall_limit)} without {lacks}"
        hung = f"it counts as hung after {limit} (--stall-limit, or stall_limit: of its workload)"
        return hung if self.produces else f"{hung}, and as failed if it prints nothing at all (unless --produces)"

    @property
    def no_progress(self) -> str:
        """The reason why nothing shows that the program advances, in words."""
        missing = {STDOUT: "it printed nothing", LINES: "nothing is in $MATRIX_PROGRESS"}
        return missing.get(self.progress, "no line that it printed matches its pattern of progress")

    @property
    def resumes(self) -> bool:
        """Return whether the program says how it resumes."""
        return bool(self.resume or self.checkpoint)

    def words(self, data: str, checkpoint: str | None = None) -> tuple[str, ...]:
        """Return the command line that finds its data in the folder `data`, and resumes from `checkpoint` if given."""
        more = () if checkpoint is None else tuple(word.replace(CHECKPOINT, checkpoint) for word in self.resume)
        return (*(word.replace(DATA, data) for word in self.command), *more)
