"""The verdict that an answer is about: the cell to train in, and how it uses devices. Pure."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from harness.evidence.verdicts.scope import parts_of
from harness.evidence.verdicts.verdict import Tier, Verdict
from harness.matrix.cells import Matrix

TIERS: tuple[Tier, ...] = get_args(Tier)
NOT_TO_BE_USED: tuple[Tier, ...] = ("failing", "flaky")
# From this tier on a cell is recommended.
RELIABLE: Tier = "candidate"
# From this tier on another cell takes the place of the one that a campaign named.
GOOD: Tier = "good"
# Mean times between failures that differ by less than half a minute are equal.
HOURS_DIGITS = 2


@dataclass(frozen=True)
class NamedCell:
    """The cell that a campaign's conclusion names, and how it used devices."""

    cell: str
    strategy: str


def usable_on(verdicts: Iterable[Verdict], matrix: Matrix, host_kind: str | None) -> list[Verdict]:
    """Return those of a kind of host, or of all, on cells that are in the matrix file and not excluded."""
    cells = {cell.id for cell in matrix.cells.values() if not cell.excluded}
    return [one for one in verdicts if one.cell in cells and host_kind in (None, one.host_kind)]


def that_train(verdicts: Iterable[Verdict], matrix: Matrix) -> list[Verdict]:
    """Return those that may recommend a cell to train in.

    One whose steps JAX makes only tells whether it is PyTorch or ROCm. Of a program of the user's own nobody checked
    the numbers, and what it fails with may be a mistake in it.
    """
    torch = (one for one in verdicts if one.stack not in matrix.stacks or not matrix.stacks[one.stack].jax)
    return [one for one in torch if not one.own_program]


def best_by_scope(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return the most promising verdict of each scope, GPUs first; leaves out stale verdicts and those without runs."""
    scopes: dict[tuple[bool, str], list[Verdict]] = {}
    for verdict in _that_count(verdicts):
        scopes.setdefault((verdict.device == "cpu", verdict.scope), []).append(verdict)
    return [max(found, key=_promise_among(found)) for _, found in sorted(scopes.items())]


def most_useful(verdicts: Iterable[Verdict], named: NamedCell | None = None) -> Verdict | None:
    """Return the verdict that the answer is about; None without any that counts.

    A GPU comes before the CPU whatever it showed: a pass on the CPU says nothing of GPUs. What the last campaign
    `named` comes before others of its device, unless it fails since, or another is shown to be good and it is not. Of
    what is reliable the most GPUs come first, of the rest the best.
    """

    def rank(one: Verdict) -> tuple[bool, bool, int, int]:
        reliable = TIERS.index(one.tier) >= TIERS.index(RELIABLE)
        return one.device != "cpu", reliable, parts_of(one.scope).devices if reliable else 0, TIERS.index(one.tier)

    known = list(_that_count(verdicts))
    best = max(best_by_scope(known), key=rank, default=None)
    if best is None or named is None:
        return best
    own = [
        one
        for one in known
        if NamedCell(one.cell, parts_of(one.scope).strategy) == named and one.tier not in NOT_TO_BE_USED
    ]
    chosen = max(own, key=_promise_among(known), default=None)
    if chosen is None or (chosen.device == "cpu") != (best.device == "cpu"):
        return best
    surpassed = TIERS.index(best.tier) >= TIERS.index(GOOD) > TIERS.index(chosen.tier)
    return best if surpassed else chosen


def most_useful_before(verdicts: Iterable[Verdict]) -> Verdict | None:
    """Return what the answer was about before environments, or this host, changed; None if that should not be used."""
    stale = {one.last: one for one in verdicts if one.stale and one.tier not in NOT_TO_BE_USED}
    best = most_useful(replace(one, stale=False) for one in stale.values())
    return best and stale[best.last]


def _that_count(verdicts: Iterable[Verdict]) -> Iterable[Verdict]:
    return (one for one in verdicts if one.runs and not one.stale)


def _promise_among(found: Sequence[Verdict]) -> Callable[[Verdict], tuple[bool, bool, int, float, float, bool]]:
    """Return what gives the promise of a verdict among these."""
    good = {verdict.cell: verdict.low for verdict in found if verdict.tier == "known-good"}
    # A single failure with another workload does not outweigh a known-good verdict; a clearly lower pass rate does.
    bad = {v.cell for v in found if v.tier in NOT_TO_BE_USED and v.high < good.get(v.cell, 2)}

    def promise(verdict: Verdict) -> tuple[bool, bool, int, float, float, bool]:
        tier, may = TIERS.index(verdict.tier), verdict.qualifies_for_promotion
        # Seconds that a short run took longer show nothing.
        bounds = (round(verdict.mtbf_low, HOURS_DIGITS), verdict.low)
        return verdict.cell not in bad, may, tier, *bounds, verdict.preset == "plain"

    return promise
