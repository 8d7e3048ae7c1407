"""Known-good tags in a registry or on this host: their names, the alias, and how tags are moved."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from harness.base.errors import UserError
from harness.registry.tags.promotions import KnownGood, TagMove, standing_tags

ALIAS = "known-good"
"""An alias of the best of the other tags: tags for GPUs come before tags for CPUs, then newer before older ones."""


class TagPlace(Protocol):
    """A place with tags: a registry, or this host."""

    @property
    def name(self) -> str:
        """Return the name of the place for messages."""

    def moves(self) -> list[TagMove]:
        """Return every promotion and demotion there, oldest first."""

    def target(self, evidence: KnownGood) -> str:
        """Return the target there of a tag with that evidence."""

    def points_to(self, tag: str) -> str | None:
        """Return the actual target of a tag; None if it does not exist, or was demoted."""

    def write(self, move: TagMove) -> None:
        """Add a move to the history."""

    def point(self, tag: str, evidence: KnownGood | None) -> None:
        """Make a tag point to the image of its evidence, or to nothing."""


@dataclass(frozen=True)
class Seen:
    """The state of a tag and of the alias before a change."""

    moves: tuple[TagMove, ...]
    tag: str | None
    alias: str | None


def tag_of(scope: str) -> str:
    """Return the tag of a scope."""
    return f"{ALIAS}-{scope}"


def alias_of(tags: Iterable[KnownGood]) -> KnownGood | None:
    """Return the evidence, among the tags in force, that the alias belongs to; None if there is none."""
    return max(tags, key=lambda evidence: (bool(evidence.gfx), evidence.promoted_at), default=None)


def look_at(place: TagPlace, tag: str) -> Seen:
    """Return the present state of a tag."""
    return Seen(tuple(place.moves()), place.points_to(tag), place.points_to(ALIAS))


def check_unmoved(place: TagPlace, tag: str, seen: Seen, replace: str | None) -> None:
    """Refuse a tag that points elsewhere than its history says; `replace` is a further target that is accepted.

    A move writes the history first, so a tag that is one move behind its history belongs to an interrupted move, which
    may continue.

    Raises:
        UserError: when it points elsewhere.
    """
    of_tag = [place.target(move.evidence) for move in seen.moves if move.evidence.tag == tag]
    of_all = [place.target(move.evidence) for move in seen.moves]
    for name, points_to, known in ((tag, seen.tag, of_tag[-2:]), (ALIAS, seen.alias, of_all)):
        if points_to not in (None, replace, *known):
            raise UserError(
                f"{place.name}: somebody else moved {name}: it points to {points_to}, not to what its history says; "
                f"`--replace {points_to}` overwrites that"
            )


def move_tag(place: TagPlace, move: TagMove, seen: Seen) -> None:
    """Write a move into the history, then move the tag and the alias.

    Raises:
        UserError: when the state differs from `seen`, or somebody else moves the tag at the same time.
    """
    tag = move.evidence.tag
    if look_at(place, tag) != seen:
        raise UserError(
            f"{place.name}: somebody else moved {tag} meanwhile; nothing was changed, run the command again"
        )
    place.write(move)
    tags = standing_tags([*seen.moves, move])
    # Move the alias first, because repeating the command does nothing once the tag itself is right.
    wanted = {ALIAS: alias_of(tags.values()), tag: tags.get(tag)}
    for name, evidence in wanted.items():
        place.point(name, evidence)
    for name, evidence in wanted.items():
        if place.points_to(name) not in (None, place.target(evidence) if evidence else None):
            raise UserError(f"{place.name}: somebody else moves {name} at the same time; `matrix tags` shows it")
    # Check again, as registries have no conditional writes: of two clients that saw the same state, the later sees both
    # moves.
    if place.moves() != [*seen.moves, move]:
        raise UserError(f"{place.name}: somebody else moves a tag at the same time; run the command again")


def moved_target(place: TagPlace, evidence: KnownGood, points_to: str | None) -> str | None:
    """Return the target of a tag in force if it differs from its evidence; None otherwise, and where there is none."""
    return points_to if points_to != place.target(evidence) else None
