"""Tests of pushing images to, and pulling them from, a real registry."""

import io
import json
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from harness.base.paths import CHECKOUT, LOCKS
from harness.environments.docker.images import Image, cell_tag, find
from harness.host.engine import Engine
from harness.matrix.cells import Matrix
from harness.registry.oci import Repository
from tests.harness.run_matrix import CompletedCommand, run_matrix
from tests.images.conftest import MAIN


def matrix_command(*words: str, expected: int = 0, **variables: str) -> CompletedCommand:
    """Run a command with some variables of the environment, in this process: starting another one takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        done = run_matrix(*words)
    assert done.returncode == expected, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def images(small_images: dict[str, Image], on_small_base: None) -> dict[str, Image]:
    return small_images


@pytest.fixture(scope="module")
def pushed(registry: str, images: dict[str, Image], engine: Engine) -> str:
    """Return the reference by digest of a cell's image in the registry."""
    reference = matrix_command("push", "cpu-plain", "--registry", registry).stdout.strip()
    engine.client.images.remove(f"{registry}/vpoc:cpu-plain")
    return reference


# test_promote.py trains in an image that was pulled into an empty store.
def test_an_image_is_pushed_and_pulled_by_digest_into_an_empty_store(
    pushed: str, registry: str, private_engine: Any, images: dict[str, Image]
) -> None:
    assert pushed.startswith(f"{registry}/vpoc@sha256:")
    private = private_engine.start()
    assert private.client.images.list() == []
    elsewhere = {"DOCKER_HOST": private_engine.address}
    words = ("pull", "cpu-plain", "--registry", registry, "--digest", pushed.partition("@")[2], "--json")
    told = json.loads(matrix_command(*words, **elsewhere).stdout)
    assert told["current"]
    # Engines with containerd's store use other ids for the same image.
    pulled = find(private, told["image"])
    assert pulled is not None
    assert (pulled.layers, pulled.labels) == (images["cpu-plain"].layers, images["cpu-plain"].labels)
    assert pushed in told["digests"]
    assert [image.id for image in private.client.images.list()] == [pulled.id]


def test_an_image_of_another_cell_or_accelerator_is_refused(
    pushed: str, registry: str, engine: Engine, images: dict[str, Image], matrix: Matrix
) -> None:
    name = f"{registry}/vpoc:rocm6.3-torch2.9.1-plain"
    engine.client.api.tag(images["cpu-plain"].id, *name.rsplit(":", 1))
    engine.client.images.push(name)
    engine.client.images.remove(name)
    told = matrix_command("pull", "rocm6.3-torch2.9.1-plain", "--registry", registry, expected=2).stderr
    assert "is an image of cpu-plain (accelerator cpu), not of rocm6.3-torch2.9.1-plain" in told.splitlines()[-1]
    assert find(engine, cell_tag(matrix.cells["rocm6.3-torch2.9.1-plain"])) is None
    # A refused image does not keep the name under which it was pulled.
    assert find(engine, name) is None


@pytest.mark.parametrize("words", [("push", "cpu-plain"), ("pull", "cpu-plain")])
def test_a_registry_that_is_down_is_one_line(words: tuple[str, ...], images: dict[str, Image]) -> None:
    told = matrix_command(*words, "--registry", "127.0.0.1:1", expected=2).stderr.splitlines()[-1]
    assert told.startswith(f"matrix: {words[0]}ing 127.0.0.1:1/vpoc:cpu-plain: ")
    assert "refused" in told


def test_a_registry_without_the_image_is_one_line(registry: str, images: dict[str, Image]) -> None:
    told = matrix_command("pull", "cpu-no-p2p", "--registry", registry, expected=2).stderr.splitlines()[-1]
    assert told.startswith(f"matrix: pulling {registry}/vpoc:cpu-no-p2p: ")


def test_what_is_not_built_cannot_be_pushed(registry: str) -> None:
    told = matrix_command("push", "cpu-debug-no-fragments", "--registry", registry, expected=2).stderr
    assert " build cpu-debug-no-fragments` builds it" in told


def test_a_lock_has_the_digest_of_the_base_and_the_next_build_uses_it(
    registry: str, engine: Engine, tmp_path: Path
) -> None:
    # A copy, because other tests use this checkout's lock meanwhile.
    for part in ("app", "harness", "images"):
        shutil.copytree(CHECKOUT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__", ".mypy_cache"))
    for file in ("matrix.yaml", "requirements-compiler.txt"):
        shutil.copy(CHECKOUT / file, tmp_path)
    (tmp_path / ".cache").symlink_to(CHECKOUT / ".cache")
    base = f"{registry}/base:bookworm"

    def in_copy(*words: str) -> str:
        command = [str(CHECKOUT / ".venv/bin/python"), "-c", MAIN, "--base", base, *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=280)
        assert done.returncode == 0, done.stderr
        return done.stdout

    # Nothing is built on it, so it need not hold anything.
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as made:
        made.addfile(tarfile.TarInfo("file"))
    image = json.loads(engine.client.api.import_image_from_data(archive.getvalue()))["status"]
    engine.client.api.tag(image, *base.rsplit(":", 1))
    engine.client.images.push(base)
    digest = engine.client.images.get_registry_data(base).id
    noted = json.loads(in_copy("lock", "cpu", "--json"))
    assert noted["base_digest"] == digest
    assert noted["made"] > 1.7e9
    assert noted["host"]
    locks = tmp_path / LOCKS.relative_to(CHECKOUT)
    assert "torch==2.13.0+cpu" in (locks / "cpu.txt").read_text(encoding="utf-8")
    assert json.loads((locks / "cpu.json").read_text(encoding="utf-8"))["base_digest"] == digest
    engine.client.images.remove(base)
    text = in_copy("build", "cpu-plain", "--dry-run")
    assert f"FROM {registry}/base@{digest} AS runtime" in text


def test_what_a_push_would_send_is_said_before(
    registry: str, pushed: str, images: dict[str, Image], engine: Engine
) -> None:
    empty = json.loads(
        matrix_command("push", "cpu-plain", "--registry", f"{registry}/none", "--dry-run", "--json").stdout
    )
    assert (empty["layers"], empty["missing"]) == (4, 4)
    # The image of another preset has the same layers.
    said = matrix_command("push", "cpu-no-sdma", "--registry", registry, "--dry-run").stdout
    assert said == "cpu-no-sdma: would send no layer: the repository has all 4\n"
    assert Repository(f"{registry}/none/vpoc").tags() == []
