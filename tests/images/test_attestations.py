"""Tests of signed statements beside an image in a real registry: other hosts, and cosign, verify what was pushed."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import pytest

from harness.environments.docker.images import Image
from harness.host.engine import Engine
from harness.registry.attestations import attached
from harness.registry.attestations.attached import signed_beside
from harness.registry.attestations.attest import CONTENTS
from harness.registry.attestations.bundles import BUNDLE, Statement
from harness.registry.attestations.contents import contents_of_bill, contents_of_image
from harness.registry.attestations.keys import ensure_own_key, keys_folder, known_keys
from harness.registry.attestations.provenance import PROVENANCE
from harness.registry.oci import Repository
from tests.images.test_registry import matrix_command


@pytest.fixture(scope="module")
def images(small_images: dict[str, Image], on_small_base: None) -> dict[str, Image]:
    return small_images


@pytest.fixture(scope="module")
def key_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("signer")


@pytest.fixture(autouse=True)
def _signer(key_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(key_folder))


@pytest.fixture(scope="module")
def reference(registry: str, images: dict[str, Image], engine: Engine, key_folder: Path) -> str:
    """Return the reference by digest of an image that was pushed and signed."""
    place = f"{registry}/{token_hex(4)}"
    pushed = matrix_command("push", "cpu-plain", "--registry", place, XDG_STATE_HOME=str(key_folder)).stdout.strip()
    engine.client.images.remove(f"{place}/vpoc:cpu-plain")
    return pushed


def parts(reference: str) -> tuple[Repository, str]:
    name, _, digest = reference.partition("@")
    return Repository(name), digest


def test_what_is_in_it_and_what_it_was_made_from_is_beside_it(
    reference: str, images: dict[str, Image], engine: Engine
) -> None:
    repository, digest = parts(reference)
    said = {one.statement.kind: one for one in signed_beside(repository, digest, known_keys({}))}
    assert {kind: one.name for kind, one in said.items()} == {PROVENANCE: "you", CONTENTS: "you"}
    image = images["cpu-plain"]
    assert contents_of_bill(said[CONTENTS].statement.predicate) == contents_of_image(engine, image)
    materials = said[PROVENANCE].statement.predicate["buildDefinition"]["resolvedDependencies"]
    digests = {one["name"]: one["digest"] for one in materials}
    assert digests["lock"] == {"sha256": image.labels["vpoc.matrix.lock"]}
    assert digests["source"] == {"gitCommit": image.labels["org.opencontainers.image.revision"]}


def test_pushing_again_adds_nothing(reference: str) -> None:
    repository, digest = parts(reference)
    before = [one.digest for one in repository.referrers(digest, BUNDLE)]
    matrix_command("push", "cpu-plain", "--registry", repository.name.removesuffix("/vpoc"))
    assert [one.digest for one in repository.referrers(digest, BUNDLE)] == before


def test_verify_offline_checks_lock_contents_and_signatures(
    reference: str, images: dict[str, Image], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, digest = parts(reference)
    place = repository.name.removesuffix("/vpoc")
    matrix_command("pull", "cpu-plain", "--registry", place, "--digest", digest)
    told = json.loads(matrix_command("verify", "cpu-plain", "--offline", "--json").stdout)
    alike = {"lock": True, "provenance": True, "bill of materials": True}
    # Statements that others signed about the same image are kept as well.
    assert alike.items() <= {check["name"]: check["right"] for check in told["checks"]}.items()
    # Another user does not know the signer's key, but sees the same statements.
    line = known_keys({})["you"].line
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    told = json.loads(matrix_command("verify", "cpu-plain", "--offline", "--json", expected=1).stdout)
    right: dict[str, bool | None] = {"lock": True, "provenance": None, "bill of materials": None, "signatures": False}
    assert right.items() <= {check["name"]: check["right"] for check in told["checks"]}.items()
    matrix_command("keys", "--trust", line, "--name", "friend")
    said = matrix_command("verify", "cpu-plain", "--offline", "--registry", place).stdout
    assert said.count("right: signed by friend, and agrees with the image") == 2


@pytest.fixture
def own_reference(registry: str, images: dict[str, Image], engine: Engine) -> Iterator[str]:
    """Yield an image's reference in a place that no other test uses; local copies of its statements are removed."""
    place = f"{registry}/{token_hex(4)}"
    pushed = matrix_command("push", "cpu-plain", "--registry", place).stdout.strip()
    engine.client.images.remove(f"{place}/vpoc:cpu-plain")
    kept = attached.KEPT / parts(pushed)[1].removeprefix("sha256:")
    before = set(kept.glob("*.*"))
    yield pushed
    for file in set(kept.glob("*.*")) - before:
        file.unlink()


def test_a_statement_that_is_not_true_of_the_image_is_reported(own_reference: str) -> None:
    repository, digest = parts(own_reference)
    signed = next(s for s in signed_beside(repository, digest, known_keys({})) if s.statement.kind == PROVENANCE)
    made = {**signed.statement.predicate["buildDefinition"], "buildType": "urn:another"}
    false = Statement(repository.name, digest, PROVENANCE, {**signed.statement.predicate, "buildDefinition": made})
    attached.attach_signed(repository, false, ensure_own_key())
    place = repository.name.removesuffix("/vpoc")
    matrix_command("pull", "cpu-plain", "--registry", place, "--digest", digest)
    said = matrix_command("verify", "cpu-plain", "--offline", "--registry", place, expected=1).stdout
    assert "provenance: WRONG: signed by you, but contradicts the image" in said


def test_cosign_verifies_the_bundle_without_any_service(reference: str, tmp_path: Path) -> None:
    cosign = shutil.which("cosign")
    if cosign is None:
        pytest.skip("cosign is not installed (Debian sid: apt install cosign)")
    repository, digest = parts(reference)
    public = tmp_path / "signer.pub"
    public.write_bytes(ensure_own_key().public.pem)
    options = ["--key", str(public), "--insecure-ignore-tlog", "--type", PROVENANCE, "--digestAlg", "sha256"]

    def verify(bundle: Path, of: str) -> int:
        command = [cosign, "verify-blob-attestation", *options, "--bundle", str(bundle), "--digest", of[7:]]
        return subprocess.run(command, env={"HOME": str(tmp_path), "PATH": "/usr/bin"}, check=False).returncode

    for number, artifact in enumerate(repository.referrers(digest, BUNDLE)):
        bundle = tmp_path / f"{number}.json"
        bundle.write_bytes(repository.content(artifact))
        if artifact.parsed["annotations"]["dev.sigstore.bundle.predicateType"] == PROVENANCE:
            assert verify(bundle, digest) == 0
            assert verify(bundle, f"sha256:{'0' * 64}") != 0
            (keys_folder() / "own.pem").rename(tmp_path / "own.pem")
            public.write_bytes(ensure_own_key().public.pem)
            assert verify(bundle, digest) != 0
            (tmp_path / "own.pem").rename(keys_folder() / "own.pem")
            return
    raise AssertionError("no provenance is beside the image")
