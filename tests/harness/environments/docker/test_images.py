import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.base.contract import CONTRACT
from harness.base.paths import CHECKOUT
from harness.environments import app_wheel
from harness.environments.docker import build, dockerfile, source_state
from harness.environments.docker.build_context import with_torch
from harness.environments.docker.images import (
    COMPILER_LOCK,
    LAYERS,
    REVISION,
    Image,
    all_by_labels,
    cell_labels,
    cell_tag,
    find,
    informative_labels,
    inputs_of,
    repository_in,
)
from harness.environments.docker.source_state import newest_of, source_revision
from harness.matrix.cells import Matrix


@pytest.mark.parametrize(("label", "contract"), [("2", 2), ("17", 17), ("", 1), ("two", 1), ("0", 1), ("9" * 99, 1)])
def test_an_image_follows_the_contract_that_its_label_names_or_the_old_one(label: str, contract: int) -> None:
    assert Image("sha256:1", {"vpoc.matrix.contract": label}, (), 1).contract == contract
    assert Image("sha256:1", {}, (), 1).contract == 1


@pytest.mark.parametrize("registry", ["me", "docker.io/me", "docker.io/me/"])
def test_an_image_of_docker_hub_has_the_name_that_an_engine_gives_it(registry: str) -> None:
    """An engine answers with `me/vpoc@sha256:...` for an image pulled as `docker.io/me/vpoc`."""
    assert repository_in(registry) == "me/vpoc"
    assert repository_in("ghcr.io/docker.io/me") == "ghcr.io/docker.io/me/vpoc"


def test_an_image_that_is_built_here_follows_the_present_contract(matrix: Matrix) -> None:
    assert Image("sha256:1", informative_labels(matrix.stacks["cpu"]), (), 1).contract == CONTRACT


def test_an_image_that_cannot_be_ours_is_not_found_by_its_labels() -> None:
    ours = {"vpoc.matrix.kind": "stack", "vpoc.matrix.inputs": "0" * 64}
    found: list[dict[str, str]] = [{}, {"vpoc.matrix.inputs": "a/b"}, {**ours, "of": "x" * (1 << 17)}, ours]
    told = [
        {"Id": f"{number}", "Config": {"Labels": labels}, "RootFS": {}, "Size": 1, "Created": 1}
        for number, labels in enumerate(found)
    ]
    api = SimpleNamespace(images=lambda **_: told, inspect_image=lambda one: told[int(one)])
    engine: Any = SimpleNamespace(client=SimpleNamespace(api=api))
    assert [image.labels for image in all_by_labels(engine, {})] == [ours]
    # An image need not have a configuration.
    told[0]["Config"] = None
    assert find(engine, "0") == Image("0", {}, (), 1)


def test_the_targets_of_device_code_stand_in_tag_and_labels(matrix: Matrix) -> None:
    cell = matrix.cells["rocm7.14.0-torch2.12.0-plain"]
    assert cell_tag(cell) == "vpoc:rocm7.14.0-torch2.12.0-plain-gfx1100"
    assert cell_labels(cell, informative_labels(cell.stack))["vpoc.matrix.targets"] == "gfx1100"
    inside = matrix.cells["rocm6.3-torch2.9.1-plain"]
    assert cell_tag(inside) == "vpoc:rocm6.3-torch2.9.1-plain"
    assert "vpoc.matrix.targets" not in informative_labels(inside.stack)


def test_an_image_for_other_gpus_is_not_taken_where_no_lock_is_resolved(matrix: Matrix) -> None:
    stack = matrix.stacks["rocm7.14.0-torch2.12.0"]
    one, both = (stack.model_copy(update={"targets": t}) for t in (("gfx1100",), ("gfx1030", "gfx1100")))
    inputs = inputs_of(None, both)
    assert inputs.lock is None
    for wanted in (inputs.wanted, inputs.wanted_of("runtime"), inputs.wanted_of("stack")):
        assert wanted.items() <= {**wanted, **informative_labels(both)}.items()
        assert not wanted.items() <= {**wanted, **informative_labels(one)}.items()


def test_rocm_as_packages_is_in_torchs_layer_and_triton_of_old_stacks_is_not(matrix: Matrix) -> None:
    names = ["torch", "numpy", "rocm", "rocm-sdk-core", "amd-torch-device-gfx1100", "triton", "pytorch-triton-rocm"]
    packages = with_torch(matrix.stacks["rocm10.0.0-torch2.13.0"], names)
    assert packages == {"torch", "rocm", "rocm-sdk-core", "amd-torch-device-gfx1100", "triton"}
    assert with_torch(matrix.stacks["rocm6.3-torch2.9.1"], names) == {"torch"}


def test_the_revision_of_what_goes_into_an_image_is_a_label(
    matrix: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e"]

    def revision() -> str | None:
        source_revision.cache_clear()
        newest_of.cache_clear()
        return source_revision()

    monkeypatch.setattr(source_state, "CHECKOUT", tmp_path)
    assert revision() is None
    assert REVISION not in informative_labels(matrix.stacks["cpu"])
    subprocess.run([*git, "init", "-q"], check=True)
    for file in ("app/a.py", "pages/b.md"):
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text("1")
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-qm", file], check=True)
    first = subprocess.run([*git, "rev-parse", "HEAD~1"], capture_output=True, text=True, check=True).stdout.strip()
    # A commit that only changes pages does not count.
    assert revision() == first
    assert informative_labels(matrix.stacks["cpu"])[REVISION] == first
    (tmp_path / "app/a.py").write_text("2")
    assert revision() == f"{first}-dirty"
    (tmp_path / "app/a.py").write_text("1")
    # Every other input of an image counts, so that the revision on its label can build it again.
    inputs = [LAYERS, COMPILER_LOCK, *(Path(str(module.__file__)) for module in (build, dockerfile, app_wheel))]
    for file in ("matrix.yaml", *(str(file.relative_to(CHECKOUT)) for file in inputs)):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("1")
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-qm", file], check=True)
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        assert revision() == head, file
    # Uncommitted changes of matrix.yaml do not count, because most of them do not concern the cell that is built.
    (tmp_path / "matrix.yaml").write_text("2")
    assert revision() == head
    source_revision.cache_clear()
