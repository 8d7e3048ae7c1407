import json
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from harness.base.errors import UserError
from harness.registry.oci import IMAGE_INDEX, IMAGE_MANIFEST, Manifest, Repository, digest_of
from tests.harness.fake_registry import FakeRegistry

KIND = "application/vnd.vpoc.test+json"


@pytest.fixture(params=[False, True], ids=["without referrers", "with referrers"])
def registry(request: pytest.FixtureRequest) -> Iterator[FakeRegistry]:
    fake = FakeRegistry(knows_referrers=request.param)
    with fake.serving():
        yield fake


@pytest.fixture
def repository(registry: FakeRegistry) -> Repository:
    return Repository(f"{registry.host}/me/vpoc")


def stored(repository: Repository, tag: str, content: bytes = b"an image") -> Manifest:
    image = repository.artifact(KIND, content, {}, None)
    repository.put_manifest(tag, image)
    return image


def test_what_is_stored_under_a_tag_is_found_by_tag_and_digest(repository: Repository) -> None:
    assert repository.manifest("latest") is None
    image = stored(repository, "latest")
    assert repository.manifest("latest") == repository.manifest(image.digest) == image
    assert repository.content(image) == b"an image"


def test_a_tag_can_be_moved(repository: Repository) -> None:
    stored(repository, "latest")
    newer = stored(repository, "latest", b"another")
    assert repository.manifest("latest") == newer


def test_what_refers_to_an_image_is_found_by_its_digest(repository: Repository, registry: FakeRegistry) -> None:
    image, other = stored(repository, "one"), stored(repository, "two", b"two")
    assert list(repository.referrers(image.digest, KIND)) == []
    attached = [repository.artifact(KIND, content, {"n": "1"}, image) for content in (b"first", b"second")]
    foreign = repository.artifact("application/vnd.other", b"x", {}, image)
    for artifact in (*attached, foreign, attached[0]):
        repository.attach(artifact, image)
    found = repository.referrers(image.digest, KIND)
    assert [repository.content(artifact) for artifact in found] == [b"first", b"second"]
    assert list(repository.referrers(other.digest, KIND)) == []
    # Each is fetched when it is needed, because all of them may have gigabytes.
    listed = repository.referrers(image.digest, KIND)
    assert next(listed) == attached[0]
    del registry.manifests[attached[1].digest]
    assert list(listed) == []
    # An index is only kept under a tag for registries that do not list referrers themselves.
    assert (image.digest.replace(":", "-") in registry.manifests) != registry.knows_referrers


def test_an_index_that_somebody_else_replaces_is_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeRegistry()
    with fake.serving() as host:
        repository = Repository(f"{host}/vpoc")
        image = stored(repository, "one")
        mine, theirs = (repository.artifact(KIND, content, {}, image) for content in (b"mine", b"theirs"))
        repository.attach(theirs, image)
        tag = image.digest.replace(":", "-")
        with_theirs = fake.manifests[tag]
        put = repository.put_manifest
        lost: list[object] = []

        def contended(reference: str, manifest: Manifest) -> object:
            answer = put(reference, manifest)
            if reference == tag and not lost:
                lost.append(fake.manifests.pop(tag))
                fake.manifests[tag] = with_theirs
            return answer

        monkeypatch.setattr(repository, "put_manifest", contended)
        repository.attach(mine, image)
        assert lost
        found = repository.referrers(image.digest, KIND)
        assert [repository.content(artifact) for artifact in found] == [b"theirs", b"mine"]


def test_a_name_is_read_as_the_docker_command_reads_it() -> None:
    with pytest.raises(UserError, match=r"registry https://ghcr.io/me/vpoc: .*scheme"):
        Repository("https://ghcr.io/me/vpoc")


def test_what_somebody_else_made_is_no_traceback(repository: Repository, registry: FakeRegistry) -> None:
    for content in (b"[]", b"{}", b'{"layers": [1]}', b"not JSON"):
        with pytest.raises(UserError, match="has no content"):
            repository.content(Manifest(content, KIND))
    image = stored(repository, "latest")
    registry.manifests[image.digest.replace(":", "-")] = (b'{"manifests": [1, {}]}', KIND)
    if not registry.knows_referrers:
        assert list(repository.referrers(image.digest, KIND)) == []


@pytest.mark.parametrize("digest", ["../../other/blobs/sha256:0", "sha256:0\r\nmatrix: all is well", "latest", ""])
def test_what_is_no_digest_is_not_asked_for(
    digest: str, repository: Repository, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = stored(repository, "latest")
    entry = {"mediaType": IMAGE_MANIFEST, "digest": digest, "size": 2}
    odd = json.dumps({"config": entry, "layers": [entry]}).encode()
    index = json.dumps({"manifests": [{**entry, "artifactType": KIND}]}).encode()
    registry.manifests[image.digest.replace(":", "-")] = (index, IMAGE_INDEX)
    monkeypatch.setattr(registry, "referrers", lambda _: index)
    asked = len(registry.asked)
    with pytest.raises(UserError, match=r"^[^\r\n]*: has no content"):
        repository.content(Manifest(odd, KIND))
    assert repository.unpacked_layers(Manifest(odd, KIND)) == set()
    assert len(registry.asked) == asked
    assert list(repository.referrers(image.digest, KIND)) == []
    assert not any(digest in path for _, path, _ in registry.asked[asked:] if digest)


def test_more_artifacts_than_anybody_makes_are_not_asked_for(
    repository: Repository, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = stored(repository, "latest")
    entry = {"digest": image.digest, "artifactType": KIND}
    index = json.dumps({"manifests": [entry] * 1001}).encode()
    monkeypatch.setattr(registry, "referrers", lambda _: index)
    registry.manifests[image.digest.replace(":", "-")] = (index, KIND)
    with pytest.raises(UserError, match="1001 artifacts refer to it"):
        repository.referrers(image.digest, KIND)


def test_content_that_is_not_what_was_asked_for_is_refused(repository: Repository, registry: FakeRegistry) -> None:
    image = stored(repository, "latest")
    registry.instead = b"{}"
    with pytest.raises(UserError, match="do not trust it"):
        repository.manifest(image.digest)
    with pytest.raises(UserError, match="was replaced"):
        repository.content(image)


@pytest.mark.parametrize("told", [b"5", b'{"tags": 5}', b'{"tags": null}', b"{"])
def test_tags_of_another_kind_are_none(repository: Repository, told: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repository, "_ask", lambda *_, **__: SimpleNamespace(status_code=200, content=told))
    assert repository.tags() == []


@pytest.mark.parametrize("told", [b"[]", b'{"rootfs": [1]}', b'{"rootfs": {"diff_ids": 5}}'])
def test_layers_of_another_kind_are_none(repository: Repository, told: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repository, "_ask", lambda *_, **__: SimpleNamespace(status_code=200, content=told))
    config = {"mediaType": "an.image", "digest": digest_of(told)}
    image = Manifest(json.dumps({"config": config}).encode(), KIND)
    assert repository.unpacked_layers(image) == set()


def test_an_index_of_another_kind_lists_nothing() -> None:
    assert Repository._listed(Manifest(b'{"manifests": 5}', KIND)) == []
