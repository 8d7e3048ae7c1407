"""Choose the cell to recommend from the verdicts. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.base.wording import many
from harness.evidence.verdicts.best_of import confidence_of_best, tried
from harness.evidence.verdicts.expectation import expectation_of_totals
from harness.evidence.verdicts.missing import Shortfall, missing_to
from harness.evidence.verdicts.recommend import NOT_TO_BE_USED, best_by_scope
from harness.evidence.verdicts.scope import parts_of
from harness.evidence.verdicts.totals import Totals
from harness.evidence.verdicts.verdict import Verdict
from harness.evidence.verdicts.words import UNCOMMITTED, claim_in_words, in_words
from harness.matrix.cells import Matrix
from harness.matrix.workload_options import STANDARD_WORKLOAD, family
from harness.report.words import names, share
from harness.training.expect import USUAL_HOURS

# Known-good tags by cell, environment hash and scope.
Tags = Mapping[tuple[str, str, str], str]


@dataclass(frozen=True)
class Towards:
    """The runs that are missing until a cell can be promoted, as the best of `of_best` cells that were tried.

    `workload`: the workload of further runs, if the verdict's own does not qualify; else None.
    """

    workload: str | None
    missing: Shortfall
    of_best: int

    @property
    def why_more(self) -> str:
        """Say why more runs are needed than for a cell that was tried alone; empty if it was the only one."""
        return f" (the best of {self.of_best} that were tried is held to more)" if self.of_best > 1 else ""


def which_cell(
    verdicts: Sequence[Verdict], matrix: Matrix, tags: Tags, made_here: Sequence[Verdict]
) -> tuple[str, ...]:
    """Return the recommended cell in words, one paragraph for each scope; `made_here` is as in `towards_known_good`."""
    best = best_by_scope(verdicts)
    if not best:
        return ("No run that counts names a cell yet.",)
    return tuple(_in_words(one, verdicts, matrix, tags, made_here) for one in best)


def _in_words(
    best: Verdict, verdicts: Sequence[Verdict], matrix: Matrix, tags: Tags, made_here: Sequence[Verdict]
) -> str:
    thresholds = matrix.verdicts
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
        more = towards_known_good(best, matrix, made_here)
        of_workload = f" of workload `{more.workload}`" if more.workload else ""
        if not best.uncommitted:
            said.append(
                f"Without a failure, {more.missing.in_words}{of_workload} would make it known good{more.why_more}."
            )
    if tag := tags.get((best.cell, best.environment_hash, best.scope)):
        said.append(f"Its image has the tag `{tag}`.")
    return " ".join([*said, *_besides(best, verdicts)])


def towards_known_good(best: Verdict, matrix: Matrix, made_here: Sequence[Verdict]) -> Towards:
    """Return what is missing until a verdict's cell can be promoted; `made_here`: verdicts without imported runs."""
    workload = _that_qualifies(best, matrix)
    # Runs of different workloads are not counted together, so another workload starts from nothing.
    same = workload in (None, best.workload)
    of_host = [one for one in made_here if one.host_kind == best.host_kind]
    of_family = best.family if same or workload is None else family(matrix.workloads[workload], 1)
    among = len(tried(of_host, of_family, best.executor) | {(best.cell, best.scope)})
    confidence = confidence_of_best(matrix.verdicts.confidence, among)
    # Imported runs never count for a promotion.
    own = _of_these_runs(best, of_host) if best.imported else best
    totals = own.totals if same and own else Totals()
    return Towards(workload, missing_to(totals, "known_good", matrix.verdicts, confidence), among)


def _of_these_runs(best: Verdict, verdicts: Iterable[Verdict]) -> Verdict | None:
    """Return the verdict on what `best` is about, among others; None if there is none."""

    def about(one: Verdict) -> tuple[str, ...]:
        return one.cell, one.scope, one.family, one.environment_hash, one.host_kind, one.executor

    return next((one for one in verdicts if about(one) == about(best)), None)


def _that_qualifies(best: Verdict, matrix: Matrix) -> str | None:
    """Return another workload to continue with, one that qualifies for promotion; None to keep the verdict's own."""
    if best.qualifies_for_promotion:
        return None
    same, strategy = matrix.workloads.get(best.workload), parts_of(best.scope).strategy
    if (same is not None and same.qualifies_for_promotion) or strategy != "single":
        return None
    return STANDARD_WORKLOAD if STANDARD_WORKLOAD in matrix.workloads else None


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
    if best.uncommitted:
        said.append(
            f"{_sentence(UNCOMMITTED)}: it is `seen` at most, and never promoted; commit them, and run it again."
        )
    elif not best.verified:
        said.append("These runs were not verified by the host (each says why), and qualify for nothing.")
    elif not best.qualifies_for_promotion:
        said.append(f"Workload `{best.workload}` does not qualify for promotion.")
    if best.executor == "process" and best.tier not in NOT_TO_BE_USED:
        said.append("These runs were processes; only runs in containers qualify an image for promotion.")
    return said
