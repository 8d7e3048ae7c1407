"""Choose the cell to recommend from the verdicts. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import get_args

from harness.evidence.verdicts.expectation import expectation_of_totals
from harness.evidence.verdicts.missing import missing_to
from harness.evidence.verdicts.verdict import Tier, Verdict
from harness.evidence.verdicts.words import claim_in_words, in_words
from harness.matrix.cells import Verdicts
from harness.report.words import many, names, share
from harness.training.expect import USUAL_HOURS

TIERS: tuple[Tier, ...] = get_args(Tier)
NOT_TO_BE_USED: tuple[Tier, ...] = ("failing", "flaky")
# Known-good tags by cell, environment hash and scope.
Tags = Mapping[tuple[str, str, str], str]


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


def _best(found: Sequence[Verdict]) -> Verdict:
    good = {verdict.cell: verdict.low for verdict in found if verdict.tier == "known-good"}
    # A single failure with another workload does not outweigh a known-good verdict; a clearly lower pass rate does.
    bad = {v.cell for v in found if v.tier in NOT_TO_BE_USED and v.high < good.get(v.cell, 2)}

    def rank(verdict: Verdict) -> tuple[bool, bool, int, float, float, bool]:
        tier, may = TIERS.index(verdict.tier), verdict.qualifies_for_promotion
        bounds = (verdict.mtbf_low, verdict.low)
        return verdict.cell not in bad, may, tier, *bounds, verdict.preset == "plain"

    return max(found, key=rank)


def _in_words(best: Verdict, verdicts: Sequence[Verdict], thresholds: Verdicts, tags: Tags) -> str:
    cell, scope = f"`{best.cell}`", f"`{best.scope}`"
    runs = f"{best.passes} of {many(best.runs, 'run')} of workload `{best.workload}` passed"
    shown = f"{in_words(best.totals)}, with workload `{best.workload}`"
    claim = f"{claim_in_words(best)} ({share(thresholds.confidence)} confidence each)"
    if best.tier in NOT_TO_BE_USED:
        why = f", mostly for `{best.diagnosis}`" if best.diagnosis else ""
        said = [f"On {scope}: no cell can be recommended. The best, {cell}, is {best.tier}: {runs}{why}."]
    elif best.tier == "known-good":
        said = [f"On {scope}: use {cell}, which is known good: {shown}: {claim}."]
        said.append(f"{_sentence(expectation_of_totals(best.totals, USUAL_HOURS, thresholds.confidence).in_words)}.")
    else:
        said = [f"On {scope}: no cell is known good yet. The best so far is {cell} ({best.tier}): {shown}: {claim}."]
        more = missing_to(best.totals, "known_good", thresholds, thresholds.confidence)
        said.append(f"Without a failure, {more.in_words} would make it known good.")
    if tag := tags.get((best.cell, best.environment_hash, best.scope)):
        said.append(f"Its image has the tag `{tag}`.")
    return " ".join([*said, *_besides(best, verdicts)])


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


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
    if not best.verified:
        said.append("These runs were not verified by the host (each says why), and qualify for nothing.")
    elif not best.qualifies_for_promotion:
        said.append(f"Workload `{best.workload}` does not qualify for promotion.")
    if best.executor == "process" and best.tier not in NOT_TO_BE_USED:
        said.append("These runs were processes; only runs in containers qualify an image for promotion.")
    return said
