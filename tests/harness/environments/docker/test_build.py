"""Tests of making images that need no engine."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import ImageNotFound

from harness.base.errors import UserError
from harness.environments.docker import build, own_images
from harness.environments.docker.images import Image, Inputs
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


@pytest.mark.parametrize("times", [0, 1, 2])
def test_an_image_has_the_label_of_the_app_that_is_in_it_whatever_is_changed_meanwhile(
    times: int, matrix: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The app is changed, `times` times, between the look at the inputs and the copy of the app."""
    app, built, said, looks = ["app 0"], dict[str, tuple[str, str]](), list[str](), list[str]()
    stack = matrix.stacks["cpu"]
    runtime = Image("sha256:r", {"vpoc.matrix.stack": "cpu", "vpoc.matrix.inputs": "0" * 64}, (), 1)

    def fill_app(context: Path) -> None:
        context.mkdir(parents=True)
        if len(looks) <= times:
            app[0] = f"app {len(looks)}"
        (context / "app").write_text(app[0])

    def of_builder(_: Any, name: str, __: str, labels: dict[str, str], *___: Any) -> None:
        built[name] = labels["vpoc.matrix.app"], (tmp_path / "cpu" / "app").read_text()

    monkeypatch.setattr(build, "BUILDS", tmp_path)
    monkeypatch.setattr(own_images, "OWN_IMAGES", tmp_path / "own")
    monkeypatch.setattr(build, "inputs_of", lambda *_: Inputs(stack, "base", "pins", "lock", app[0], "recipe"))
    monkeypatch.setattr(build, "forget_source", lambda: looks.append("again"))
    monkeypatch.setattr(build, "find_runtime_image", lambda *_: runtime)
    monkeypatch.setattr(build, "_built", lambda *_: runtime)
    for name in ("_find_stack", "ensure_base", "ensure_lock", "digest_of_base", "ensure_kernel", "keep_in_place"):
        monkeypatch.setattr(build, name, lambda *_, **__: None)
    for name in ("_note_copies", "_tag"):
        monkeypatch.setattr(build, name, lambda *_: None)
    monkeypatch.setattr(build, "fill_app", fill_app)
    monkeypatch.setattr(build, "_build", of_builder)
    engine: Any = SimpleNamespace(builder=None)
    if times == 2:
        with pytest.raises(UserError, match=r"^stack cpu: what its image is made from was changed meanwhile$"):
            build.ensure_stack_image(engine, stack, said.append)
        assert built == {}
    else:
        build.ensure_stack_image(engine, stack, said.append)
        assert built == {"cpu": (f"app {times}", f"app {times}")}
    assert [line for line in said if "again" in line] == (
        ["stack cpu: what its image is made from was changed meanwhile; building it again"] * min(times, 1)
    )
    assert not (tmp_path / "cpu").exists()
