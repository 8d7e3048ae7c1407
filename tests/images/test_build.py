"""Tests of real builds: what images share, what is not built twice, and what failed builds leave behind."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.base.paths import APP, BUILDS, CHECKOUT
from harness.environments import app_wheel, environment
from harness.environments.docker import build, images, own_images
from harness.environments.docker.build import ensure_cell_image, ensure_stack_image
from harness.environments.docker.builder_copies import copies_in_builder, drop_copies
from harness.environments.docker.images import Image, cell_tag, find, stack_tag
from harness.environments.docker.own_images import find_by_labels, own_ids
from harness.environments.python import pins
from harness.host.engine import Engine
from harness.matrix.cells import Cell, Matrix

MATRIX = [str(CHECKOUT / ".venv" / "bin" / "matrix")]
DEBIANS = "cpu-debian13-torch2.6.0"
CANARY = "canary5d41402abc4b2a76"
TEN = ["plain", "no-sdma", "notes-stable", "no-hipblaslt", "no-p2p", "one-queue", "max-split-512", "no-caching"]
TEN += ["miopen-fast", "debug-serialize"]


def layer_bytes(engine: Engine, images: list[Image]) -> int:
    """Return how many bytes of layers only one of the images has."""
    told = engine.client.api.df()
    if engine.keeps_compressed:
        return int(told["LayersSize"])
    # Not the size of all layers: the tests in `apart` make some meanwhile.
    ids = {image.id for image in images}
    return sum(int(one["Size"]) - int(one["SharedSize"]) for one in told["Images"] if one["Id"] in ids)


@pytest.fixture
def other_base(engine: Engine, matrix: Matrix, bases: tuple[str, str]) -> Iterator[str]:
    """Yield a copy of the base that has torch, with one more file: stacks on it have not been built yet."""
    name = f"vpoc-base:test-{os.getpid()}-{time.time_ns()}"
    dockerfile = f"FROM {bases[1]}\nRUN echo {name} > /etc/other\n"
    builder = engine.builder
    command = [builder.program, *builder.build, "--tag", name, "-"]
    subprocess.run(command, input=dockerfile, text=True, check=True, capture_output=True, env=builder.variables)
    yield name
    for image in engine.client.images.list(filters={"label": f"org.opencontainers.image.base.name={name}"}):
        engine.client.images.remove(image.id, force=True)
    engine.client.images.remove(name, force=True)
    # The image of the cell on the other base took the cell's tag, so move it back.
    ensure_cell_image(engine, matrix.cells[f"{DEBIANS}-plain"])


def based_on(cell: Cell, base: str) -> Cell:
    return Cell(cell.stack.model_copy(update={"base": base}), cell.preset)


def test_ten_presets_of_a_stack_add_no_layer_data(engine: Engine, matrix: Matrix, images: dict[str, Image]) -> None:
    before = layer_bytes(engine, [])
    made = [ensure_cell_image(engine, matrix.cells[f"cpu-{preset}"]) for preset in TEN]
    assert len({image.id for image in made}) == len(TEN)
    assert {image.layers for image in made} == {images["cpu-plain"].layers}
    # An engine that keeps images compressed also counts the manifest and the configuration of each.
    assert layer_bytes(engine, made) - before <= (8_000 * len(TEN) if engine.keeps_compressed else 0)


def test_an_edit_of_the_app_leaves_every_other_layer(
    engine: Engine, matrix: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Images of another checkout must not be used as a base.
    own = ensure_stack_image(engine, matrix.stacks["cpu"], own=True)
    source = tmp_path / "app"
    shutil.copytree(APP, source, ignore=shutil.ignore_patterns("__pycache__", ".mypy_cache"))
    with (source / "vpoc" / "cli.py").open("a") as stream:
        stream.write("# edited\n")
    monkeypatch.setattr(environment, "APP", source)
    monkeypatch.setattr(app_wheel, "APP", source)

    def not_again(*_: object) -> None:
        raise AssertionError("wheels are given to the builder again")

    # Some engines forget how layers were made when the wheels that they were given are dropped.
    monkeypatch.setattr(build, "fill_runtime", not_again)
    edited = ensure_cell_image(engine, matrix.cells["cpu-plain"])
    before = own.layers
    assert {own.id, edited.id} <= own_ids()
    assert edited.layers[:-1] == before[:-1]
    assert edited.layers[-1] != before[-1]
    # The layers are base, torch, other wheels and app.
    assert len(before) == 4
    engine.client.images.remove(edited.id, force=True)
    monkeypatch.undo()
    ensure_cell_image(engine, matrix.cells["cpu-plain"])


def test_the_same_inputs_are_never_built_twice(
    engine: Engine, matrix: Matrix, images: dict[str, Image], monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_again(*_: object) -> None:
        raise AssertionError("built again")

    monkeypatch.setattr(build, "_build", not_again)
    assert ensure_cell_image(engine, matrix.cells["cpu-plain"]).id == images["cpu-plain"].id


def test_a_tag_that_somebody_moved_is_put_right(
    engine: Engine, matrix: Matrix, images: dict[str, Image], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cell = matrix.cells["cpu-plain"]
    # The image may be of another checkout, and then the tag is not this checkout's to move.
    monkeypatch.setattr(own_images, "OWN_IMAGES", tmp_path / "own-images")
    own_images.remember(images["cpu-plain"])
    engine.client.api.tag(images["cpu-no-sdma"].id, *cell_tag(cell).split(":"))
    assert ensure_cell_image(engine, cell).id == images["cpu-plain"].id
    moved = find(engine, cell_tag(cell))
    assert moved is not None
    assert moved.id == images["cpu-plain"].id


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGKILL])
def test_an_interrupted_build_leaves_nothing_that_looks_finished(
    number: signal.Signals, engine: Engine, bases: tuple[str, str], other_base: str, tmp_path: Path
) -> None:
    file = tmp_path / "matrix.yaml"
    file.write_text((CHECKOUT / "matrix.yaml").read_text().replace(bases[1], other_base))
    command = [*MATRIX, "--matrix", str(file), "build", f"{DEBIANS}-plain"]
    before = copies_in_builder(engine)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=CHECKOUT)
    log = BUILDS / f"{DEBIANS}-runtime.log"
    began = time.time()
    while not (log.exists() and log.stat().st_mtime > began and "install.py others" in log.read_text()):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate(timeout=240)
    assert process.returncode == (130 if number == signal.SIGINT else -9), err
    assert find_by_labels(engine, {"org.opencontainers.image.base.name": other_base}) is None
    if number == signal.SIGINT:
        assert "Interrupted" in err
        assert not (BUILDS / DEBIANS).exists()
    # The same command continues and finishes. Nothing from its environment variables gets into the image.
    secrets = dict.fromkeys(("PIP_INDEX_URL", "HTTP_PROXY", "GITHUB_TOKEN"), f"http://user:{CANARY}@127.0.0.1:1/")
    subprocess.run(command, check=True, capture_output=True, cwd=CHECKOUT, env={**os.environ, **secrets})
    built = find_by_labels(engine, {"org.opencontainers.image.base.name": other_base, "vpoc.matrix.kind": "cell"})
    assert built is not None
    assert not (BUILDS / DEBIANS).exists()
    # The builder does not keep its own copy of hundreds of megabytes of wheels.
    kept = {name: copy for name, copy in copies_in_builder(engine).items() if before.get(name) != copy}
    assert sum(copy.size for copy in kept.values()) < 1e6
    if number == signal.SIGKILL:
        told = json.dumps([engine.client.api.inspect_image(built.id), engine.client.api.history(built.id)])
        assert other_base in told
        assert CANARY not in told
        # All that was built on the base is newer than its last file; one file has the second word.
        newer = "find / -xdev -type f -cnewer /etc/other"
        # find fails where one of several greps finds nothing.
        search = f"{newer} -exec grep -alF -e {CANARY} -e 'Name: vpoc' {{}} + || true"
        options = {"entrypoint": "sh", "user": "0", "network_mode": "none", "remove": True}
        (found,) = engine.client.containers.run(built.id, ["-c", search], **options).decode().splitlines()
        assert found.startswith("/opt/venv/")
        assert found.endswith("/METADATA")


def test_only_our_own_copies_in_the_builder_are_dropped(engine: Engine, matrix: Matrix, tmp_path: Path) -> None:
    stack = matrix.stacks["cpu"].model_copy(update={"name": f"test-copies-{os.getpid()}"})

    def uses() -> dict[str, int]:
        return {name: copy.uses for name, copy in copies_in_builder(engine).items()}

    def give(folder: Path) -> set[str]:
        """Build from a folder of two megabytes; return the copies that the builder made of it, or used again."""
        folder.mkdir(parents=True)
        (folder / "large").write_bytes(os.urandom(2_000_000))
        known = uses()
        build._build(engine, stack.name, "FROM scratch\nCOPY large /\n", {}, ("--file", "-", str(folder)))
        return {name for name, count in uses().items() if known.get(name) != count}

    before = uses()
    mark = f"{os.getpid()}"
    theirs = give(tmp_path / f"theirs{mark}")
    give(tmp_path / f"of-one-name{mark}")
    build._note_copies(engine, stack)
    ours = give(tmp_path / f"ours{mark}")
    # A killed build leaves only the copies that were noted before it, so they must still be known.
    build._note_copies(engine, stack)
    # Newer builders reuse the copy of any folder that has the same name.
    again = give(tmp_path / "elsewhere" / f"of-one-name{mark}")
    build._clear(engine, stack)
    assert theirs
    assert ours
    assert again
    assert theirs <= uses().keys()
    assert not (ours | again) & uses().keys()
    drop_copies(engine, before)
    assert not theirs & uses().keys()


def test_a_build_has_no_network(engine: Engine, bases: tuple[str, str]) -> None:
    connect = "import socket; socket.create_connection(('1.1.1.1', 53), timeout=3)"
    text = f'FROM {bases[0]}\nRUN ["python3", "-c", "{connect}"]\n'
    with pytest.raises(UserError, match="could not be built"):
        build._build(engine, "no-network", text, {}, ("-",))
    assert "Network is unreachable" in (BUILDS / "no-network.log").read_text(encoding="utf-8")


def test_a_stack_that_is_not_what_it_declares_is_not_built(
    engine: Engine, matrix: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = matrix.stacks[DEBIANS].model_copy(update={"torch": "2.7.1"})
    # Of what the lock names, only this is needed to compare.
    entries = re.split(r"^(?=\w)", pins.lock_file(stack).read_text(encoding="utf-8"), flags=re.MULTILINE)
    lock = tmp_path / "polars.txt"
    lock.write_text("".join(entry for entry in entries if entry.startswith("polars")), encoding="utf-8")
    monkeypatch.setattr(build, "ensure_lock", lambda *_: lock)
    monkeypatch.setattr(images, "lock_file", lambda *_: lock)
    with pytest.raises(UserError, match="the stack declares") as caught:
        ensure_stack_image(engine, stack)
    assert "2.6.0" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert find_by_labels(engine, {"vpoc.matrix.stack": stack.name, "vpoc.matrix.torch": "2.7.1"}) is None


def test_a_stack_that_lost_its_tag_is_still_built_on(engine: Engine, matrix: Matrix, images: dict[str, Image]) -> None:
    stack = ensure_stack_image(engine, matrix.stacks["cpu"])
    tag = stack_tag(stack.labels)
    # An engine deletes an image with its last tag, and a rebuilt image might not have the same bytes.
    engine.client.api.tag(stack.id, "vpoc-test", "kept")
    engine.client.images.remove(tag, noprune=True)
    preset = matrix.presets["plain"].model_copy(
        update={"name": "odd", "variables": {"ODD": "a \"b\" $HOME \\ <c>&'d'"}}
    )
    odd = ensure_cell_image(engine, Cell(stack=matrix.stacks["cpu"], preset=preset))
    told = engine.client.api.inspect_image(odd.id)["Config"]["Env"]
    assert "ODD=a \"b\" $HOME \\ <c>&'d'" in told
    again = find(engine, tag)
    assert again is not None
    assert again.id == stack.id
    engine.client.images.remove("vpoc-test:kept", noprune=True)
    engine.client.images.remove(odd.id, force=True)


def test_a_base_that_cannot_be_pulled_is_one_line(engine: Engine, matrix: Matrix, registry: str) -> None:
    cell = based_on(matrix.cells["cpu-plain"], f"{registry}/no/such:base")
    with pytest.raises(UserError, match=r"base image .* cannot be pulled: .*, or give --base IMAGE with one") as caught:
        ensure_cell_image(engine, cell)
    assert "\n" not in str(caught.value)


def test_a_wheel_with_another_hash_is_not_built_in(
    engine: Engine, matrix: Matrix, other_base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = based_on(matrix.cells["cpu-plain"], other_base)
    text = pins.lock_file(cell.stack).read_text(encoding="utf-8")
    at = text.index("sha256:", text.index("\ntorch==")) + len("sha256:")
    tampered = tmp_path / "cpu.txt"
    tampered.write_text(text[:at] + "0" * 64 + text[at + 64 :], encoding="utf-8")
    # The patches end before the fixture `other_base` builds the cell again.
    with monkeypatch.context() as patched:
        for module in (build, images):
            patched.setattr(module, "ensure_lock" if module is build else "lock_file", lambda *_: tampered)
        patched.setenv("PIP_RETRIES", "2")
        with pytest.raises(UserError, match=r"torch 2\.13\.0\+cpu") as caught:
            ensure_cell_image(engine, cell)
    assert "\n" not in str(caught.value)
    assert find_by_labels(engine, {"org.opencontainers.image.base.name": other_base}) is None


def test_a_full_disk_in_mid_build_is_one_line(
    matrix: Matrix, engine: Engine, small_engine: Callable[[int], Engine], tmp_path: Path, bases: tuple[str, str]
) -> None:
    small = small_engine(400 << 20)
    tar = tmp_path / "base.tar"
    subprocess.run(
        [engine.builder.program, "save", bases[0], "--output", str(tar)], env=engine.builder.variables, check=True
    )
    with tar.open("rb") as stream:
        small.client.images.load(stream)
    with pytest.raises(UserError, match="no space left where the engine keeps images") as caught:
        ensure_cell_image(small, matrix.cells["cpu-plain"])
    assert "\n" not in str(caught.value)
    assert find_by_labels(small, {"vpoc.matrix.stack": "cpu"}) is None
