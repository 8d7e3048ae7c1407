"""Tests of the commands on images, on a registry in memory and an engine that has the pulled images."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from harness.base.errors import UserError
from harness.cli import images
from harness.environments.docker.images import Image
from harness.host.engine import Engine
from harness.matrix.cells import Matrix
from harness.registry import image_commands
from harness.registry.attestations import attached
from harness.registry.attestations.attached import attach_signed
from harness.registry.attestations.bundles import Statement
from harness.registry.attestations.keys import SigningKey
from harness.registry.oci import IMAGE_MANIFEST, Manifest, Repository
from tests.harness.fake_registry import FakeRegistry
from tests.harness.run_matrix import run_matrix


def test_who_signed_what_was_pulled_has_the_name_that_matrix_yaml_lists(
    registry: FakeRegistry, matrix: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attached, "KEPT", tmp_path)
    repository = Repository(f"{registry.host}/me/vpoc")
    manifest = Manifest(b"{}", IMAGE_MANIFEST)
    repository.put_manifest("cpu-plain", manifest)
    key = SigningKey(ec.generate_private_key(ec.SECP256R1()))
    attach_signed(repository, Statement(repository.name, manifest.digest, "urn:some", {}), key)
    image = Image("sha256:1", {}, (), 1, digests=(f"{repository.name}@{manifest.digest}",))
    for name in ("pull", "current_image"):
        monkeypatch.setattr(image_commands, name, lambda *_: image)

    def signers(listed: dict[str, str]) -> list[str]:
        engine, cell = Engine("nowhere", None), matrix.cells["cpu-plain"]
        told = image_commands.pull_cell(engine, cell, f"{registry.host}/me", None, listed, print)
        return list(told["signed_by"])

    assert signers({"alice": key.public.line}) == ["alice"]
    assert signers({}) == [f"a key not known here ({key.public.fingerprint})"]


def test_a_dry_run_prints_the_dockerfiles_of_what_it_would_build_alone(
    matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, lacking = (matrix.cells[name] for name in ("cpu-debian13-torch2.6.0-plain", "cpu-no-sdma"))
    plan = image_commands.BuildPlan((lacking,), (there,), (), 0.3, 1.3, 44.0, "/var/lib/docker")
    monkeypatch.setattr(image_commands, "plan_build", lambda *_: plan)
    monkeypatch.setattr(images, "choose_engine", lambda *_: None)
    said = run_matrix("build", "--dry-run").stdout
    assert ("# Cell cpu-no-sdma: " in said, said.count("# Stack "), said.count("# Cell ")) == (True, 1, 1)


@pytest.mark.parametrize("cells", [1, 2])
def test_where_the_disk_is_too_small_for_all_one_cell_is_named(cells: int, matrix: Matrix) -> None:
    build = tuple(matrix.cells[name] for name in ("cpu-plain", "cpu-no-sdma")[:cells])
    plan = image_commands.BuildPlan(build, (), (), 18.0, 84.0, 44.0, "/var/lib/docker")
    fewer = ", or build fewer: `matrix build cpu-plain`" if cells > 1 else ""
    with pytest.raises(UserError) as error:
        image_commands.build(Engine("nowhere", None), plan, print)
    assert str(error.value) == f"/var/lib/docker: 84 GB are needed, 44 GB are free; free some{fewer}"
