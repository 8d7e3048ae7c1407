"""Finds the signature of a line among many, and selects the blocks of a log that may contain such a line."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from harness.diagnosis.allocations import memory_of
from harness.diagnosis.lines import LONGEST, Line
from harness.diagnosis.patterns import any_of, kind_of, kinds_in
from harness.diagnosis.rules import Signature, Where, load_signatures
from harness.diagnosis.tracebacks import Traceback, split_prefix
from harness.host.kernel_log import is_of_process, names_as_words

MOST_KINDS, LONGEST_KIND = 4096, 1024
"""Number of kinds of lines that are cached, and the characters of the longest."""
MOST_DULL = 20_000
"""Maximum number of cached kinds of lines that match nothing."""

# Classes for which the kernel's line is about a process. In such a line, the text of any other class can only be in the
# name of the process.
_OF_PROCESSES = {"crash", "oom-host", "unkillable"}
# Words by which a line says that it is a warning. RCCL uses one of them for errors.
_WARNING = re.compile(r"\b\w*Warning\b(?=[:\s\])])|\bWARNING\b|(?<!NCCL )\bWARN\b|\[W\d*[ .]|^W(?:\d{4})? |: W \w+/")
_ESCAPED = re.compile(r"\{\"log\":")

OfRun = Callable[[re.Match[str]], bool]
"""Filter by the groups `pid` and `name` of a match: True if the process belongs to the run."""


@dataclass(frozen=True)
class Hit:
    """A signature in a line. `frame`: the place in the program, if a traceback or faulthandler shows it."""

    signature: Signature
    line: Line
    frame: Line | None = None


def any_process(_: re.Match[str]) -> bool:
    """Return True: every process counts as one of the run."""
    return True


class Matcher:
    """Some signatures, in their order. The candidates for each kind of line are determined once."""

    def __init__(self, signatures: Iterable[Signature]) -> None:
        # A line known to be benign never counts, whatever else it contains.
        self._ordered = sorted(signatures, key=lambda one: one.severity != "benign")
        self._of_kind: dict[str, tuple[Signature, ...]] = {}

    def match(self, body: str, traceback: Traceback | None = None, of_run: OfRun = any_process) -> Signature | None:
        """Return the signature of a line; None if there is none, or if the line is known to be benign."""
        for signature in self.candidates(kind_of(body)):
            found = signature.find(names_as_words(body) if signature.where == "kernel" else body)
            if found is None or (signature.traceback and not (traceback and traceback.was_raised(signature.traceback))):
                continue
            if signature.memory and signature.memory not in memory_of(body):
                continue
            if signature.in_program and traceback and traceback.is_of_packages:
                continue
            if signature.where == "kernel" and signature.class_ not in _OF_PROCESSES and is_of_process(body):
                continue
            if signature.severity == "benign":
                return None
            if not signature.in_warnings and _WARNING.search(body, 0, found.start()):
                continue
            if not of_run(found):
                continue
            return signature
        return None

    def candidates(self, kind: str) -> tuple[Signature, ...]:
        """Return the signatures that may match a line of this kind, given without its prefix."""
        known = self._of_kind.get(kind)
        if known is None:
            anywhere, holding = self._needed
            texts = {found[1] for found in anywhere.finditer(kind)}
            numbers = sorted({number for text in texts for number in holding[text]})
            known = tuple(one for one in (self._ordered[number] for number in numbers) if one.may_be_of(kind))
            if len(kind) <= LONGEST_KIND:
                if len(self._of_kind) >= MOST_KINDS:
                    self._of_kind.clear()
                self._of_kind[kind] = known
        return known

    @cached_property
    def _needed(self) -> tuple[re.Pattern[str], dict[str, list[int]]]:
        """A pattern for the beginnings of needed texts, also of overlapping ones, and the signatures by such text."""
        needed = [one.needed_of_kinds for one in self._ordered]
        anywhere = re.compile(f"(?=({any_of(text for texts in needed for text in texts)}))")
        holding: dict[str, list[int]] = {}
        for number, texts in enumerate(needed):
            for text in texts:
                # Of texts with the same beginning only the shortest is found.
                if shortest := anywhere.match(text):
                    holding.setdefault(shortest[1], []).append(number)
        return anywhere, holding


@cache
def matcher_of(where: tuple[Where, ...], rocm: str | None = None, torch: str | None = None) -> Matcher:
    """Return the matcher for these places and versions, made once."""
    return Matcher(one for one in load_signatures().of(*where) if one.holds_for(rocm, torch))


class Sieve:
    """Selects the blocks of a log that may match a signature or contain one of some `texts`, and skips all others.

    The lines of a block are first reduced to their kinds, of which a training log has few. All texts that signatures
    need are then searched for at once, and only a kind that contains one is compared with the signatures themselves.
    """

    def __init__(self, signatures: Sequence[Signature], texts: Iterable[str]) -> None:
        self._matcher = Matcher(signatures)
        recoveries = [one.recovered_by for one in signatures if one.recovered_by]
        self._always = [kind_of(text) for text in (*recoveries, *texts)]
        needed = (text for one in signatures for text in one.needed_of_kinds)
        self._any = re.compile(any_of([*self._always, *needed]))
        self._dull: set[bytes] = set()

    def __call__(self, block: str) -> bool:
        """Return whether a block has to be read line by line."""
        new = kinds_in(block) - self._dull
        if any(map(self._may_count, self._holding(b"\n".join(new).decode()))):
            return True
        if len(self._dull) > MOST_DULL:
            self._dull.clear()
        self._dull.update(kind for kind in new if len(kind) <= LONGEST_KIND)
        return False

    def _holding(self, lines: str) -> Iterator[str]:
        """Yield the lines that contain any of the wanted texts."""
        end = 0
        while found := self._any.search(lines, end):
            start = lines.rfind("\n", 0, found.start()) + 1
            end = lines.find("\n", found.end())
            end = len(lines) if end < 0 else end
            yield lines[start:end]

    def _may_count(self, kind: str) -> bool:
        # A line that is split or unescaped before matching has other kinds than its parts.
        if len(kind) > LONGEST or _ESCAPED.match(kind) or any(text in kind for text in self._always):
            return True
        body = split_prefix(kind)[1]
        return any(map(self._matcher.candidates, {kind, body, kind.lstrip(" |"), body.lstrip(" |")}))
