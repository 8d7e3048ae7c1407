"""Tests of promoting, on a stand-in for an engine with one image and a registry in memory."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import ImageNotFound

from harness.base.errors import UserError
from harness.environments.docker.images import REVISION
from harness.evidence.files.run_files import Intent, Record
from harness.evidence.index import Index
from harness.evidence.records import Results
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import count_runs
from harness.evidence.verdicts.verdict import judge
from harness.host.engine import Engine
from harness.matrix.cells import Matrix, SignerPolicy, Verdicts
from harness.registry.attestations.keys import ensure_own_key, keys_folder, trusted_keys
from harness.registry.attestations.signers import check_signer
from harness.registry.oci import Repository
from harness.registry.tags import tag_commands
from harness.registry.tags.promote import TagClaim, claims_of
from harness.registry.tags.promotions import KnownGood, TagMove, read_moves, to_line
from harness.registry.tags.registry_tags import HISTORY, HISTORY_TAG, RegistryTags
from harness.registry.tags.suspension import suspension_by
from harness.registry.tags.tag_commands import MOST_TAGS, _promote, tag_history, tag_states
from tests.harness.fake_registry import FakeRegistry

IMAGE = "sha256:" + "1" * 64
NOW = 1e9 + 60


class OneImage:
    """A stand-in for the API of an engine that has one image."""

    def __init__(self) -> None:
        self.names = {IMAGE}
        self.labels: dict[str, str] = {}

    def inspect_image(self, name: str) -> dict[str, Any]:
        if name not in self.names:
            raise ImageNotFound(name)
        return {"Id": IMAGE, "Config": {"Labels": self.labels}, "RootFS": {"Layers": []}, "Size": 1, "RepoTags": []}

    def tag(self, _image: str, repository: str, tag: str) -> None:
        self.names.add(f"{repository}:{tag}")


Promote = Callable[..., KnownGood]


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "results")


@pytest.fixture
def claim(results: Results, make_intent: Callable[..., Intent], make_record: Callable[..., Record]) -> TagClaim:
    row = Row.of(make_record(executor="docker"))._replace(image=IMAGE, qualifies_for_promotion=True)
    rows = {f"r{n:02}": row._replace(run_id=f"r{n:02}", started=row.started + n, boot_id=f"{n % 2}") for n in range(33)}
    results.begin(make_intent("r32"))
    (claim,) = claims_of(judge(rows.values(), {}, Verdicts()), rows, count_runs(rows.values()))
    return claim


@pytest.fixture
def promote(claim: TagClaim, results: Results, matrix: Matrix, monkeypatch: pytest.MonkeyPatch) -> Promote:
    """Return a function that promotes the image, in a registry if one is given."""
    api = OneImage()
    engine = Engine("unix:///synthetic", SimpleNamespace(api=api))

    def push(_engine: Engine, _image: str, name: str, _notify: object) -> str:
        repository = Repository(name.rpartition(":")[0])
        manifest = repository.artifact("application/vnd.image", b"an image", {}, None)
        repository.put_manifest("cpu-plain", manifest)
        return manifest.digest

    monkeypatch.setattr(tag_commands, "push_image", push)
    monkeypatch.setattr(tag_commands, "is_own", lambda _: True)
    # `attest_image` reads the contents of the image; tests/images has real images for that.
    monkeypatch.setattr(tag_commands, "attest_image", lambda *_: None)

    def make(registry: str | None, **options: Any) -> KnownGood:
        api.labels = {REVISION: options.pop("revision", "0" * 40)}
        options = {"replace": None, "dry_run": False, **options}
        now = options.pop("now", NOW)
        return _promote(results, matrix, claim, engine, registry, now, lambda _: None, **options)

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
    # A promotion on the same runs is the same promotion, and is not written again.
    assert [move.evidence for move in read_moves(results)] == [pushed]


def test_promoting_again_ends_a_suspension(
    promote: Promote, results: Results, matrix: Matrix, make_record: Callable[..., Record]
) -> None:
    evidence = promote(None)
    about = {"executor": "docker", "gpus": (0,), "workload": "own-data", "family": "8" * 64}
    fault = make_record("later", "host-fault", "unhealthy-gpu", started=NOW - 30, **about)
    results.begin(fault.intent)
    results.finish(fault.model_copy(update={"finished": NOW + 1}))
    Index(results).add(fault.model_copy(update={"finished": NOW + 1}))
    assert suspension_by(results, matrix)(evidence)
    again = promote(None, now=NOW + 60)
    assert read_moves(results)[-1].evidence == again
    assert suspension_by(results, matrix)(again) is None


def test_a_tag_of_a_cell_that_the_matrix_lacks_is_not_valid_here(
    promote: Promote, results: Results, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence = promote(None)
    monkeypatch.setattr(tag_commands, "why_not_usable", lambda *_: None)
    stack = matrix.cells[evidence.cell].stack.name
    without = matrix.model_copy(update={"stacks": {n: one for n, one in matrix.stacks.items() if n != stack}})
    # It would be copied, being kept beside the fields.
    vars(without).pop("cells")
    for has, why in ((matrix, None), (without, "the matrix file does not have this cell")):
        (state,) = tag_states(results, has, None, NOW)
        assert (state.not_here, state.plain["valid_here"]) == (why, why is None)


def test_a_tag_that_its_registry_lacks_or_has_moved_is_not_valid_here(
    promote: Promote, results: Results, matrix: Matrix, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence = promote(place)
    monkeypatch.setattr(tag_commands, "why_not_usable", lambda *_: None)
    tags = RegistryTags(place)

    def not_here() -> str | None:
        (state,) = tag_states(results, matrix, place, NOW)
        assert state.not_here == state.problem
        with pytest.raises(UserError) if state.not_here else nullcontext():
            tags.check(evidence)
        return state.not_here

    assert not_here() is None
    repository = Repository(f"{place}/vpoc")
    repository.put_manifest(evidence.tag, repository.artifact("another", b"image", {}, None))
    assert "somebody else moved it to" in str(not_here())
    tags.point(evidence.tag, None)
    assert not_here() == f"{tags.name} has no {evidence.tag}; promote it again"


def test_a_registry_with_more_tags_than_anybody_has_is_not_asked_about_each(
    promote: Promote, results: Results, matrix: Matrix, place: str
) -> None:
    evidence = promote(place)
    many = (evidence.model_copy(update={"tag": f"known-good-{number}"}) for number in range(MOST_TAGS + 1))
    history = b"".join(to_line(TagMove(move="promoted", at=NOW, evidence=one)) for one in many)
    repository = Repository(f"{place}/vpoc")
    repository.put_manifest(HISTORY_TAG, repository.artifact(HISTORY, history, {}, None))
    with pytest.raises(UserError, match=f"{MOST_TAGS + 1} tags are in force; do not trust this registry"):
        tag_states(results, matrix, place, NOW)


def test_the_alias_has_the_history_of_the_tag_that_it_stands_for(promote: Promote, results: Results) -> None:
    with pytest.raises(UserError, match="no tag known-good was ever made here"):
        tag_history(results, "known-good", None)
    evidence = promote(None)
    assert [move.evidence for move in tag_history(results, "known-good", None)] == [evidence]


def test_what_was_never_pushed_is_in_no_registry(promote: Promote, results: Results, place: str) -> None:
    here = promote(None)
    assert (here.repository, here.digest, here.reference) == (None, None, IMAGE)
    pushed = promote(place)
    assert [move.evidence for move in read_moves(results)] == [here, pushed]


def test_an_image_of_changes_that_no_commit_has_is_refused(promote: Promote, results: Results) -> None:
    with pytest.raises(UserError, match="was made from changes that no commit has"):
        promote(None, revision=f"{'0' * 40}-dirty")
    assert read_moves(results) == []


@pytest.mark.parametrize("revision", ["", "nonsense", "0" * 40])
def test_an_image_of_somebody_else_is_refused_unless_its_commit_is_here(
    revision: str, promote: Promote, results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tag_commands, "is_own", lambda _: False)
    with pytest.raises(UserError, match="names no commit that is in what is checked out here"):
        promote(None, revision=revision)
    assert read_moves(results) == []
    monkeypatch.setattr(tag_commands, "is_in_history", lambda commit: commit == revision)
    assert promote(None, revision=revision).image == IMAGE


def test_the_evidence_is_signed_by_the_user_and_that_is_enough(promote: Promote, place: str) -> None:
    assert check_signer(promote(place), SignerPolicy()) == "signed by you"


def test_a_signer_who_is_not_known_is_asked_for_once(promote: Promote, place: str) -> None:
    evidence = promote(place)
    line = ensure_own_key().public.line
    # Another host has another key.
    (keys_folder() / "own.pem").unlink()
    asked: list[str] = []

    def answer(question: str) -> bool:
        asked.append(question)
        return len(asked) > 1

    with pytest.raises(UserError, match="a key that is not known here; `matrix keys --trust") as refused:
        check_signer(evidence, SignerPolicy(), answer)
    # Whoever compares the fingerprint can run the command as it stands.
    assert f"`matrix keys --trust {line}` trusts it" in str(refused.value)
    assert "a key that is trusted from now on" in check_signer(evidence, SignerPolicy(), answer)
    (name,) = trusted_keys()
    assert check_signer(evidence, SignerPolicy(), answer) == f"signed by {name}"
    assert len(asked) == 2


def test_evidence_that_was_changed_after_signing_is_not_signed(promote: Promote, place: str) -> None:
    better = promote(place).model_copy(update={"passes": 999})
    with pytest.raises(UserError, match="is not signed") as refused:
        check_signer(better, SignerPolicy())
    assert "keys --trust" not in str(refused.value)
    assert check_signer(better, SignerPolicy(unsigned="accept")) == "not signed"


def test_the_matrix_file_can_list_who_may_sign(promote: Promote, place: str) -> None:
    evidence = promote(place)
    line = ensure_own_key().public.line
    (keys_folder() / "own.pem").unlink()
    assert check_signer(evidence, SignerPolicy(keys={"work": line})) == "signed by work"
    with pytest.raises(UserError, match="not known here"):
        check_signer(evidence, SignerPolicy(unknown="refuse"), lambda _: True)
