"""Tests of which image is taken of those with the same labels, on a stand-in for the engine."""

from pathlib import Path
from typing import Any

import pytest

from harness.environments.docker import own_images
from harness.environments.docker.images import REVISION, Image, Inputs
from harness.environments.docker.own_images import find_by_labels, find_own_stack_image, find_runtime_image, remember
from harness.matrix.cells import Matrix

ENGINE: Any = None


@pytest.fixture(autouse=True)
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Image]:
    """Return the list of the images with the labels that are wanted, newest first."""
    images = list[Image]()
    monkeypatch.setattr(own_images, "OWN_IMAGES", tmp_path / "own-images.txt")
    monkeypatch.setattr(own_images, "all_by_labels", lambda *_: iter(images))
    monkeypatch.setattr(own_images, "source_revision", lambda: "a" * 40)
    return images


def image(name: str, revision: str = "a" * 40) -> Image:
    return Image(f"sha256:{name}", {REVISION: revision}, (), 1)


def test_what_was_built_here_comes_before_newer_images_of_others(there: list[Image], matrix: Matrix) -> None:
    there += [image("pulled"), image("mine")]
    inputs = Inputs(matrix.stacks["cpu"], "base", "pins", "lock", "app", "recipe")
    assert find_by_labels(ENGINE, {}) == there[0]
    assert (find_own_stack_image(ENGINE, inputs), find_runtime_image(ENGINE, inputs)) == (None, None)
    remember(there[1])
    assert find_by_labels(ENGINE, {}) == there[1]
    assert (find_own_stack_image(ENGINE, inputs), find_runtime_image(ENGINE, inputs)) == (there[1], there[1])


def test_an_image_of_uncommitted_changes_is_used_only_while_there_are_some(
    there: list[Image], monkeypatch: pytest.MonkeyPatch
) -> None:
    there += [image("edited", f"{'a' * 40}-dirty"), image("committed")]
    remember(there[0])
    assert find_by_labels(ENGINE, {}) == there[1]
    monkeypatch.setattr(own_images, "source_revision", lambda: f"{'a' * 40}-dirty")
    assert find_by_labels(ENGINE, {}) == there[0]


def test_an_image_on_top_of_one_of_others_is_not_known_to_the_bottom(there: list[Image]) -> None:
    remember(image("cell"), on_others=True)
    remember(image("stack"))
    assert own_images.own_ids() == {"sha256:cell", "sha256:stack"}
    assert [own_images.is_own(f"sha256:{name}") for name in ("cell", "stack")] == [False, True]
    there += [image("pulled"), image("cell")]
    assert find_by_labels(ENGINE, {}) == there[0]
