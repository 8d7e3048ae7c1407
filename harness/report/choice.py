"""Choose the cell to recommend from the verdicts. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import get_args

from harness.evidence.verdicts.rates import lower_bound
from harness.evidence.verdicts.verdict import Tier, Verdict
from harness.matrix.cells import Verdicts
from harness.report.words import at_least, many, names, share

TIERS: tuple[Tier, ...] = get_args(Tier)
NOT_TO_BE_USED: tuple[Tier, ...] = ("failing", "flaky")
# Known-good tags by cell, environment hash and scope.
Tags = Mapping[tuple[str, str, str], str]
# The number of further runs is not predicted beyond this.
FORESEEN = 200


def best_by_scope(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return the most promising verdict of each scope, GPUs first; leaves out stale verdicts and those without runs."""
    scopes: dict[tuple[bool, str], list[Verdict]] = {}
    for verdict in verdicts:
        if verdict.runs and not verdict.stale:
            scopes.setdefault((verdict.device == "cpu", verdict.scope), []).append(verdict)
    return [_best(found) for _, found in sorted(scopes.items())]


def which_cell(verdicts: Sequence[Verdict], thresholds: Verdicts, tags: Tags) -> tuple[str, ...]:
    """Return the recommended cell in words, a paragraph for each scope."""
    best = best_by_scope(verdicts)
    if not best:
        return ("Nothing was run yet.",) if not verdicts else ("None of the runs counts.",)
    return tuple(_in_words(one, verdicts, thresholds, tags) for one in best)


def runs_to_go(passes: int, runs: int, thresholds: Verdicts) -> int | None:
    """Return how many more completed runs make a cell known good; None if that takes more than FORESEEN."""
    for more in range(FORESEEN + 1):
        if lower_bound(passes + more, runs + more, thresholds.confidence) > thresholds.known_good:
            return more
    return None


def _best(found: Sequence[Verdict]) -> Verdict:
    good = {verdict.cell: verdict.low for verdict in found if verdict.tier == "known-good"}
    # A single failure with another workload does not outweigh a known-good verdict; a clearly lower pass rate does.
    bad = {v.cell for v in found if v.tier in NOT_TO_BE_USED and v.high < good.get(v.cell, 2)}

    def rank(verdict: Verdict) -> tuple[bool, bool, int, float, bool]:
        tier = TIERS.index(verdict.tier)
        return verdict.cell not in bad, verdict.qualifies_for_promotion, tier, verdict.low, verdict.preset == "plain"

    return max(found, key=rank)


def _in_words(best: Verdict, verdicts: Sequence[Verdict], thresholds: Verdicts, tags: Tags) -> str:
    cell, scope = f"`{best.cell}`", f"`{best.scope}`"
    runs = f"{best.passes} of {many(best.runs, 'run')} of workload `{best.workload}` completed"
    sure = f"{share(thresholds.confidence)} confidence"
    if best.tier in NOT_TO_BE_USED:
        why = f", mostly for `{best.diagnosis}`" if best.diagnosis else ""
        said = [f"On {scope}: no cell can be recommended. The best, {cell}, is {best.tier}: {runs}{why}."]
    elif best.tier == "known-good":
        said = [
            f"On {scope}: use {cell}, which is known good: {runs}; it completes more than {at_least(best.low)} of the"
        ]
        said[0] += f" time ({sure})."
    else:
        said = [
            f"On {scope}: no cell is known good yet. The best so far is {cell} ({best.tier}): {runs}, which shows that"
        ]
        said[0] += f" it completes more than {at_least(best.low)} of the time ({sure})."
        more = runs_to_go(best.passes, best.runs, thresholds)
        if more:
            said.append(f"{many(more, 'more run')} without a failure would make it known good.")
    if tag := tags.get((best.cell, best.environment_hash, best.scope)):
        said.append(f"Its image has the tag `{tag}`.")
    return " ".join([*said, *_besides(best, verdicts)])


def _besides(best: Verdict, verdicts: Sequence[Verdict]) -> list[str]:
    """Return sentences that qualify the recommendation."""
    said = []
    near = [v for v in verdicts if v.scope == best.scope and not v.stale and v is not best]
    equal = sorted({v.cell for v in near if v.tier == best.tier == "known-good"} - {best.cell})
    if equal:
        said.append(f"{names(equal)} {'is' if len(equal) == 1 else 'are'} known good too.")
    said += [
        f"But with workload `{other.workload}` it is {other.tier}: {other.passes} of {other.runs}."
        for other in near
        if other.cell == best.cell and other.tier in NOT_TO_BE_USED
    ]
    if best.imported:
        said.append(f"Of these runs, {best.imported} came from other hosts by import.")
    if not best.qualifies_for_promotion:
        said.append(f"Workload `{best.workload}` does not qualify for promotion.")
    if best.executor == "process" and best.tier not in NOT_TO_BE_USED:
        said.append("These runs were processes; only runs in containers qualify an image for promotion.")
    return said
