from collections.abc import Callable

import pytest

from harness.base.errors import UserError
from harness.registry.oci import Repository
from harness.registry.tags import promotions
from harness.registry.tags.known_good_tags import ALIAS, look_at, move_tag
from harness.registry.tags.promotions import KnownGood, TagMove
from harness.registry.tags.registry_tags import DEMOTED, HISTORY_TAG, RegistryTags
from tests.harness.fake_registry import FakeRegistry

TAG = "known-good-cpu"


@pytest.fixture
def tags(registry: FakeRegistry) -> RegistryTags:
    return RegistryTags(f"{registry.host}/me/")


@pytest.fixture
def make_pushed(registry: FakeRegistry, make_evidence: Callable[..., KnownGood]) -> Callable[..., KnownGood]:
    """Return a function that makes evidence of an image in the registry; any manifest stands in for an image."""

    def make(content: bytes = b"an image", **changes: object) -> KnownGood:
        repository = Repository(f"{registry.host}/me/vpoc")
        image = repository.artifact("application/vnd.image", content, {}, None)
        repository.put_manifest("cpu-plain", image)
        return make_evidence(repository=repository.name, digest=image.digest, **changes)

    return make


def move(tags: RegistryTags, evidence: KnownGood, reason: str | None = None) -> None:
    what = TagMove(move="demoted" if reason else "promoted", at=1.0, reason=reason, evidence=evidence)
    move_tag(tags, what, look_at(tags, evidence.tag))


def test_a_promotion_leaves_tag_alias_and_history(tags: RegistryTags, make_pushed: Callable[..., KnownGood]) -> None:
    evidence = make_pushed()
    assert (tags.moves(), tags.points_to(TAG)) == ([], None)
    move(tags, evidence)
    assert tags.points_to(TAG) == tags.points_to(ALIAS) == evidence.digest
    assert [(m.move, m.evidence) for m in tags.moves()] == [("promoted", evidence)]
    tags.check(evidence)


def test_the_history_only_grows(tags: RegistryTags, make_pushed: Callable[..., KnownGood]) -> None:
    first, second = make_pushed(passes=33), make_pushed(passes=34, promoted_at=2e9)
    other = make_pushed(b"another image")
    for evidence in (first, second, other):
        move(tags, evidence)
    move(tags, other, "it hangs")
    assert [(m.move, m.reason, m.evidence) for m in tags.moves()] == [
        ("promoted", None, first),
        ("promoted", None, second),
        ("promoted", None, other),
        ("demoted", "it hangs", other),
    ]


def test_a_history_does_not_become_too_large_to_be_read(
    tags: RegistryTags, make_pushed: Callable[..., KnownGood], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = make_pushed(passes=33), make_pushed(passes=34)
    move(tags, first)
    monkeypatch.setattr(promotions, "MOST_MOVES", 1)
    with pytest.raises(UserError, match=r"known-good\.history: holds more than 1 promotions"):
        move(tags, second)
    assert [one.evidence for one in tags.moves()] == [first]


def test_a_demoted_tag_points_to_no_image(
    tags: RegistryTags, registry: FakeRegistry, make_pushed: Callable[..., KnownGood]
) -> None:
    evidence = make_pushed()
    move(tags, evidence)
    move(tags, evidence, "it hangs")
    assert (tags.points_to(TAG), tags.points_to(ALIAS)) == (None, None)
    assert DEMOTED.encode() in registry.manifests[TAG][0]
    with pytest.raises(UserError, match="moved known-good-cpu to nothing, without evidence"):
        tags.check(evidence)


def test_a_tag_that_was_never_there_is_not_made_to_be_demoted(tags: RegistryTags, registry: FakeRegistry) -> None:
    tags.point(TAG, None)
    assert TAG not in registry.manifests


def test_a_tag_that_points_elsewhere_is_refused(tags: RegistryTags, make_pushed: Callable[..., KnownGood]) -> None:
    evidence, foreign = make_pushed(), make_pushed(b"somebody else's")
    move(tags, evidence)
    tags.point(TAG, foreign)
    with pytest.raises(UserError, match=f"moved {TAG} to {foreign.digest}, without evidence"):
        tags.check(evidence)


def test_an_image_that_is_gone_gets_no_tag(
    tags: RegistryTags, registry: FakeRegistry, make_pushed: Callable[..., KnownGood]
) -> None:
    evidence = make_pushed()
    registry.manifests.clear()
    with pytest.raises(UserError, match="is not there; push it again"):
        move(tags, evidence)
    assert HISTORY_TAG not in registry.manifests
