"""The known-good tags, wherever they are kept: their names, which of them stand, and how one is moved."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.base.errors import UserError
from harness.registry.tags.promotions import KnownGood, TagMove, standing_tags

ALIAS = "known-good"
"""Points to what the best of the other tags points to: a GPU's before a CPU's, then the newest."""


class TagPlace(Protocol):
    """Where tags are kept: a registry, or this host."""

    @property
    def name(self) -> str:
        """Return what a person calls the place."""

    def moves(self) -> list[TagMove]:
        """Every promotion and demotion there, oldest first."""

    def target(self, evidence: KnownGood) -> str:
        """Return what a tag with that evidence points to there."""

    def points_to(self, tag: str) -> str | None:
        """Return what a tag really points to; None where it is not there, or was demoted."""

    def write(self, move: TagMove) -> None:
        """Add to the history."""

    def point(self, tag: str, evidence: KnownGood | None) -> None:
        """Have a tag point to what its evidence is about, or to nothing."""


@dataclass(frozen=True)
class Seen:
    """What was found of a tag and of the alias before something is changed."""

    moves: tuple[TagMove, ...]
    tag: str | None
    alias: str | None


def tag_of(scope: str) -> str:
    """The tag of a scope."""
    return f"{ALIAS}-{scope}"


def alias_of(tags: Iterable[KnownGood]) -> KnownGood | None:
    """Return what the alias stands for, of the tags that stand."""
    return max(tags, key=lambda evidence: (bool(evidence.gfx), evidence.promoted_at), default=None)


def look_at(place: TagPlace, tag: str) -> Seen:
    """Return what there is of a tag now."""
    return Seen(tuple(place.moves()), place.points_to(tag), place.points_to(ALIAS))


def check_unmoved(place: TagPlace, tag: str, seen: Seen, replace: str | None) -> None:
    """Refuse a tag that points elsewhere than its history says; `replace` is what it is known to point to.

    A move writes the history first: a tag that lags behind by one move is one that was not finished, and may go on.

    Raises:
        UserError: saying where it points, and what to do.
    """
    of_tag = [place.target(move.evidence) for move in seen.moves if move.evidence.tag == tag]
    of_all = [place.target(move.evidence) for move in seen.moves]
    for name, points_to, known in ((tag, seen.tag, of_tag[-2:]), (ALIAS, seen.alias, of_all)):
        if points_to not in (None, replace, *known):
            raise UserError(
                f"{place.name}: somebody else moved {name}: it points to {points_to}, not to what its history says; "
                f"`--replace {points_to}` takes it back"
            )


def move_tag(place: TagPlace, move: TagMove, seen: Seen) -> None:
    """Write a move into the history, then move the tag and the alias.

    Raises:
        UserError: when anything is not as it was `seen`, or somebody else moves the tag at the same time.
    """
    tag = move.evidence.tag
    if look_at(place, tag) != seen:
        raise UserError(f"{place.name}: somebody else moved {tag} meanwhile; nothing was changed, give it again")
    place.write(move)
    tags = standing_tags([*seen.moves, move])
    # The alias first: where the tag itself is right, the same command has nothing left to do.
    wanted = {ALIAS: alias_of(tags.values()), tag: tags.get(tag)}
    for name, evidence in wanted.items():
        place.point(name, evidence)
    for name, evidence in wanted.items():
        if place.points_to(name) not in (None, place.target(evidence) if evidence else None):
            raise UserError(f"{place.name}: somebody else moves {name} at the same time; `matrix tags` shows it")
    if move not in place.moves():
        raise UserError(f"{place.name}: somebody else moves a tag at the same time; give it again")


def disturbed(place: TagPlace, moves: Sequence[TagMove], tag: str) -> str | None:
    """Return what a tag points to instead of what its history says, where it does."""
    evidence = standing_tags(moves).get(tag)
    points_to = place.points_to(tag)
    return points_to if points_to and (evidence is None or points_to != place.target(evidence)) else None
