"""The signatures of known failures, as types. `signatures.yaml` has the data, which is read and checked once."""

import re
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from signal import Signals
from typing import Annotated, Literal, Self, get_args

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from harness.base.errors import UserError
from harness.base.files.yaml_lines import Document, read_yaml
from harness.base.validation_errors import in_plain_words
from harness.base.versions import Specifier
from harness.diagnosis.allocations import Allocation
from harness.diagnosis.patterns import kind_of, needed_text, of_kinds
from harness.diagnosis.tracebacks import Raised
from harness.environments.executors.job import SHELL_SIGNALS
from harness.matrix.programs import linear_pattern

SIGNATURES = Path(__file__).with_name("signatures.yaml")
SHORTEST_NEEDED, LONGEST_NEEDED = 4, 10
# The fields of a rule that `harness.host.gpus.kernel_resets` uses.
OF_A_RESET = {"id", "where", "text", "regex", "class_", "cause", "remedy", "link", "presets"}
# Groups of a pattern by which a kernel rule finds out whether a line names a process of the run.
PROCESS_GROUPS = {"pid", "name"}
_GROUP = re.compile(r"\(\?P<(\w+)>")

Where = Literal["log", "build", "kernel", "exit", "stack", "end"]
Severity = Literal["fatal", "ending", "lost-peer", "symptom", "benign"]
Fault = Literal["environment", "host", "program", "run"]
GpuFate = Literal["reset", "lost", "faulted", "unharmed"]

# {number}: 11; {name}: SIGSEGV; {code}: 139, as a shell reports it; {words}: segmentation fault, as Go words it.
_WORDINGS = (
    r"exits with return code = -(?:{number})\b",
    r"\bexitcode\s*:\s*-(?:{number})\b",
    r"[Ee]xit(?:ed with)? code:? (?:{code}|-(?:{number}))\b",
    r"xit status:? (?:{code}|-(?:{number}))\b",
    r"\breturncode[=: ]{{1,2}}-(?:{number})\b",
    r"status=(?:{number})/[A-Z]",
    r"Signal (?:{number}) \(SIG",
    r"(?:by|with|on|received|caught|got) signal:? (?:{number})\b",
    r"(?:[Rr]eceived|[Cc]aught|[Gg]ot) signal:? (?:{name})\b",
    r"terminated (?:with|by) signal (?:{name})\b",
    r"died with <Signals\.(?:{name})\b",
    r"was killed by (?:{name})\b",
    r"\bsignal: (?:{words})\b",
)
_WORDS = {
    "SIGABRT": "aborted",
    "SIGBUS": "bus error",
    "SIGFPE": "floating point exception",
    "SIGILL": "illegal instruction",
    "SIGKILL": "killed",
    "SIGSEGV": "segmentation fault",
    "SIGTERM": "terminated",
}


RuleName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")]
Sentence = Annotated[str, Field(min_length=10)]
Remedy = Annotated[str, Field(min_length=4)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True, populate_by_name=True)


class FailureClass(_Strict):
    """A kind of failure.

    `fault`: the origin: the tested environment, the host, the program, or the course of the run.
    `of_an_unhealthy_gpu`: whether a GPU that the kernel has just reset can cause the failure.
    `gpu`: for classes with kernel rules, what their line says about a GPU. `reset` makes a run on that GPU a host
        fault; after `reset` and `lost`, errors of programs are only consequences; errors after `faulted` are
        consequences of the program's own fault.
    `cpu`: the remedy for a run that used no GPU, where a rule of the class has none.
    """

    fault: Fault
    what: Sentence
    of_an_unhealthy_gpu: bool = False
    gpu: GpuFate | None = None
    cpu: Remedy | None = None

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.unhealthy and not (self.fault == "host" and self.of_an_unhealthy_gpu):
            raise ValueError(f"`gpu: {self.gpu}` needs `fault: host` and `of_an_unhealthy_gpu: true`")
        return self

    @property
    def unhealthy(self) -> bool:
        """True where the kernel's line says that everything on a GPU is lost."""
        return self.gpu in ("reset", "lost")


class Signature(_Strict):
    """A known failure: its patterns, its cause, and its remedy.

    `text`, `regex`: literal substrings and regular expressions for one line, case-sensitive. One match is enough, if
        nothing of `unless` matches in its text.
    `where`: `stack` is matched with `path function` of a frame, `exit` with how the run ended, in words, `end` with the
        last line of a log in which nothing else was found.
    `recovered_by`: there was no failure if this literal text follows within a few lines.
    `signals`: matches all ways in which programs report that a process was ended by one of these signals.
    `in_warnings`: whether the signature also counts in a line that says that it is a warning.
    `in_program`: whether a traceback that ends at the line must have a frame outside installed packages.
    `traceback`: the line must end a Python traceback that was raised in this way.
    `memory`: what the amounts in torch's out-of-memory message must show.
    `generic`: whether the line only says that something failed; the end of a process before it counts instead.
    `catch_all`: whether the line is unspecific; a later, specific fatal line of the environment or host counts instead.
    `cpu`: the remedy for a run that used no GPU, in place of `remedy`.
    `rocm`, `torch`: the versions that the signature applies to; it never applies if the version is unknown.
    """

    id: RuleName
    where: Where = "log"
    text: tuple[str, ...] = ()
    regex: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()
    severity: Severity = "fatal"
    recovered_by: str | None = None
    in_warnings: bool = False
    in_program: bool = False
    traceback: Raised | None = None
    memory: Allocation | None = None
    generic: bool = False
    catch_all: bool = False
    rocm: Specifier | None = None
    torch: Specifier | None = None
    class_: RuleName = Field(alias="class")
    cause: Sentence
    remedy: Remedy
    cpu: Remedy | None = None
    link: str | None = Field(None, pattern=r"^https://\S+$")
    presets: tuple[RuleName, ...] = ()

    @model_validator(mode="after")
    def _can_be_found(self) -> Self:
        if not (self.text or self.expressions):
            raise ValueError("give `text:` or `regex:`")
        # A line is first searched for these letters. Rules for `end` need none: the last line is compared with each of
        # them.
        for pattern in self.expressions if self.where != "end" else ():
            if _letters(needed_text(pattern)) < SHORTEST_NEEDED:
                raise ValueError(f"{pattern!r} should hold {SHORTEST_NEEDED} literal letters in a row")
        if unknown := {group for pattern in self.regex for group in _GROUP.findall(pattern)} - PROCESS_GROUPS:
            raise ValueError(f"a group is called pid or name, not {', '.join(sorted(unknown))}")
        if any(_letters(text) < SHORTEST_NEEDED for text in self.text):
            raise ValueError(f"every `text:` should have {SHORTEST_NEEDED} letters or more")
        return self

    @cached_property
    def expressions(self) -> tuple[str, ...]:
        """The regular expressions, with those for the signals."""
        return (*self.regex, *of_signals(self.signals))

    @cached_property
    def needed_of_kinds(self) -> tuple[str, ...]:
        """The beginnings of the needed texts: a line can only match if its kind contains one of them."""
        needed = (*self.text, *map(needed_text, self.expressions))
        return tuple(kind_of(text[:LONGEST_NEEDED]) for text in needed)

    @cached_property
    def patterns(self) -> tuple[re.Pattern[str], ...]:
        """The texts and regular expressions, all as patterns."""
        return (
            *(re.compile(re.escape(text)) for text in self.text),
            *map(linear_pattern, self.expressions),
        )

    @cached_property
    def _of_kinds(self) -> tuple[re.Pattern[str], ...]:
        return tuple(linear_pattern(of_kinds(pattern)) for pattern in self.expressions)

    @cached_property
    def _unless(self) -> re.Pattern[str] | None:
        return linear_pattern("|".join(self.unless)) if self.unless else None

    def may_be_of(self, kind: str) -> bool:
        """Return whether `find` may find a match in a line of this kind."""
        return any(kind_of(text) in kind for text in self.text) or any(one.search(kind) for one in self._of_kinds)

    def find(self, line: str) -> re.Match[str] | None:
        """Return the first match in a line."""
        found = (next(filter(self._counts, pattern.finditer(line)), None) for pattern in self.patterns)
        return min(filter(None, found), key=lambda match: match.start(), default=None)

    def _counts(self, match: re.Match[str]) -> bool:
        return not (self._unless and self._unless.search(match[0]))

    def holds_for(self, rocm: str | None, torch: str | None) -> bool:
        """Return whether the signature applies to these versions."""
        return all(wanted is None or _within(have, wanted) for wanted, have in ((self.rocm, rocm), (self.torch, torch)))


class Signatures(_Strict):
    """The content of signatures.yaml, in its order: of two signatures that match a line, the first counts."""

    version: Literal[1] = Field(alias="schema")
    classes: dict[RuleName, FailureClass]
    signatures: tuple[Signature, ...]

    @model_validator(mode="after")
    def _refers_to_itself(self) -> Self:
        seen: set[str] = set()
        for signature in self.signatures:
            if signature.class_ not in self.classes:
                raise ValueError(f"{signature.id}: the class {signature.class_} is not listed under `classes:`")
            if signature.id in seen:
                raise ValueError(f"{signature.id}: appears twice")
            seen.add(signature.id)
            without = self.classes[signature.class_].cpu or signature.remedy
            if signature.cpu == without:
                raise ValueError(f"{signature.id}: leave `cpu:` out: {without!r} holds without it")
            told = self.classes[signature.class_].gpu
            if signature.where == "kernel" and told is None:
                choices = ", ".join(get_args(GpuFate))
                raise ValueError(f"{signature.id}: its class {signature.class_} needs `gpu:`, one of {choices}")
            conditions = ", ".join(f"`{name}:`" for name in sorted(signature.model_fields_set - OF_A_RESET))
            if told == "reset" and signature.where != "kernel":
                raise ValueError(f"{signature.id}: resets are reported by the kernel alone; give `where: kernel`")
            if told == "reset" and conditions:
                raise ValueError(f"{signature.id}: a reset is one by its line alone; leave {conditions} out")
        heard = {signature.class_ for signature in self.of("kernel")}
        if unheard := next((name for name, one in self.classes.items() if one.gpu and name not in heard), None):
            raise ValueError(f"the class {unheard} has `gpu:`, and no rule with `where: kernel`")
        return self

    def of(self, *where: Where) -> tuple[Signature, ...]:
        """Return the signatures for these places."""
        return tuple(signature for signature in self.signatures if signature.where in where)

    def by_id(self, name: str) -> Signature:
        """Return the signature with an id."""
        return next(signature for signature in self.signatures if signature.id == name)

    def remedy_on_a_cpu(self, rule: str | None, class_: str) -> str | None:
        """Return the remedy for a run that used no GPU, from the rule and the class of its explanation.

        Return None if neither is known any more, and if there is no other remedy than that of the old explanation.
        """
        signature = next((one for one in self.signatures if one.id == rule), None)
        of_class = self.classes.get(signature.class_ if signature else class_)
        found = (signature and signature.cpu) or (of_class and of_class.cpu)
        return found or (signature.remedy if signature else None)


@cache
def load_signatures(file: Path = SIGNATURES) -> Signatures:
    """Read and check a file of signatures, once.

    Raises:
        UserError: with one line per mistake, `file:line: where: what`.
    """
    try:
        document = read_yaml(file)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: cannot be read: {error}") from None
    try:
        return Signatures.model_validate(document.data)
    except ValidationError as error:
        raise UserError("\n".join(_messages(file, document, error))) from None


def of_signals(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the expressions for the end of a process by one of these signals, in every known wording.

    Raises:
        ValueError: when the words for a signal are not known.
    """
    if unknown := set(names) - set(_WORDS):
        raise ValueError(f"give some of {', '.join(sorted(_WORDS))}, not {', '.join(sorted(unknown))}")
    if not names:
        return ()
    numbers = [int(Signals[name]) for name in names]
    said = {
        "number": "|".join(map(str, numbers)),
        "code": "|".join(str(SHELL_SIGNALS + number) for number in numbers),
        "name": "|".join(names),
        "words": "|".join(_WORDS[name] for name in names),
    }
    return tuple(wording.format(**said) for wording in _WORDINGS)


def _letters(text: str) -> int:
    # A Chinese or Cyrillic letter counts twice, because it is rarer in logs than two Latin letters.
    return sum(1 + (not letter.isascii()) for letter in text if not letter.isdigit())


def _within(have: str | None, wanted: SpecifierSet) -> bool:
    try:
        return have is not None and Version(have.split("+")[0]) in wanted
    except InvalidVersion:
        return False


def _messages(file: Path, document: Document, error: ValidationError) -> Iterator[str]:
    for details in error.errors():
        where = [step for step in details["loc"] if not (isinstance(step, str) and "[" in step)]
        yield f"{file}:{document.line(where)}: {'.'.join(map(str, where))}: {in_plain_words(details)}"
