"""Tests of torch in several layers, on a real engine: the image is the same, and so are layers with equal files."""

import pytest

from harness.environments.docker import layers
from harness.environments.docker.build import ensure_cell_image
from harness.environments.docker.image_tree import differences_from, tree_of
from harness.environments.docker.images import Epochs, Image, labelled_epochs
from harness.environments.docker.rebuild import rebuilt
from harness.host.engine import Engine
from harness.matrix.cells import Matrix

SMALL = 150_000_000


@pytest.mark.long
@pytest.mark.timeout(900)
def test_torch_in_several_layers_is_the_same_image_and_each_layer_the_same_again(
    engine: Engine, matrix: Matrix, images: dict[str, Image], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cell = images["cpu-plain"], matrix.cells["cpu-plain"]
    monkeypatch.setattr(layers, "LAYER_BYTES", SMALL)
    parts = ensure_cell_image(engine, cell)
    # The layers are base, four of torch, other wheels and app. No byte is in two layers.
    assert len(parts.layers) == len(whole.layers) + 3
    assert parts.size == whole.size
    assert differences_from(engine, whole, tree_of(engine, parts)) == []
    sizes = [step["Size"] for step in engine.client.api.history(parts.id) if "install.py torch" in step["CreatedBy"]]
    # One layer is larger than the limit because a single library is.
    assert sum(size > SMALL for size in sizes) == 1
    # Another stack has a lock of another day; where torch's files are the same, its layers are the same.
    epochs = labelled_epochs(parts.labels)
    assert epochs
    with rebuilt(engine, cell, Epochs(epochs.runtime + 1000, epochs.app + 1000)) as again:
        same = [one == other for one, other in zip(parts.layers, again.layers, strict=True)]
    assert same == [True] * (len(parts.layers) - 2) + [False] * 2
    monkeypatch.undo()
    ensure_cell_image(engine, cell)
