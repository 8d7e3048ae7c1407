"""The commands on known-good tags, without the parsing and printing."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.base.errors import UserError
from harness.base.sysfs import REAL_ROOT, is_simulated
from harness.environments.docker.images import find, repository_in
from harness.environments.docker.own_images import is_own
from harness.environments.docker.source_state import is_dirty, is_in_history
from harness.evidence.gpus.host_changes import host_of
from harness.evidence.index import Index
from harness.evidence.records import Results
from harness.evidence.verdicts import of_results
from harness.evidence.verdicts.counting import counts_of
from harness.host.engine import Engine, find_engine
from harness.host.engine_errors import Notify
from harness.matrix.cells import Matrix
from harness.registry.attestations.attest import attest_evidence, attest_image
from harness.registry.image_commands import the_engine
from harness.registry.push_pull import push_image, remote_name
from harness.registry.tags.known_good import lock_of, suspended, why_not_usable
from harness.registry.tags.known_good_tags import (
    ALIAS,
    Seen,
    TagPlace,
    alias_of,
    check_unmoved,
    look_at,
    move_tag,
    moved_target,
)
from harness.registry.tags.local_tags import LocalTags
from harness.registry.tags.promote import TagClaim, choose_claims, claims_of, evidence_of
from harness.registry.tags.promotions import KnownGood, TagMove, place_of, read_moves, standing_tags
from harness.registry.tags.registry_tags import RegistryTags
from harness.registry.tags.suspension import Suspension, suspension_by

# Most tags in force in a registry: a tag is of one scope, and each takes a request of its own.
MOST_TAGS = 200


@dataclass(frozen=True)
class TagState:
    """A tag in force, and its present state.

    Attributes:
        not_here: why this host may not use the tag; None if it may.
        suspended: why the tag is suspended; None if it is not.
        problem: what is wrong with the tag, and how to fix that; None if nothing is.
    """

    evidence: KnownGood
    is_alias: bool
    age_seconds: float
    not_here: str | None
    suspended: str | None
    problem: str | None

    @property
    def plain(self) -> dict[str, Any]:
        """Return the state as plain values."""
        return {
            **self.evidence.model_dump(mode="json", by_alias=True),
            "alias": self.is_alias,
            "age_seconds": self.age_seconds,
            "valid_here": self.not_here is None,
            "not_here": self.not_here,
            "suspended": self.suspended,
            "problem": self.problem,
        }


def promote(
    results: Results,
    matrix: Matrix,
    cell: str | None,
    registry: str | None,
    now: float,
    notify: Notify,
    *,
    replace: str | None = None,
    dry_run: bool = False,
    root: Path = REAL_ROOT,
) -> list[KnownGood]:
    """Promote the cells that qualify: give them their known-good tags, and return the evidence of each.

    `replace` is a target of the tag that is accepted although its history says otherwise.

    Raises:
        UserError: when no cell qualifies, its image is gone, somebody else moved the tag, or the host at `root` is
            simulated.
    """
    if is_simulated(root):
        raise UserError("--root: runs on a simulated host show nothing about a real one; nothing is promoted on them")
    host = host_of(results, root)
    # Runs on another kind of host, or on this host before it changed, are no evidence for it.
    everything = Index(results).rows()
    mine = [row for row in everything if not row.imported and row.host_kind == host.kind]
    rows = {row.run_id: row for row in mine}
    counts = counts_of(results, everything)
    verdicts = of_results.verdicts_on(mine, matrix, counts, host)
    claims = choose_claims(claims_of(verdicts, rows, counts), cell, matrix.verdicts)
    engine = the_engine()
    return [
        _promote(results, matrix, claim, engine, registry, now, notify, replace=replace, dry_run=dry_run)
        for claim in claims
    ]


def demote(
    results: Results, tag: str, reason: str, registry: str | None, now: float, *, replace: str | None = None
) -> list[str]:
    """Demote a tag for a reason; return the names of the places where it was in force.

    Raises:
        UserError: when the tag is in force nowhere, or somebody else moved it.
    """
    if tag == ALIAS:
        raise UserError(f"{ALIAS} is an alias; demote its tag, which `matrix tags` shows")
    places = _places(results, find_engine(), registry)
    looked = [(place, look_at(place, tag)) for place in places]
    for place, seen in looked:
        check_unmoved(place, tag, seen, replace)
    demoted = []
    for place, seen in looked:
        if evidence := _to_be_demoted(tag, seen):
            move_tag(place, TagMove(move="demoted", at=now, reason=reason, evidence=evidence), seen)
            demoted.append(place.name)
    if not demoted:
        raise UserError(f"{tag}: not in force in {' or '.join(p.name for p in places)}; `matrix tags` lists the tags")
    return demoted


def tag_states(
    results: Results, matrix: Matrix, registry: str | None, now: float, root: Path = REAL_ROOT
) -> list[TagState]:
    """Return the tags in force in a registry, or on this host, with the problems of each.

    Raises:
        UserError: when the registry does not answer, or has more tags than any real one.
    """
    engine = None
    # Listing tags works without an engine; the commands that need one report its errors.
    with suppress(UserError):
        engine = find_engine()
    (place, *_) = _places(results, engine, registry)
    moves = place.moves()
    tags = standing_tags(moves)
    if registry and len(tags) > MOST_TAGS:
        raise UserError(f"{place.name}: {len(tags)} tags are in force; do not trust this registry")
    alias = alias_of(tags.values())
    suspension = suspension_by(results, matrix)
    host = host_of(results, root)
    states = []
    for tag, evidence in sorted(tags.items()):
        points_to = place.points_to(tag)
        elsewhere = moved_target(place, evidence, points_to)
        # An engine may lack the image of a tag, which a build or a pull brings back; a registry has what it promotes.
        missing = f"{place.name} has no {tag}; promote it again" if registry and points_to is None else None
        back = f"`matrix promote` or `matrix demote` with `--replace {elsewhere}` overwrites that"
        moved = f"somebody else moved it to {elsewhere}; {back}" if elsewhere else None
        suspended_for = suspension(evidence)
        away = f"`matrix demote {tag}{f' --registry {registry}' if registry else ''} --reason ...` removes it"
        states.append(
            TagState(
                evidence=evidence,
                is_alias=evidence == alias,
                age_seconds=now - evidence.promoted_at,
                not_here=(
                    # As `train` refuses it.
                    (registry and (missing or moved))
                    or why_not_usable(evidence, host, now, lock_of(evidence))
                    or suspended(suspended_for)
                    or (None if evidence.cell in matrix.cells else "the matrix file does not have this cell")
                ),
                suspended=suspended_for,
                problem=missing or moved or (f"{suspended(suspended_for)}; {away}" if suspended_for else None),
            )
        )
    return states


def tag_history(results: Results, tag: str, registry: str | None) -> list[TagMove]:
    """Return every promotion and demotion of a tag, or of the one that the alias stands for, oldest first.

    Raises:
        UserError: when there are none, or the registry does not answer.
    """
    (place, *_) = _places(results, None, registry)
    every = place.moves()
    if tag == ALIAS and (meant := alias_of(standing_tags(every).values())):
        tag = meant.tag
    moves = [move for move in every if move.evidence.tag == tag]
    if not moves:
        where = f"in {registry}" if registry else "here"
        raise UserError(f"no tag {tag} was ever made {where}; `matrix tags` lists the tags in force")
    return moves


def _promote(
    results: Results,
    matrix: Matrix,
    claim: TagClaim,
    engine: Engine,
    registry: str | None,
    now: float,
    notify: Notify,
    *,
    replace: str | None,
    dry_run: bool,
) -> KnownGood:
    cell = matrix.cells[claim.verdict.cell]
    newest = results.intent(claim.run_ids[-1])
    image = find(engine, claim.image or "")
    if newest is None or image is None:
        raise UserError(f"cell {cell.id}: the image of its runs was removed; build it and run it again")
    if is_dirty(image.revision):
        raise UserError(
            f"cell {cell.id}: its image was made from changes that no commit has, so nobody can make it again; "
            "commit them, build it and run it again"
        )
    if not is_own(image.id) and not is_in_history(image.revision or ""):
        raise UserError(
            f"cell {cell.id}: its image was not built here, and names no commit that is in what is checked out here, "
            f"so `matrix verify {cell.id}` cannot make it again; check that commit out, or build the image and run it"
        )
    # If this promotion is for this host only, the image is still in the registry to which it was pushed before.
    repository, digest = place_of(image.id, read_moves(results))
    if registry:
        repository, digest = repository_in(registry), None
    draft = evidence_of(claim, newest, matrix.verdicts, now, repository=repository, digest=digest)
    looked = [(place, look_at(place, draft.tag)) for place in _places(results, engine, registry)]
    for place, seen in looked:
        check_unmoved(place, draft.tag, seen, replace)
    if draft.expires_at <= now:
        raise UserError(f"cell {cell.id}: its last run was too long ago for a tag; run it again, then promote it")
    if dry_run:
        return draft
    if registry:
        digest = push_image(engine, image.id, remote_name(registry, cell), notify)
        attest_image(engine, cell, image, repository_in(registry), digest, notify)
    evidence = draft.model_copy(update={"digest": digest, "previous": looked[0][1].tag})
    suspension = suspension_by(results, matrix)
    if registry and not _is_there(evidence, *looked[0], now, suspension):
        attest_evidence(evidence)
    for place, seen in looked:
        if not _is_there(evidence, place, seen, now, suspension):
            move_tag(place, TagMove(move="promoted", at=now, evidence=evidence), seen)
    return evidence


def _places(results: Results, engine: Engine | None, registry: str | None) -> Sequence[TagPlace]:
    """Return the places in which tags are moved, the registry first, so that nothing is done if it is down."""
    local = LocalTags(engine, results)
    return [RegistryTags(registry), local] if registry else [local]


def _is_there(evidence: KnownGood, place: TagPlace, seen: Seen, now: float, suspension: Suspension) -> bool:
    """Return whether the tag is in force in a place and not suspended, with evidence from the same runs."""
    kept = standing_tags(seen.moves).get(evidence.tag)
    if kept is None or now >= kept.expires_at or seen.tag != place.target(evidence) or suspension(kept):
        return False
    return (kept.repository, kept.digest, kept.run_ids) == (evidence.repository, evidence.digest, evidence.run_ids)


def _to_be_demoted(tag: str, seen: Seen) -> KnownGood | None:
    """Return the evidence of a tag in force, or of a tag whose demotion was interrupted; None for others."""
    of_tag = [move.evidence for move in seen.moves if move.evidence.tag == tag]
    return of_tag[-1] if of_tag and (seen.tag or tag in standing_tags(seen.moves)) else None
