"""The rule by which known-good tags move: which verdicts earn one, and what the others lack. Pure."""

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
"""How long evidence holds where nothing changes."""
# No cell is run more often than that; with a rate above .9 to be shown, 33 do.
MOST_RUNS = 1000


@dataclass(frozen=True)
class TagClaim:
    """A verdict, and what the runs of one image alone say: that of its newest run, as a tag points to one image."""

    verdict: Verdict
    image: str | None
    passes: int
    run_ids: tuple[str, ...]

    @property
    def runs(self) -> int:
        """Return how many runs of that image count."""
        return len(self.run_ids)


def claim_of(verdict: Verdict, rows: Mapping[str, Row]) -> TagClaim:
    """Return what a verdict claims of an image; `rows` by run id."""
    counted = [rows[run_id] for run_id in verdict.run_ids]
    image = counted[-1].image if counted else None
    mine = [row for row in counted if row.image == image]
    passes = sum(row.outcome == "completed" for row in mine)
    return TagClaim(verdict, image, passes, tuple(row.run_id for row in mine))


def missing_passes(passes: int, runs: int, thresholds: Verdicts) -> int | None:
    """Return how many more runs must pass, and none fail, until it is known good; None where that is out of reach."""
    further = range(MOST_RUNS - runs)
    return next((n for n in further if tier_of(passes + n, runs + n, thresholds) == "known-good"), None)


def refusal(claim: TagClaim, thresholds: Verdicts) -> str | None:
    """Return why a claim does not qualify for promotion, in one line; None where it does."""
    verdict = claim.verdict
    of_what = f"cell {verdict.cell} with workload {verdict.workload}"
    if verdict.executor != "docker" or claim.image is None:
        return f"{of_what}: its runs are not of an image; run it with --executor docker"
    if not verdict.qualifies_for_promotion:
        return f"{of_what}: that workload does not qualify for promotion; `matrix show` says which do"
    if verdict.stale:
        return f"{of_what}: its records are stale, the image would be another now; run it again"
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
    """The best claim for each scope, of one cell where that is given.

    Raises:
        UserError: when none qualifies for promotion, saying what the one that lacks least lacks.
    """
    # A variant has no image that could be made again from the matrix file.
    claims = [c for c in claims if cell in (None, c.verdict.cell) and VARIANT not in c.verdict.cell]
    if not claims:
        raise UserError(f"there are no runs{f' of cell {cell}' if cell else ''}; `matrix run` makes some")
    earned = [claim for claim in claims if refusal(claim, thresholds) is None]
    if not earned:
        raise UserError(str(refusal(max(claims, key=lambda claim: _nearness(claim, thresholds)), thresholds)))
    best: dict[str, TagClaim] = {}
    for claim in sorted(earned, key=lambda claim: (_low(claim, thresholds), claim.verdict.last_at)):
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
    """Return what a tag of that claim rests on; `newest` is the intent of its newest run, `now` seconds since 1970."""
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
        # From the last run on: promoting it again makes nothing younger.
        expires_at=min(now, verdict.last_at) + VALID_SECONDS,
        harness_version=__version__,
        previous=previous,
    )


def is_about(evidence: KnownGood, verdict: Verdict) -> bool:
    """Return whether a tag with that evidence is one of what the verdict is about."""
    mine = (verdict.cell, verdict.scope, verdict.environment_hash, verdict.workload_hash, verdict.host_kind)
    its = (evidence.cell, evidence.scope, evidence.environment_hash, evidence.workload_hash, evidence.host_kind)
    return mine == its and verdict.executor == "docker"


def fallen(evidence: KnownGood, verdicts: Iterable[Verdict]) -> str | None:
    """Return what the runs say now of a tag that they would not earn any more: its verdict fell below `good`."""
    for verdict in verdicts:
        if is_about(evidence, verdict) and verdict.tier not in ("good", "known-good"):
            why = f", {verdict.diagnosis}" if verdict.diagnosis else ""
            return f"its cell is {verdict.tier} now: {verdict.passes} of {verdict.runs} runs passed{why}"
    return None


def _counts(claim: TagClaim) -> tuple[tuple[int, int], ...]:
    """Passes and runs of the image, and of all: neither may speak against it."""
    return (claim.passes, claim.runs), (claim.verdict.passes, claim.verdict.runs)


def _low(claim: TagClaim, thresholds: Verdicts) -> float:
    return lower_bound(claim.passes, claim.runs, thresholds.confidence)


def _nearness(claim: TagClaim, thresholds: Verdicts) -> tuple[bool, bool, bool, float]:
    verdict = claim.verdict
    return claim.image is not None, verdict.qualifies_for_promotion, not verdict.stale, _low(claim, thresholds)
