"""Decides which verdicts qualify for a known-good tag, and what the others lack. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness import __version__
from harness.base.errors import UserError
from harness.evidence.files.run_files import Intent
from harness.evidence.host_state import changed_settings, state_of
from harness.evidence.row import Row
from harness.evidence.verdicts.best_of import confidence_of_best, tried
from harness.evidence.verdicts.counting import Counts
from harness.evidence.verdicts.missing import Shortfall, missing_to
from harness.evidence.verdicts.rates import upper_bound
from harness.evidence.verdicts.recommend import NOT_TO_BE_USED
from harness.evidence.verdicts.totals import Totals, totals_of
from harness.evidence.verdicts.verdict import Verdict
from harness.evidence.verdicts.words import UNCOMMITTED, in_words
from harness.matrix.cells import Verdicts
from harness.matrix.variants import VARIANT
from harness.matrix.workload_options import STANDARD_WORKLOAD
from harness.registry.tags.known_good_tags import tag_of
from harness.registry.tags.promotions import KnownGood

VALID_SECONDS = 90 * 86400
"""Evidence expires after this time, if nothing changes before."""


@dataclass(frozen=True)
class TagClaim:
    """A verdict with the counts of runs of its newest run's image only, because a tag points to one image.

    `among` is the number of cells, each in each of its scopes, that had runs of the same family: it may be the best of
    them.
    """

    verdict: Verdict
    image: str | None
    passes: int
    totals: Totals
    run_ids: tuple[str, ...]
    among: int

    def confidence(self, thresholds: Verdicts) -> float:
        """Return the confidence that each bound of the claim needs."""
        return confidence_of_best(thresholds.confidence, self.among)

    @property
    def runs(self) -> int:
        """Return how many runs of the image count."""
        return len(self.run_ids)


def claims_of(verdicts: Sequence[Verdict], rows: Mapping[str, Row], counts: Counts) -> list[TagClaim]:
    """Return the claim of each verdict for the image of its newest run; `rows` are by run id."""
    among = {works: len(tried(verdicts, *works)) for works in {(one.family, one.executor) for one in verdicts}}
    return [_claim(one, rows, counts, max(1, among[one.family, one.executor])) for one in verdicts]


def _claim(verdict: Verdict, rows: Mapping[str, Row], counts: Counts, among: int) -> TagClaim:
    counted = [rows[run_id] for run_id in verdict.run_ids]
    image = counted[-1].image if counted else None
    mine = [row for row in counted if row.image == image]
    failed = set(verdict.failed_ids)
    passes = sum(row.run_id not in failed for row in mine)
    interrupted = (rows[run_id] for run_id in verdict.hours_ids if rows[run_id].image == image)
    totals = totals_of([*mine, *interrupted], counts)
    return TagClaim(verdict, image, passes, totals, tuple(row.run_id for row in mine), among)


def missing_of(claim: TagClaim, thresholds: Verdicts) -> Shortfall:
    """Return what a claim lacks to be known-good, considering the runs of its image as well as all runs."""
    both = [
        missing_to(totals, "known_good", thresholds, claim.confidence(thresholds))
        for totals in (claim.totals, claim.verdict.totals)
    ]
    return Shortfall(max(one.starts for one in both), max(one.hours for one in both), max(one.boots for one in both))


def refusal(claim: TagClaim, thresholds: Verdicts) -> str | None:
    """Return why a claim does not qualify for promotion, in one line; None if it does."""
    verdict = claim.verdict
    of_what = f"cell {verdict.cell} with workload {verdict.workload}"
    if verdict.executor != "docker" or claim.image is None:
        workload = "" if verdict.qualifies_for_promotion else f"--workload {STANDARD_WORKLOAD} "
        return f"{of_what}: its runs used no image; `matrix run {verdict.cell} {workload}--executor docker` uses one"
    if verdict.own_program:
        return f"{of_what}: that is a program of your own, with numbers that nothing checks; run `--workload standard`"
    if verdict.uncommitted:
        return f"{of_what}: {UNCOMMITTED}, so nobody can make it again; commit them, build it and run it again"
    if not verdict.verified:
        return f"{of_what}: its runs were not verified (each says why); build it again, and the cpu stack, and run it"
    if not verdict.qualifies_for_promotion:
        return f"{of_what}: that workload does not qualify for promotion; `matrix show` says which do"
    if verdict.stale:
        since = f"on this host {', '.join(verdict.changed)}" if verdict.changed else "its image has changed since"
        return f"{of_what}: its records are stale: {since}; run it again"
    missing = missing_of(claim, thresholds)
    if missing.is_empty:
        return None
    many = f" (the best of {claim.among} that were tried is held to more)" if claim.among > 1 else ""
    told = f"{in_words(claim.totals)} with its image, {in_words(verdict.totals)} in all"
    return f"{of_what}: it is {verdict.tier}: {told}; {missing.in_words} without a failure would do{many}"


def choose_claims(claims: Iterable[TagClaim], cell: str | None, thresholds: Verdicts) -> list[TagClaim]:
    """Return the best claim for each scope, of one cell if given.

    Raises:
        UserError: when no claim qualifies for promotion, with the reason for the one nearest to it.
    """
    # The image of a variant cannot be rebuilt from the matrix file.
    claims = [c for c in claims if cell in (None, c.verdict.cell) and VARIANT not in c.verdict.cell]
    if not claims:
        of_cell = f" of cell {cell}" if cell else ""
        raise UserError(f"there are no runs{of_cell} on this kind of host; `matrix run` starts some")
    qualified = [claim for claim in claims if refusal(claim, thresholds) is None]
    if not qualified:
        nearest = max(claims, key=lambda claim: _nearness(claim, thresholds))
        raise UserError(f"{'' if cell else 'nothing qualifies; nearest is '}{refusal(nearest, thresholds)}")
    best: dict[str, TagClaim] = {}
    for claim in sorted(qualified, key=lambda claim: (*_bounds(claim, thresholds), claim.verdict.last_at)):
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
) -> KnownGood:
    """Return the evidence for a tag; `newest` is the intent of the claim's newest run, `now` in seconds since 1970."""
    verdict = claim.verdict
    gpus = [gpu for gpu in newest.host.gpus if gpu.index in newest.gpus] if newest.device == "cuda" else []
    used = {gpu.gfx for gpu in gpus}
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
        high=upper_bound(claim.passes, claim.runs, claim.confidence(thresholds)),
        confidence=thresholds.confidence,
        among=claim.among,
        started=claim.totals.started,
        starts=claim.totals.starts,
        failures=claim.totals.failures,
        incidents=claim.totals.incidents,
        restart_seconds=claim.totals.restart_seconds,
        hours=claim.totals.hours,
        mtbf_low=claim.totals.mtbf(claim.confidence(thresholds)),
        longest_hours=claim.totals.longest,
        boots=claim.totals.boots,
        host_kind=verdict.host_kind,
        host_fingerprint=newest.host.fingerprint,
        gfx=tuple(sorted(used)),
        gpu_count=int(newest.options.get("devices", 1)) if used else 0,
        driver=newest.host.driver,
        kernel=newest.host.kernel,
        firmware={
            target: tuple(gpu.firmware for gpu in gpus if gpu.gfx == target and gpu.firmware)
            for target in sorted({gpu.gfx for gpu in gpus if gpu.firmware})
        },
        settings=dict(state_of(newest.host, gpus_used=bool(used)).settings),
        environment_hash=verdict.environment_hash,
        environment=newest.environment,
        workload=verdict.workload,
        workload_hash=verdict.workload_hash,
        family=verdict.family,
        executor="docker",
        run_ids=claim.run_ids,
        struck=dict(verdict.struck),
        promoted_at=now,
        # Counted from the last run, so that promoting again does not renew the evidence.
        expires_at=min(now, verdict.last_at) + VALID_SECONDS,
        harness_version=__version__,
        previous=None,
    )


def is_about(evidence: KnownGood, verdict: Verdict) -> bool:
    """Return whether evidence and verdict have the same cell, scope, environment, workload family, host and settings.

    Evidence of an earlier harness has no family, so the workload of its newest run is compared instead.
    """
    same_host = evidence.host_kind == verdict.host_kind and not changed_settings(evidence.settings, verdict.settings)
    return same_host and _is_about_cell(evidence, verdict)


def why_fallen(evidence: KnownGood, verdicts: Iterable[Verdict]) -> str | None:
    """Return why a tag would no longer qualify; None if it would.

    It would not if its verdict is now below the tag's tier, or if runs on this host failed repeatedly since the
    promotion, whatever kind of host this is now.
    """
    for verdict in verdicts:
        below = verdict.tier != evidence.tier and is_about(evidence, verdict)
        here = verdict.imported < verdict.runs and verdict.last_at > evidence.promoted_at
        if below or (here and verdict.tier in NOT_TO_BE_USED and _is_about_cell(evidence, verdict)):
            why = f", {verdict.diagnosis}" if verdict.diagnosis else ""
            return f"its cell is {verdict.tier} now: {verdict.passes} of {verdict.runs} runs passed{why}"
    return None


def _is_about_cell(evidence: KnownGood, verdict: Verdict) -> bool:
    mine = (verdict.cell, verdict.scope, verdict.environment_hash)
    its = (evidence.cell, evidence.scope, evidence.environment_hash)
    same_work = (
        evidence.family == verdict.family if evidence.family else evidence.workload_hash == verdict.workload_hash
    )
    return mine == its and same_work and verdict.executor == "docker"


def _bounds(claim: TagClaim, thresholds: Verdicts) -> tuple[float, float]:
    return claim.totals.mtbf(claim.confidence(thresholds)), _low(claim, thresholds)


def _low(claim: TagClaim, thresholds: Verdicts) -> float:
    return claim.totals.start_rate(claim.confidence(thresholds))


def _nearness(claim: TagClaim, thresholds: Verdicts) -> tuple[bool | float, ...]:
    verdict = claim.verdict
    may = (not verdict.own_program, claim.image is not None, verdict.qualifies_for_promotion, not verdict.stale)
    return (*may, _low(claim, thresholds), claim.totals.mtbf(claim.confidence(thresholds)))
