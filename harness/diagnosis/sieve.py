"""Selects the blocks of a log that may match a signature. A block that it refuses matches none."""

import re
from collections.abc import Iterator
from functools import cache

from harness.diagnosis.lines import LONGEST
from harness.diagnosis.patterns import any_of, kind_of, kinds_in
from harness.diagnosis.rules import Where, load_signatures
from harness.diagnosis.scan import IN_A_LOG, LONGEST_KIND, STATE_TEXTS, Matcher
from harness.diagnosis.tracebacks import split_prefix

MOST_DULL = 20_000
"""Maximum number of cached kinds of lines that match nothing."""


class Sieve:
    """The texts and signatures of some places of a log.

    The lines of a block are reduced to their kinds first, of which a training log has few. All texts that signatures
    need are then looked for at once, and only a kind that holds one is compared with the signatures themselves.
    """

    def __init__(self, where: tuple[Where, ...]) -> None:
        signatures = load_signatures().of(*where)
        self._matcher = Matcher(signatures)
        recoveries = [one.recovered_by for one in signatures if one.recovered_by]
        always = [kind_of(text) for text in (*recoveries, *STATE_TEXTS)]
        self._always = any_of(always)
        self._any = any_of([*always, *(text for one in signatures for text in one.needed_of_kinds)])
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
        """Yield the lines that hold any text that is looked for."""
        end = 0
        while found := self._any.search(lines, end):
            start = lines.rfind("\n", 0, found.start()) + 1
            end = lines.find("\n", found.end())
            end = len(lines) if end < 0 else end
            yield lines[start:end]

    def _may_count(self, kind: str) -> bool:
        # A line that is split or unescaped before matching has other kinds than its parts.
        if len(kind) > LONGEST or _ESCAPED.match(kind) or self._always.search(kind):
            return True
        body = split_prefix(kind)[1]
        return any(map(self._matcher.candidates, {kind, body, kind.lstrip(" |"), body.lstrip(" |")}))


_ESCAPED = re.compile(r"\{\"log\":")


@cache
def worth_reading(where: tuple[Where, ...] = IN_A_LOG) -> Sieve:
    """Return the sieve for these places, made once."""
    return Sieve(where)
