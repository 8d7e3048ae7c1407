"""Chooses the verdict that answers which cell to train in, and how to use its devices. Pure."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from harness.evidence.verdicts.scope import parts_of
from harness.evidence.verdicts.verdict import SEEN, Tier, Verdict
from harness.matrix.cells import Matrix

TIERS: tuple[Tier, ...] = get_args(Tier)
NOT_TO_BE_USED: tuple[Tier, ...] = ("failing", "flaky")
# A cell is recommended from this tier on.
RELIABLE: Tier = "candidate"
# Another cell replaces the one that a campaign named from this tier on.
GOOD: Tier = "good"
# Digits to which mean times between failures are compared: a difference of less than half a minute does not count.
HOURS_DIGITS = 2
# What the most promising verdict is chosen by, first to last; larger is better.
Promise = tuple[bool, bool, int, bool, bool, float, float, bool]


@dataclass(frozen=True)
class NamedCell:
    """The cell that a campaign's conclusion names, and the strategy with which it used devices."""

    cell: str
    strategy: str


def usable_on(verdicts: Iterable[Verdict], matrix: Matrix, host_kind: str | None) -> list[Verdict]:
    """Return the verdicts on a kind of host, or on all, whose cells are in the matrix file and not excluded."""
    cells = {cell.id for cell in matrix.cells.values() if not cell.excluded}
    return [one for one in verdicts if one.cell in cells and host_kind in (None, one.host_kind)]


def that_train(verdicts: Iterable[Verdict], matrix: Matrix) -> list[Verdict]:
    """Return the verdicts that may recommend a cell to train in.

    A stack whose steps JAX makes only shows whether PyTorch or ROCm is at fault. Of a program of the user's own nothing
    checked the numbers, and its failures may be mistakes in it.
    """
    torch = (one for one in verdicts if one.stack not in matrix.stacks or not matrix.stacks[one.stack].jax)
    return [one for one in torch if not one.own_program]


def strength(tier: Tier, mtbf_low: float, low: float) -> tuple[int, float, float]:
    """Return what is compared of verdicts, first to last; larger is better. The bounds are those of the verdict."""
    # That a short run took a few seconds longer shows nothing.
    return TIERS.index(tier), round(mtbf_low, HOURS_DIGITS), low


def best_by_scope(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return the most promising verdict of each scope, GPUs first, without stale verdicts and those without runs."""
    scopes: dict[tuple[bool, str], list[Verdict]] = {}
    for verdict in _that_count(verdicts):
        scopes.setdefault((verdict.device == "cpu", verdict.scope), []).append(verdict)
    return [max(found, key=_promise_among(found)) for _, found in sorted(scopes.items())]


def most_useful(verdicts: Iterable[Verdict], named: NamedCell | None = None) -> Verdict | None:
    """Return the verdict that the answer is about; None where no verdict counts.

    A GPU comes before the CPU whatever it showed, because a pass on the CPU says nothing about GPUs. The cell that the
    last campaign `named` comes before others on the same kind of device, unless it has failed since, or another one is
    shown to be good and it is not. Among reliable verdicts the one with the most GPUs comes first; otherwise the best
    one.
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
    """Return the answer from before the environments or this host changed; None if that cell should not be used."""
    stale = {one.last: one for one in verdicts if one.stale and one.tier not in NOT_TO_BE_USED}
    best = most_useful(replace(one, stale=False) for one in stale.values())
    return best and stale[best.last]


def _that_count(verdicts: Iterable[Verdict]) -> Iterable[Verdict]:
    return (one for one in verdicts if one.runs and not one.stale)


def _promise_among(found: Sequence[Verdict]) -> Callable[[Verdict], Promise]:
    """Return a function that gives the promise of a verdict among these; a larger one is better."""
    newest = max((one.last_at for one in found), default=0.0)
    data = {one.data for one in found if one.last_at == newest}
    good = {verdict.cell: verdict.low for verdict in found if verdict.tier == "known-good"}
    # One failure with another workload does not outweigh a known-good verdict; a clearly lower pass rate does.
    bad = {v.cell for v in found if v.tier in NOT_TO_BE_USED and v.high < good.get(v.cell, 2)}

    def promise(verdict: Verdict) -> Promise:
        tier, mtbf, low = strength(verdict.tier, verdict.mtbf_low, verdict.low)
        # A few runs on other bars than those of the newest run show no more than a few on these.
        asked = verdict.tier != SEEN or verdict.data in data
        # A training that resumed behind its last step passed, and started nothing.
        starts = verdict.totals.starts > 0
        may = verdict.qualifies_for_promotion
        return verdict.cell not in bad, may, tier, starts, asked, mtbf, low, verdict.preset == "plain"

    return promise
