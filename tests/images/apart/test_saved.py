"""Tests of images saved to a folder and loaded again, with real engines: the same image, once, with its signatures."""

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

import pytest

from harness.base.errors import NoSpaceError, UserError
from harness.environments.docker import own_images
from harness.environments.docker.images import PREFIX, Image, find
from harness.faults.own_engine import OwnEngine
from harness.host.engine import Engine
from harness.matrix.cells import Matrix
from harness.registry.attestations import attached
from harness.registry.attestations.check import check_offline
from harness.registry.oci import blobs_of
from harness.registry.saved import save
from harness.registry.saved.layout import ImageFolder
from harness.registry.saved.load import load_cells
from harness.registry.saved.save import save_cells

CELLS = ("cpu-plain", "cpu-no-sdma")
Images = dict[str, Image]


def quiet(_: str) -> None:
    """Say nothing."""


@pytest.fixture
def small(engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Images]:
    """Yield two images with a common layer and a small one each, not gigabytes; with a separate key and cache."""
    monkeypatch.setattr(attached, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(own_images, "OWN_IMAGES", tmp_path / "own-images.txt")
    made: Images = {}
    mark = token_hex(4)
    (tmp_path / "context").mkdir()
    (tmp_path / "context/common").write_bytes(bytes(range(256)) * 40)
    for cell in CELLS:
        (tmp_path / "context" / cell).write_text(mark)
        text = f"FROM scratch\nCOPY common /\nCOPY {cell} /\nLABEL {PREFIX}.cell={cell} test={mark}\n"
        name = f"vpoc-test:{mark}-{cell}"
        words = ("--tag", name, "--file", "-", str(tmp_path / "context"))
        command = [engine.builder.program, *engine.builder.build, *words]
        environment = engine.builder.variables
        subprocess.run(command, input=text, text=True, check=True, capture_output=True, env=environment)
        image = find(engine, name)
        assert image
        own_images.remember(image)
        made[cell] = image
    monkeypatch.setattr(save, "built_image", lambda _, cell: made[cell.id])
    yield made
    for image in made.values():
        engine.client.images.remove(image.id, force=True)


@pytest.fixture
def folder(engine: Engine, matrix: Matrix, small: Images, tmp_path: Path) -> Path:
    """Save both images and return the folder."""
    folder = tmp_path / "stick" / "images"
    save_cells(engine, [matrix.cells[cell] for cell in CELLS], folder, quiet)
    return folder


def files_in(folder: Path) -> dict[str, int]:
    return {str(file.relative_to(folder)): file.stat().st_mtime_ns for file in folder.rglob("*") if file.is_file()}


def test_an_image_comes_back_as_it_was_and_a_layer_of_two_is_there_once(
    engine: Engine,
    matrix: Matrix,
    small: Images,
    folder: Path,
    private_engine: OwnEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    saved = {image.name: image for image in ImageFolder(folder).images()}
    assert set(saved) == set(CELLS)
    common, *_ = ({str(blob["digest"]) for blob in image.layers} for image in saved.values())
    assert len({str(blob["digest"]) for image in saved.values() for blob in image.layers}) == 3
    assert len(common) == 2
    private = private_engine.start()
    # The other host knows only what is in the folder.
    monkeypatch.setattr(attached, "KEPT", folder.parent / "kept-there")
    loaded = load_cells(private, folder, (), matrix, quiet)
    assert [(one.cell, one.was_here, one.signed_by) for one in loaded] == [(n, False, ("you",)) for n in sorted(CELLS)]
    for one in loaded:
        there, here = find(private, one.tag), small[one.cell]
        assert there
        assert (there.layers, there.labels) == (here.layers, here.labels)
        # Engines of one kind give the image the same id.
        assert (there.id == here.id) or private.keeps_compressed != engine.keeps_compressed
    checks = check_offline(private, find(private, loaded[0].tag) or pytest.fail("gone"), matrix, None, quiet)
    assert {check.name: check.right for check in checks} == {
        "lock": None,
        "provenance": True,
        "bill of materials": True,
    }
    assert [one.was_here for one in load_cells(private, folder, ["cpu-plain"], matrix, quiet)] == [True]


def test_what_is_there_is_not_written_again_and_what_is_replaced_goes(
    engine: Engine, matrix: Matrix, folder: Path, small: Images
) -> None:
    before = files_in(folder)
    cells = [matrix.cells[cell] for cell in CELLS]
    # An interrupted command leaves blobs, but no index yet.
    index = (folder / "index.json").read_bytes()
    (folder / "index.json").unlink()
    save_cells(engine, cells, folder, quiet)
    assert (folder / "index.json").read_bytes() == index
    left = folder / "blobs" / "sha256" / ("0" * 64)
    left.write_text("of an image that was replaced")
    save_cells(engine, cells[:1], folder, quiet)
    after = files_in(folder)
    assert {name for name in before if name.startswith("blobs") and before[name] != after.get(name)} == set()
    assert before.keys() == after.keys()
    assert len(ImageFolder(folder).images()) == len(CELLS)


def test_a_changed_byte_is_refused_in_one_line_and_the_engine_gets_nothing(
    engine: Engine, matrix: Matrix, folder: Path, small: Images, private_engine: OwnEngine
) -> None:
    private = private_engine.start()
    files = [file for file in folder.rglob("*") if file.is_file() and file.stat().st_size]
    assert len(files) > 10
    for file in files:
        content = file.read_bytes()
        for place in {0, len(content) // 2, len(content) - 1}:
            changed = bytearray(content)
            changed[place] ^= 1
            file.write_bytes(changed)
            with pytest.raises(UserError) as told:
                load_cells(private, folder, (), matrix, quiet)
            assert "\n" not in str(told.value)
            assert str(folder) in str(told.value), told.value
        file.write_bytes(content)
    file = ImageFolder(folder).file(str(blobs_of(ImageFolder(folder).images()[0].manifest)[1]["digest"]))
    file.unlink()
    with pytest.raises(UserError, match=r"cannot be read: No such file.*; `matrix save` to an empty folder"):
        load_cells(private, folder, (), matrix, quiet)
    assert private.client.images.list() == []
    # A missing layer is written again.
    save_cells(engine, [matrix.cells[cell] for cell in CELLS], folder, quiet)
    assert len(load_cells(private, folder, (), matrix, quiet)) == len(CELLS)


def test_a_save_writes_a_damaged_layer_again_and_refuses_what_else_is_damaged(
    engine: Engine, matrix: Matrix, folder: Path
) -> None:
    place = ImageFolder(folder)
    before = place.images()
    layers = {str(layer["digest"]): layer for image in before for layer in image.layers}
    for file in [file for file in folder.rglob("*") if file.is_file() and file.stat().st_size]:
        content = file.read_bytes()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with suppress(UserError):
            save_cells(engine, [matrix.cells[cell] for cell in CELLS], folder, quiet)
        if f"sha256:{file.name}" in layers:
            assert place.holds(layers[f"sha256:{file.name}"])
        file.write_bytes(content)
        assert place.images() == before, file


def test_a_full_stick_is_one_line_and_keeps_what_was_there(
    engine: Engine, matrix: Matrix, small: Images, tmp_path: Path
) -> None:
    stick = tmp_path / "full"
    stick.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", stick], check=False).returncode:
        pytest.skip("needs root, to mount a small file system")
    try:
        with pytest.raises(NoSpaceError, match=r"No space left on device; free") as told:
            save_cells(engine, [matrix.cells["cpu-plain"]], stick / "images", quiet)
        assert "\n" not in str(told.value)
        assert not (stick / "images" / "index.json").exists()
        assert not list(stick.rglob("*.tmp"))
        with pytest.raises(UserError, match="no images were saved here, or not to the end"):
            load_cells(engine, stick / "images", (), matrix, quiet)
    finally:
        subprocess.run(["umount", stick], check=True)


def test_an_image_under_the_name_of_another_is_refused(
    engine: Engine, matrix: Matrix, folder: Path, small: Images
) -> None:
    place = ImageFolder(folder)
    images = {image.name: image for image in place.images()}
    one, other = (images[name] for name in CELLS)
    place.write_index(
        [type(one)(other.name, one.manifest, one.config), type(one)(one.name, other.manifest, other.config)]
    )
    with pytest.raises(UserError, match="the image named cpu-no-sdma is of cpu-plain"):
        load_cells(engine, folder, (), matrix, quiet)
    with pytest.raises(UserError, match="has no image of cpu-plane; did you mean cpu-plain"):
        load_cells(engine, folder, ["cpu-plane"], matrix, quiet)


def test_an_image_with_the_labels_of_another_is_not_saved(
    engine: Engine, matrix: Matrix, small: Images, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(save, "built_image", lambda *_: small["cpu-plain"])
    with pytest.raises(UserError, match="the image of cpu-no-sdma is named cpu-plain by its labels"):
        save_cells(engine, [matrix.cells["cpu-no-sdma"]], tmp_path / "stick", quiet)
    assert not (tmp_path / "stick").exists()
