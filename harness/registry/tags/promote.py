"""The rule of promotion: the verdicts that qualify for a known-good tag, and what the others lack. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness import __version__
from harness.base.errors import UserError
from harness.evidence.index import Row
from harness.evidence.run_files import Intent
from harness.evidence.verdicts.rates import lower_bound, upper_bound
from harness.evidence.verdicts.verdict import Verdict, tier_of
from harness.matrix.cells import Verdicts
from harness.matrix.variants import VARIANT
from harness.registry.tags.known_good_tags import tag_of
from harness.registry.tags.promotions import KnownGood

VALID_SECONDS = 90 * 86400
"""Evidence expires after this time, if nothing changes before."""
# The most runs of a cell that are considered; for a pass rate above .9, 33 are enough.
MOST_RUNS = 1000


@dataclass(frozen=True)
class TagClaim:
    """A verdict, and the counts for the image of its newest run alone, as a tag points to one image."""

    verdict: Verdict
    image: str | None
    passes: int
    run_ids: tuple[str, ...]

    @property
    def runs(self) -> int:
        """Return how many runs of that image count."""
        return len(self.run_ids)


def claim_of(verdict: Verdict, rows: Mapping[str, Row]) -> TagClaim:
    """Return the claim of a verdict for the image of its newest run; `rows` are by run id."""
    counted = [rows[run_id] for run_id in verdict.run_ids]
    image = counted[-1].image if counted else None
    mine = [row for row in counted if row.image == image]
    passes = sum(row.outcome == "completed" for row in mine)
    return TagClaim(verdict, image, passes, tuple(row.run_id for row in mine))


def missing_passes(passes: int, runs: int, thresholds: Verdicts) -> int | None:
    """Return how many more runs must pass, without a failure, until it is known good; None if that is out of reach."""
    further = range(MOST_RUNS - runs)
    return next((n for n in further if tier_of(passes + n, runs + n, thresholds) == "known-good"), None)


def refusal(claim: TagClaim, thresholds: Verdicts) -> str | None:
    """Return why a claim does not qualify for promotion, in one line; None if it does."""
    verdict = claim.verdict
    of_what = f"cell {verdict.cell} with workload {verdict.workload}"
    if verdict.executor != "docker" or claim.image is None:
        return f"{of_what}: its runs used no image; run it with --executor docker"
    if not verdict.qualifies_for_promotion:
        return f"{of_what}: that workload does not qualify for promotion; `matrix show` says which do"
    if verdict.stale:
        return f"{of_what}: its records are stale: its image has changed since; run it again"
    missing = max(
        (missing_passes(passes, runs, thresholds) for passes, runs in _counts(claim)),
        key=lambda n: MOST_RUNS if n is None else n,
    )
    if missing == 0:
        return None
    so_far = f"{claim.passes} of {claim.runs} runs of its image passed, {verdict.passes} of {verdict.runs} in all"
    needed = "no number of further runs makes it known-good" if missing is None else f"{missing} more must pass"
    return f"{of_what}: it is {verdict.tier}: {so_far}; {needed}"


def choose_claims(claims: Iterable[TagClaim], cell: str | None, thresholds: Verdicts) -> list[TagClaim]:
    """Return the best claim for each scope, of one cell if given.

    Raises:
        UserError: when none qualifies for promotion, with the reason for the one that is nearest to it.
    """
    # The image of a variant cannot be rebuilt from the matrix file.
    claims = [c for c in claims if cell in (None, c.verdict.cell) and VARIANT not in c.verdict.cell]
    if not claims:
        raise UserError(f"there are no runs{f' of cell {cell}' if cell else ''}; `matrix run` starts some")
    qualified = [claim for claim in claims if refusal(claim, thresholds) is None]
    if not qualified:
        raise UserError(str(refusal(max(claims, key=lambda claim: _nearness(claim, thresholds)), thresholds)))
    best: dict[str, TagClaim] = {}
    for claim in sorted(qualified, key=lambda claim: (_low(claim, thresholds), claim.verdict.last_at)):
        best[claim.verdict.scope] = claim
    return [best[scope] for scope in sorted(best)]


def evidence_of(
    claim: TagClaim,
    newest: Intent,
    thresholds: Verdicts,
    now: float,
    *,
    repository: str | None,
    digest: str | None,
    previous: str | None,
) -> KnownGood:
    """Return the evidence for a tag; `newest` is the intent of the claim's newest run, `now` in seconds since 1970."""
    verdict = claim.verdict
    used = [gpu.gfx for gpu in newest.host.gpus if gpu.index in newest.gpus] if newest.device == "cuda" else []
    return KnownGood(
        tag=tag_of(verdict.scope),
        scope=verdict.scope,
        cell=verdict.cell,
        stack=verdict.stack,
        digest=digest,
        repository=repository,
        image=claim.image or "",
        passes=claim.passes,
        runs=claim.runs,
        low=_low(claim, thresholds),
        high=upper_bound(claim.passes, claim.runs, thresholds.confidence),
        confidence=thresholds.confidence,
        host_kind=verdict.host_kind,
        host_fingerprint=newest.host.fingerprint,
        gfx=tuple(sorted(set(used))),
        gpu_count=int(newest.options.get("devices", 1)) if used else 0,
        driver=newest.host.driver,
        kernel=newest.host.kernel,
        environment_hash=verdict.environment_hash,
        environment=newest.environment,
        workload=verdict.workload,
        workload_hash=verdict.workload_hash,
        executor="docker",
        run_ids=claim.run_ids,
        promoted_at=now,
        # Counted from the last run: promoting again does not renew the evidence.
        expires_at=min(now, verdict.last_at) + VALID_SECONDS,
        harness_version=__version__,
        previous=previous,
    )


def is_about(evidence: KnownGood, verdict: Verdict) -> bool:
    """Return whether evidence and verdict have the same cell, scope, environment, workload and kind of host."""
    mine = (verdict.cell, verdict.scope, verdict.environment_hash, verdict.workload_hash, verdict.host_kind)
    its = (evidence.cell, evidence.scope, evidence.environment_hash, evidence.workload_hash, evidence.host_kind)
    return mine == its and verdict.executor == "docker"


def fallen(evidence: KnownGood, verdicts: Iterable[Verdict]) -> str | None:
    """Return why a tag would no longer qualify: its verdict fell below `good`; None if it did not."""
    for verdict in verdicts:
        if is_about(evidence, verdict) and verdict.tier not in ("good", "known-good"):
            why = f", {verdict.diagnosis}" if verdict.diagnosis else ""
            return f"its cell is {verdict.tier} now: {verdict.passes} of {verdict.runs} runs passed{why}"
    return None


def _counts(claim: TagClaim) -> tuple[tuple[int, int], ...]:
    """Return (passes, runs) of the image, and of all runs: both must qualify."""
    return (claim.passes, claim.runs), (claim.verdict.passes, claim.verdict.runs)


def _low(claim: TagClaim, thresholds: Verdicts) -> float:
    return lower_bound(claim.passes, claim.runs, thresholds.confidence)


def _nearness(claim: TagClaim, thresholds: Verdicts) -> tuple[bool, bool, bool, float]:
    verdict = claim.verdict
    return claim.image is not None, verdict.qualifies_for_promotion, not verdict.stale, _low(claim, thresholds)
