"""Tests of making images that need no engine."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import ImageNotFound

from harness.base.errors import UserError
from harness.environments.docker import build, own_images
from harness.environments.docker.images import Image
from harness.host.engine_client import TooLargeAnswerError
from harness.matrix.cells import Matrix


@pytest.mark.parametrize(
    ("own", "there", "moved"),
    [
        (True, None, True),
        (False, None, False),
        (False, TooLargeAnswerError("labels of megabytes"), False),
        (False, ImageNotFound("vpoc:cpu-plain"), True),
    ],
)
def test_the_tag_of_a_cell_is_moved_to_no_image_of_somebody_else(
    own: bool, there: Exception | None, moved: bool, matrix: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image with the labels of one that is built here is used where there is no other.

    `there`: the error of looking for an image that has the tag; None if one has it.
    """
    image = Image(id="sha256:a", labels={}, layers=(), size=1)
    monkeypatch.setattr(own_images, "OWN_IMAGES", tmp_path / "own")
    if own:
        own_images.remember(image)
    monkeypatch.setattr(build, "BUILDS", tmp_path)
    monkeypatch.setattr(build, "current_image", lambda *_: image)
    tagged = list[str]()

    def inspect(_: str) -> dict[str, Any]:
        if there:
            raise there
        return {"Id": "sha256:b", "RootFS": {}, "Size": 1}

    api = SimpleNamespace(tag=lambda of, *_: tagged.append(of), inspect_image=inspect)
    engine: Any = SimpleNamespace(client=SimpleNamespace(api=api))
    assert build.ensure_cell_image(engine, matrix.cells["cpu-plain"]) is image
    assert tagged == [image.id] * moved


def test_an_image_is_on_the_disk_once_it_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "BUILDS", tmp_path)
    synced = list[str]()
    builder = SimpleNamespace(program="true", build=(), variables={})
    engine: Any = SimpleNamespace(builder=builder, sync_images=lambda: synced.append("images"))
    build._build(engine, "cpu", "FROM scratch", {}, ())
    assert synced == ["images"]


def test_what_a_builder_prints_need_not_be_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "BUILDS", tmp_path)
    says = r"printf 'ERROR: failed to solve: \342\206\n'; exit 1"
    builder = SimpleNamespace(program="sh", build=("-c", says), variables={})
    engine: Any = SimpleNamespace(builder=builder, folder=tmp_path)
    with pytest.raises(UserError, match="could not be built: "):
        build._build(engine, "cpu", "FROM scratch", {}, ())
