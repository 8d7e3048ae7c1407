"""The gate: refuses a file with data that is not plausible, unless the user accepts it."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from vpoc.data.bars import Bars
from vpoc.data.checks.plausibility import Plausibility
from vpoc.data.checks.plausibility_rules import Implausible, stamp_text_of
from vpoc.errors import UserError


def judged(found: Sequence[Implausible], accepted: Collection[str]) -> tuple[list[Implausible], list[Implausible]]:
    """Return the findings for which a file is refused, and those that only cause a warning."""
    refused = [one for one in found if one.gross and one.rule.name not in accepted]
    return refused, [one for one in found if one not in refused]


def require_plausible(path: Path, found: Sequence[Implausible], accepted: Collection[str]) -> tuple[str, ...]:
    """Return the accepted rules that the file at `path` breaks; UserError with the first broken rule not `accepted`."""
    refused, _ = judged(found, accepted)
    if refused:
        one = refused[0]
        more = f" (and {len(refused) - 1} more that `vpoc check` names)" if len(refused) > 1 else ""
        raise UserError(f"{replace(one, line=one.line or line_of(path, one.ts)).at(path)}{more}")
    return tuple(one.rule.name for one in found if one.gross)


def require_plausible_bars(bars: Bars, accepted: Collection[str]) -> tuple[str, ...]:
    """Do what `require_plausible` does for the bars of a whole file."""
    gate = Plausibility()
    gate.add(bars)
    return require_plausible(bars.path, gate.found(), accepted)


def plausible_blocks(
    path: Path, blocks: Iterator[Bars], accepted: Collection[str], broken: list[str]
) -> Iterator[Bars]:
    """Yield `blocks` of the file at `path`; after the last, add the result of `require_plausible` to `broken`."""
    gate = Plausibility()
    for bars in blocks:
        gate.add(bars)
        yield bars
    broken += require_plausible(path, gate.found(), accepted)


def line_of(path: Path, ts: int) -> int:
    """Return the line of the merged CSV at `path` with this stamp; 0 if there is none."""
    wanted = stamp_text_of(ts).encode()
    try:
        with path.open("rb") as stream:
            return next((number for number, line in enumerate(stream, 1) if wanted in line), 0)
    except OSError:
        return 0
