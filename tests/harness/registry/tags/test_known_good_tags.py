from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from harness.base.errors import UserError
from harness.registry.tags.known_good_tags import ALIAS, Seen, alias_of, check_unmoved, look_at, move_tag, moved_target
from harness.registry.tags.promotions import KnownGood, TagMove

Evidence = Callable[..., KnownGood]
ONE, TWO, OTHER = ("sha256:" + digit * 64 for digit in "123")
TAG = "known-good-cpu"


class DiedError(Exception):
    """An error that interrupts a move in the middle."""


@dataclass
class Shelf:
    """A place for tags in memory; `writes_until_error` is the number of further writes that succeed, -1 for all."""

    history: list[TagMove] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)
    writes_until_error: int = -1
    name: str = "the shelf"

    def moves(self) -> list[TagMove]:
        return list(self.history)

    def target(self, evidence: KnownGood) -> str:
        return evidence.image

    def points_to(self, tag: str) -> str | None:
        return self.tags.get(tag)

    def write(self, move: TagMove) -> None:
        self._live()
        self.history.append(move)

    def point(self, tag: str, evidence: KnownGood | None) -> None:
        self._live()
        self.tags.pop(tag, None)
        if evidence:
            self.tags[tag] = evidence.image

    def _live(self) -> None:
        if self.writes_until_error == 0:
            raise DiedError
        self.writes_until_error -= 1


def promoted(evidence: KnownGood) -> TagMove:
    return TagMove(move="promoted", at=1, evidence=evidence)


def demoted(evidence: KnownGood) -> TagMove:
    return TagMove(move="demoted", at=2, reason="it hangs", evidence=evidence)


def moved(shelf: Shelf, *moves: TagMove) -> None:
    for move in moves:
        seen = look_at(shelf, move.evidence.tag)
        check_unmoved(shelf, move.evidence.tag, seen, None)
        move_tag(shelf, move, seen)


def test_tag_and_alias_follow_the_moves(make_evidence: Evidence) -> None:
    one, two = make_evidence(image=ONE), make_evidence(image=TWO)
    shelf = Shelf()
    moved(shelf, promoted(one))
    assert shelf.tags == {TAG: ONE, ALIAS: ONE}
    moved(shelf, promoted(two))
    assert shelf.tags == {TAG: TWO, ALIAS: TWO}
    moved(shelf, demoted(two))
    assert shelf.tags == {}
    moved(shelf, promoted(one))
    assert shelf.tags == {TAG: ONE, ALIAS: ONE}
    assert [move.move for move in shelf.history] == ["promoted", "promoted", "demoted", "promoted"]


def test_the_alias_is_a_gpus_before_a_cpus_then_the_newest(make_evidence: Evidence) -> None:
    cpu = make_evidence(image=ONE, promoted_at=9)
    old = make_evidence(tag="known-good-gfx1100", gfx=("gfx1100",), image=TWO, promoted_at=1)
    new = make_evidence(tag="known-good-gfx1100-ddp-2", gfx=("gfx1100",), image=OTHER, promoted_at=2)
    assert alias_of([]) is None
    assert alias_of([cpu, old, new]) == new
    shelf = Shelf()
    moved(shelf, promoted(old), promoted(cpu))
    assert shelf.tags == {TAG: ONE, old.tag: TWO, ALIAS: TWO}
    moved(shelf, demoted(old))
    assert shelf.tags == {TAG: ONE, ALIAS: ONE}


@pytest.mark.parametrize("name", [TAG, ALIAS])
def test_what_somebody_else_moved_is_not_moved_back_unasked(name: str, make_evidence: Evidence) -> None:
    shelf = Shelf()
    moved(shelf, promoted(make_evidence(image=ONE)))
    shelf.tags[name] = OTHER
    seen = look_at(shelf, TAG)
    with pytest.raises(UserError, match=f"somebody else moved {name}: it points to {OTHER}.*--replace {OTHER}"):
        check_unmoved(shelf, TAG, seen, None)
    check_unmoved(shelf, TAG, seen, OTHER)
    move_tag(shelf, promoted(make_evidence(image=TWO)), seen)
    assert shelf.tags == {TAG: TWO, ALIAS: TWO}


def test_a_tag_that_was_there_without_a_history_is_somebody_elses() -> None:
    shelf = Shelf(tags={TAG: OTHER})
    with pytest.raises(UserError, match="somebody else moved"):
        check_unmoved(shelf, TAG, look_at(shelf, TAG), None)


def test_a_tag_that_is_gone_takes_nothing_from_anybody(make_evidence: Evidence) -> None:
    shelf = Shelf()
    moved(shelf, promoted(make_evidence(image=ONE)))
    shelf.tags.clear()
    moved(shelf, promoted(make_evidence(image=TWO)))
    assert shelf.tags == {TAG: TWO, ALIAS: TWO}


@pytest.mark.parametrize("what", ["tag", "alias", "history"])
def test_a_move_in_between_changes_nothing(what: str, make_evidence: Evidence) -> None:
    shelf = Shelf()
    moved(shelf, promoted(make_evidence(image=ONE)))
    seen = look_at(shelf, TAG)
    if what == "history":
        shelf.history.append(promoted(make_evidence(image=OTHER)))
    else:
        shelf.tags[TAG if what == "tag" else ALIAS] = OTHER
    before = (dict(shelf.tags), len(shelf.history))
    with pytest.raises(UserError, match="nothing was changed"):
        move_tag(shelf, promoted(make_evidence(image=TWO)), seen)
    assert (shelf.tags, len(shelf.history)) == before


def test_a_move_at_the_same_moment_is_reported(make_evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf()
    point = shelf.point

    def contended(tag: str, evidence: KnownGood | None) -> None:
        point(tag, evidence)
        shelf.tags[TAG] = OTHER

    monkeypatch.setattr(shelf, "point", contended)
    with pytest.raises(UserError, match=f"somebody else moves {TAG} at the same time"):
        move_tag(shelf, promoted(make_evidence(image=ONE)), look_at(shelf, TAG))


def test_a_history_that_somebody_else_wrote_at_the_same_moment_is_reported(
    make_evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = Shelf()
    theirs = promoted(make_evidence(tag="known-good-gfx1100"))
    monkeypatch.setattr(shelf, "write", lambda _: shelf.history.append(theirs))
    with pytest.raises(UserError, match="somebody else moves a tag at the same time"):
        move_tag(shelf, promoted(make_evidence(image=ONE)), look_at(shelf, TAG))


@pytest.mark.parametrize("writes_until_error", [0, 1, 2])
@pytest.mark.parametrize("move", [promoted, demoted])
def test_a_move_that_was_cut_short_is_finished_by_the_same_command(
    writes_until_error: int, move: Callable[[KnownGood], TagMove], make_evidence: Evidence
) -> None:
    shelf = Shelf()
    moved(shelf, promoted(make_evidence(image=ONE)))
    target = make_evidence(image=TWO if move is promoted else ONE)
    shelf.writes_until_error = writes_until_error
    with pytest.raises(DiedError):
        moved(shelf, move(target))
    # An unfinished move shows at the tag itself, which is where the command looks.
    wanted = TWO if move is promoted else None
    assert shelf.tags.get(TAG) != wanted or shelf.tags.get(ALIAS) == wanted
    shelf.writes_until_error = -1
    moved(shelf, move(target))
    assert shelf.tags == ({TAG: TWO, ALIAS: TWO} if move is promoted else {})


def test_what_a_tag_points_to_instead_is_reported(make_evidence: Evidence) -> None:
    shelf = Shelf()
    evidence = make_evidence(image=ONE)
    assert moved_target(shelf, evidence, shelf.target(evidence)) is None
    assert moved_target(shelf, evidence, OTHER) == OTHER
    assert moved_target(shelf, evidence, None) is None


def test_two_looks_at_the_same_are_the_same(make_evidence: Evidence) -> None:
    shelf = Shelf()
    moved(shelf, promoted(make_evidence(image=ONE)))
    assert look_at(shelf, TAG) == look_at(shelf, TAG) == Seen(tuple(shelf.history), ONE, ONE)


@dataclass
class CrowdedShelf(Shelf):
    """A shelf on which somebody else calls `meanwhile` just before the operation with number `interrupt_at`."""

    meanwhile: Callable[[], None] = lambda: None
    interrupt_at: int = 0

    def _operation(self) -> None:
        self.interrupt_at -= 1
        if self.interrupt_at == 0:
            self.meanwhile()

    def moves(self) -> list[TagMove]:
        self._operation()
        return super().moves()

    def points_to(self, tag: str) -> str | None:
        self._operation()
        return super().points_to(tag)

    def write(self, move: TagMove) -> None:
        self._operation()
        super().write(move)

    def point(self, tag: str, evidence: KnownGood | None) -> None:
        self._operation()
        super().point(tag, evidence)


@pytest.mark.parametrize("interrupt_at", range(1, 13))
def test_of_two_who_promote_at_the_same_instant_one_is_reported(interrupt_at: int, make_evidence: Evidence) -> None:
    """The other user's whole move happens before one of the operations of this move."""
    errors: list[str] = []
    came: list[bool] = []
    shelf = CrowdedShelf()
    one, two = promoted(make_evidence(image=ONE)), promoted(make_evidence(image=TWO))
    seen = look_at(shelf, TAG)

    def other() -> None:
        came.append(True)
        try:
            move_tag(shelf, two, seen)
        except UserError as error:
            errors.append(str(error))

    shelf.meanwhile, shelf.interrupt_at = other, interrupt_at
    try:
        move_tag(shelf, one, seen)
    except UserError as error:
        errors.append(str(error))
    assert len(errors) == len(came), errors
    # The tag points to the image of the last move in the history.
    assert shelf.tags[TAG] == shelf.history[-1].evidence.image
