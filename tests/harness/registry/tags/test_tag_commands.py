"""Promoting with an engine that only has the names of one image, and a registry in memory."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import ImageNotFound

from harness.evidence.index import Row
from harness.evidence.records import Results
from harness.evidence.run_files import Intent, Record
from harness.evidence.verdicts.counting import count_runs
from harness.evidence.verdicts.verdict import judge
from harness.host.engine import Engine
from harness.matrix.cells import Matrix, Verdicts
from harness.registry.oci import Repository
from harness.registry.tags import tag_commands
from harness.registry.tags.promote import TagClaim, claims_of
from harness.registry.tags.promotions import KnownGood, read_moves
from harness.registry.tags.tag_commands import _promote
from tests.harness.fake_registry import FakeRegistry

IMAGE = "sha256:" + "1" * 64
NOW = 1e9 + 60


class OneImage:
    """The API of an engine that has one image."""

    def __init__(self) -> None:
        self.names = {IMAGE}

    def inspect_image(self, name: str) -> dict[str, Any]:
        if name not in self.names:
            raise ImageNotFound(name)
        labels: dict[str, str] = {}
        return {"Id": IMAGE, "Config": {"Labels": labels}, "RootFS": {"Layers": []}, "Size": 1, "RepoTags": []}

    def tag(self, _image: str, repository: str, tag: str) -> None:
        self.names.add(f"{repository}:{tag}")


Promote = Callable[..., KnownGood]


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "results")


@pytest.fixture
def claim(results: Results, make_intent: Callable[..., Intent], make_record: Callable[..., Record]) -> TagClaim:
    row = replace(Row.of(make_record(executor="docker")), image=IMAGE, qualifies_for_promotion=True)
    rows = {f"r{n:02}": replace(row, run_id=f"r{n:02}", started=row.started + n, boot_id=f"{n % 2}") for n in range(33)}
    results.begin(make_intent("r32"))
    (claim,) = claims_of(judge(rows.values(), {}, Verdicts()), rows, count_runs(rows.values()))
    return claim


@pytest.fixture
def promote(claim: TagClaim, results: Results, matrix: Matrix, monkeypatch: pytest.MonkeyPatch) -> Promote:
    """Promotes the image, in a registry where one is given."""
    engine = Engine("unix:///synthetic", SimpleNamespace(api=OneImage()))

    def push(_engine: Engine, _image: str, name: str, _notify: object) -> str:
        repository = Repository(name.rpartition(":")[0])
        manifest = repository.artifact("application/vnd.image", b"an image", {}, None)
        repository.put_manifest("cpu-plain", manifest)
        return manifest.digest

    monkeypatch.setattr(tag_commands, "push_image", push)

    def make(registry: str | None, **options: Any) -> KnownGood:
        options = {"replace": None, "dry_run": False, **options}
        return _promote(results, matrix, claim, engine, registry, NOW, lambda _: None, **options)

    return make


@pytest.fixture
def place() -> Iterator[str]:
    registry = FakeRegistry(knows_referrers=True)
    with registry.serving() as host:
        yield f"{host}/me"


def test_promoted_on_this_host_alone_an_image_is_still_known_by_its_digest(
    promote: Promote, results: Results, place: str
) -> None:
    pushed = promote(place)
    assert (pushed.repository, bool(pushed.digest)) == (f"{place}/vpoc", True)
    again = promote(None)
    assert (again.repository, again.digest) == (pushed.repository, pushed.digest)
    assert promote(None, dry_run=True).reference == pushed.reference
    # On the same runs it is the same promotion.
    assert [move.evidence for move in read_moves(results)] == [pushed]


def test_what_was_never_pushed_is_in_no_registry(promote: Promote, results: Results, place: str) -> None:
    here = promote(None)
    assert (here.repository, here.digest, here.reference) == (None, None, IMAGE)
    pushed = promote(place)
    assert [move.evidence for move in read_moves(results)] == [here, pushed]
