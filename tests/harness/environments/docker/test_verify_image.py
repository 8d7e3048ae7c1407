"""Tests of what an image is built again from, and why it cannot be, on an engine with one base. Nothing is built."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import ImageNotFound

from harness.base.errors import UserError
from harness.environments.docker import verify_image
from harness.environments.docker.images import PREFIX, REVISION, Image, cell_labels, informative_labels, inputs_of
from harness.environments.docker.source_state import source_revision
from harness.environments.docker.verify_image import (
    CHECKED_OUT,
    NO_CLONES,
    Comparison,
    compare_with_rebuilt,
    verify_by_rebuilding,
)
from harness.host.engine import Engine
from harness.matrix.cells import Matrix

CELL = "cpu-plain"
OTHER = "0" * 64


def inspect(name: str) -> dict[str, Any]:
    if name.startswith("vpoc-base"):
        raise ImageNotFound(name)
    return {"Id": "sha256:1", "Config": {}, "RootFS": {"Layers": [name]}, "Size": 1}


@pytest.fixture
def engine() -> Engine:
    return Engine("nowhere", SimpleNamespace(api=SimpleNamespace(inspect_image=inspect)))


def image_of(engine: Engine, matrix: Matrix, **changes: str) -> Image:
    """Return an image whose labels say that it was made from this checkout, except for `changes`."""
    cell = matrix.cells[CELL]
    stack = {**informative_labels(cell.stack), **inputs_of(engine, cell.stack).labels}
    labels = {REVISION: source_revision() or OTHER[:40], **cell_labels(cell, stack)}
    return Image("sha256:2", {**labels, **{f"{PREFIX}.{part}": value for part, value in changes.items()}}, (), 1)


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that collects what is to be done; nothing of it is really done."""
    done: list[str] = []

    def compare(*_: object) -> Comparison:
        done.append("compared")
        return Comparison("sha256:2", "sha256:3", None, 1, 1, ())

    def check_out(_image: Image, revision: str, _notify: object) -> dict[str, Any]:
        done.append(f"checked out {revision}")
        return {}

    monkeypatch.setattr(verify_image, "compare_with_rebuilt", compare)
    monkeypatch.setattr(verify_image, "_by_checkout", check_out)
    return done


def test_one_of_the_same_inputs_is_compared_here_and_any_other_in_its_revision(
    engine: Engine, matrix: Matrix, called: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_image, "source_revision", lambda: image_of(engine, matrix).revision)
    monkeypatch.setattr(verify_image, "is_in_history", lambda _: True)
    verify_by_rebuilding(engine, image_of(engine, matrix), matrix, print)
    revision = str(image_of(engine, matrix).revision).removesuffix("-dirty")
    for change in ({"lock": OTHER}, {"base": OTHER}, {"cell-recipe": OTHER}, {"cell": "cpu-gone"}):
        image = image_of(engine, matrix, **change)
        verify_by_rebuilding(engine, Image(image.id, {**image.labels, REVISION: revision}, (), 1), matrix, print)
    assert called == ["compared", *[f"checked out {revision}"] * 4]


def test_what_has_a_program_run_beside_the_files_is_compared_too(
    matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    health, label = {"Test": ["CMD", "/bin/sh"]}, {"devcontainer.metadata": '{"privileged": true}'}
    told = {"sha256:1": {"Config": {"Healthcheck": health, "OnBuild": ["RUN true"], "StopSignal": "9"}}}
    api = SimpleNamespace(inspect_image=lambda name: told.get(name, {"Config": {}}))
    again = Image("sha256:2", {"org.opencontainers.image.created": "then"}, (), 1)

    @contextmanager
    def rebuilt(*_: object) -> Iterator[Image]:
        yield again

    monkeypatch.setattr(verify_image, "rebuilt", rebuilt)
    engine = Engine("nowhere", SimpleNamespace(api=api, info=dict))
    found = compare_with_rebuilt(engine, Image("sha256:1", label, (), 1), matrix.cells[CELL], print)
    assert [one.partition(":")[0] for one in found.differences] == [
        *("Healthcheck", "OnBuild", "StopSignal"),
        "label devcontainer.metadata",
    ]


def test_no_code_runs_here_of_a_commit_that_this_checkout_does_not_contain(
    engine: Engine, matrix: Matrix, called: list[str]
) -> None:
    image = image_of(engine, matrix, lock=OTHER)
    with pytest.raises(UserError, match=f"made from {OTHER[:40]}, and what is checked out here does not contain"):
        verify_by_rebuilding(engine, Image(image.id, {**image.labels, REVISION: OTHER[:40]}, (), 1), matrix, print)
    assert called == []


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ("lock", r"lock is \w{12}, not 0{12}$"),
        ("app", r"app is \w{12}, not 0{12}$"),
        ("cell-recipe", r"preset is \w{12}, not 0{12}$"),
        ("cell", r"matrix\.yaml has no cell 0+$"),
    ],
)
def test_what_was_checked_out_checks_out_nothing_and_says_which_input_differs(
    part: str, told: str, engine: Engine, matrix: Matrix, called: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHECKED_OUT, "a")
    with pytest.raises(UserError, match=told):
        verify_by_rebuilding(engine, image_of(engine, matrix, **{part: OTHER}), matrix, print)
    verify_by_rebuilding(engine, image_of(engine, matrix), matrix, print)
    assert called == ["compared"]


def test_a_base_that_is_not_here_is_named(
    engine: Engine, matrix: Matrix, called: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHECKED_OUT, "a")
    image = image_of(engine, matrix)
    cell = matrix.cells[CELL]
    based = type(cell)(cell.stack.model_copy(update={"base": "vpoc-base:bookworm"}), cell.preset)
    other = SimpleNamespace(cells={CELL: based})
    with pytest.raises(UserError, match=r"base image vpoc-base:bookworm is none, not \w{12}"):
        verify_by_rebuilding(engine, image, other, print)  # type: ignore[arg-type]


def test_the_matrix_of_a_revision_that_knows_nothing_of_this_cannot_clone_either(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", tmp_path / "one"], check=True)
    clone = ["git", "clone", "--quiet", "--shared", str(tmp_path / "one"), str(tmp_path / "two")]
    refused = subprocess.run(clone, env=NO_CLONES, capture_output=True, text=True, check=False)
    assert "not allowed" in refused.stderr
