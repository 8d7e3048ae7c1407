"""Tests of what `matrix clean` removes and what it never removes; the engine is a stand-in, folders are real."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from harness.base.errors import NoEngineError, UserError
from harness.cli import clean as command
from harness.cli.main import cli
from harness.environments.clean import OF_A_COMMAND, bytes_to_go, made_by_stacks, remove
from harness.environments.docker import build, own_images
from harness.environments.environment import STAMP, ensure_environment
from harness.environments.in_use import keep_in_place
from harness.matrix.cells import Cell, Matrix

LABELS = {"vpoc.matrix.stack": "rocm6.3-torch2.9.1"}
IMAGES: list[dict[str, Any]] = [
    {"Id": "sha256:1", "RepoTags": ["vpoc-stack:rocm6.3-torch2.9.1-0123"], "Size": 20_000, "Labels": LABELS},
    {
        "Id": "sha256:2",
        "RepoTags": ["vpoc:rocm6.3-torch2.9.1-plain"],
        "Size": 30_000,
        "Labels": {**LABELS, "vpoc.matrix.cell": "rocm6.3-torch2.9.1-plain"},
    },
    {
        "Id": "sha256:3",
        "RepoTags": ["vpoc:rocm6.3-torch2.9.1-no-p2p", "vpoc:known-good-gfx1100"],
        "Size": 40_000,
        "Labels": {**LABELS, "vpoc.matrix.cell": "rocm6.3-torch2.9.1-no-p2p"},
    },
    {"Id": "sha256:4", "RepoTags": ["registry.example/mine:1"], "Size": 50_000},
    {"Id": "sha256:5", "RepoTags": None, "Size": 60_000},
    {
        "Id": "sha256:6",
        "RepoTags": ["vpoc-runtime:rocm6.3-torch2.9.1-4567"],
        "RepoDigests": ["vpoc-runtime@sha256:6"],
        "Size": 70_000,
        "Labels": LABELS,
    },
    {"Id": "sha256:7", "RepoTags": None, "RepoDigests": ["registry.example/vpoc@sha256:7"], "Size": 80_000},
    {
        "Id": "sha256:8",
        "RepoTags": ["vpoc:rocm6.3-torch2.9.1-no-sdma"],
        "Labels": {**LABELS, "vpoc.matrix.cell": "rocm6.3-torch2.9.1-no-sdma"},
        "RepoDigests": ["registry.example/vpoc@sha256:8"],
        "Size": 90_000,
    },
]


class Api:
    def __init__(self) -> None:
        self.removed: list[str] = []
        self.tagged: dict[str, list[str]] = {}

    def inspect_image(self, image: str) -> dict[str, Any]:
        tags = {one["Id"]: one["RepoTags"] for one in IMAGES}
        return {"RepoTags": self.tagged.get(image, tags[image])}

    def images(self, filters: dict[str, str]) -> list[dict[str, Any]]:
        assert filters == {"label": "vpoc.matrix.stack"}
        return IMAGES

    def remove_image(self, image: str, *, force: bool) -> None:
        assert not force
        self.removed.append(image)


@pytest.fixture
def engine() -> Any:
    return SimpleNamespace(client=SimpleNamespace(api=Api()))


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file that lists the images made by this checkout: all that the engine holds."""
    file = tmp_path / "own-images.txt"
    monkeypatch.setattr(own_images, "OWN_IMAGES", file)
    file.write_text("".join(f"sha256:{number}\n" for number in range(9)))
    return file


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a folder with the environments of a stack and of the app's tests, and with wheels."""
    for file in (f"envs/rocm/{STAMP}", "envs/rocm/lib/torch.so", "envs/cpu-test/.ready", "wheels/torch.whl"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(b"x" * 10_000)
    return tmp_path


def test_environments_and_images_without_a_tag_of_somebodys_go_and_the_rest_stays(place: Path, engine: Any) -> None:
    found = made_by_stacks(engine, place / "envs", place / "programs")
    assert {one.place.rpartition("/")[2] for one in found if one.kept is None} == {
        "rocm",
        "sha256:1",
        "sha256:2",
        "sha256:5",
        "sha256:6",
    }
    assert [one.kept for one in found if one.kept] == [
        "it is tagged vpoc:known-good-gfx1100",
        "it is tagged registry.example/mine:1",
        "it is registry.example/vpoc@sha256:7 of a registry",
        "it is registry.example/vpoc@sha256:8 of a registry",
    ]
    assert found[0].bytes >= 20_000
    assert dict(remove(found, engine, place / "envs")) == dict.fromkeys(
        (one for one in found if one.kept is None), None
    )
    assert engine.client.api.removed == ["sha256:1", "sha256:2", "sha256:5", "sha256:6"]
    assert not (place / "envs/rocm").exists()
    assert (place / "envs/cpu-test/.ready").exists()
    assert (place / "wheels/torch.whl").exists()


@pytest.mark.parametrize(
    "tag", ["vpoc:mine", "vpoc:rocm6.3-torch2.9.1-plain-before", "vpoc-stack:mine", "vpoc-runtime:rocm6.3"]
)
def test_a_tag_that_a_person_gave_keeps_an_image_also_in_a_repository_of_builds(
    tag: str, place: Path, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = {**IMAGES[1], "RepoTags": ["vpoc:rocm6.3-torch2.9.1-plain", tag]}
    monkeypatch.setattr(f"{__name__}.IMAGES", [image])
    (one,) = made_by_stacks(engine, place / "none", place / "none")
    assert one.kept == f"it is tagged {tag}"


def test_a_tag_that_is_given_while_the_question_waits_keeps_an_image(place: Path, engine: Any) -> None:
    found = made_by_stacks(engine, place / "none", place / "none")
    engine.client.api.tagged["sha256:2"] = ["vpoc:rocm6.3-torch2.9.1-plain", "vpoc:mine"]
    left = {one.place: why for one, why in remove(found, engine, place / "none")}
    assert left["sha256:2"] == "it is tagged vpoc:mine now"
    assert "sha256:2" not in engine.client.api.removed


def test_of_what_other_checkouts_have_made_only_the_number_is_said(
    place: Path, engine: Any, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own.write_text("sha256:2\nsha256:3\n")
    monkeypatch.setattr(command, "find_engine", lambda: engine)
    monkeypatch.setattr(
        command, "made_by_stacks", lambda engine: made_by_stacks(engine, place / "none", place / "none")
    )
    monkeypatch.setattr(command, "remove", lambda chosen, engine: remove(chosen, engine, place / "none"))
    done = CliRunner().invoke(cli, ["clean", "--yes"])
    assert engine.client.api.removed == ["sha256:2"]
    listed, stays, others, _ = done.stdout.splitlines()
    assert listed.endswith("vpoc:rocm6.3-torch2.9.1-plain  (would go)")
    assert stays.endswith("(stays: it is tagged vpoc:known-good-gfx1100)")
    assert others == "6 more images of stacks on this engine were not made by this checkout; they stay"
    assert json.loads(CliRunner().invoke(cli, ["clean", "--json"]).stdout)["images_of_others"] == 6


def test_copies_of_programs_and_their_packages_go_though_nobody_may_write_to_them(place: Path) -> None:
    copy = place / "programs/0123/source"
    copy.mkdir(parents=True)
    (copy / "train.py").write_bytes(b"x" * 10_000)
    (copy / "train.py").chmod(0o444)
    copy.chmod(0o555)
    (place / "programs/packages-45/packages").mkdir(parents=True)
    (place / "programs/.packages-45.lock").touch()
    found = made_by_stacks(None, place / "none", place / "programs")
    assert [(one.kind, one.name) for one in found] == [("program", "0123"), ("program", "packages-45")]
    assert found[0].bytes >= 10_000
    assert dict(remove(found, None, place / "none")) == dict.fromkeys(found)
    assert sorted(file.name for file in (place / "programs").iterdir()) == [".packages-45.lock"]


def test_nothing_behind_a_link_is_removed_or_changed(place: Path) -> None:
    elsewhere = place / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (elsewhere / STAMP).touch()
    (place / "programs").mkdir()
    for link in (place / "envs/link", place / "programs/link"):
        link.symlink_to(elsewhere)
    found = made_by_stacks(None, place / "envs", place / "programs")
    assert [(one.name, one.kept) for one in found] == [
        ("link", "it is a link"),
        ("rocm", None),
        ("link", "it is a link"),
    ]
    assert list(dict(remove(found, None, place / "envs")).values()) == [None]
    assert (elsewhere / STAMP).exists()
    assert elsewhere.stat().st_mode & 0o777 == 0o700


def test_a_name_of_several_lines_is_shown_in_one(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = place / "envs/a\nmatrix: all is removed"
    made.mkdir()
    (made / STAMP).touch()
    monkeypatch.setattr(command, "find_engine", lambda: None)
    monkeypatch.setattr(command, "made_by_stacks", lambda _: made_by_stacks(None, place / "envs", place / "programs"))
    listed = CliRunner().invoke(cli, ["clean"], input="n\n").stdout
    assert "all is removed" in listed
    assert not any(line.startswith("matrix:") for line in listed.splitlines())


def test_environments_go_although_the_engine_does_not_answer(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> None:
        raise NoEngineError("none answers: `sudo systemctl start docker`")

    monkeypatch.setattr(command, "find_engine", refused)
    monkeypatch.setattr(command, "made_by_stacks", lambda _: made_by_stacks(None, place / "envs", place / "programs"))
    monkeypatch.setattr(command, "remove", lambda chosen, engine: remove(chosen, engine, place / "envs"))
    done = CliRunner().invoke(cli, ["clean", "--yes"])
    assert (done.exit_code, (place / "envs/rocm").exists()) == (0, False)
    assert "matrix: images stay: none answers: `sudo systemctl start docker`\n" in done.stderr


def test_a_file_that_may_not_be_looked_at_counts_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may look at every file, so the refusal is a stand-in's."""
    (place / "envs/rocm/hidden").write_bytes(b"x" * 1_000_000)
    before, real = _bytes(place), Path.lstat

    def refused(file: Path) -> os.stat_result:
        if file.name == "hidden":
            raise PermissionError
        return real(file)

    monkeypatch.setattr(Path, "lstat", refused)
    assert before - _bytes(place) >= 1_000_000


def _bytes(place: Path) -> int:
    (made,) = made_by_stacks(None, place / "envs", place / "none")
    return made.bytes


def test_one_that_cannot_be_removed_does_not_keep_the_others(place: Path) -> None:
    (place / f"envs/a/{STAMP}").mkdir(parents=True)
    found = made_by_stacks(None, place / "envs", place / "programs")
    why = {one.name: why for one, why in remove(found, None, place / "envs")}
    assert why == {"a": "Is a directory", "rocm": None}


def test_what_another_name_holds_is_not_counted(place: Path) -> None:
    (one,) = made_by_stacks(None, place / "envs", place / "programs")
    (place / "wheels/torch.so").hardlink_to(place / "envs/rocm/lib/torch.so")
    (less,) = made_by_stacks(None, place / "envs", place / "programs")
    assert less.bytes < one.bytes


def test_an_environment_in_use_stays(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = SimpleNamespace(pid=7, cmdline=lambda: [str(place / "envs/rocm/bin/python"), "-m", "vpoc"])
    monkeypatch.setattr("psutil.process_iter", lambda: [process])
    (one,) = made_by_stacks(None, place / "envs", place / "programs")
    assert one.kept == "process 7 runs in it"
    assert list(remove([one], None, place / "envs")) == []


def test_what_was_made_from_another_goes_before_it(place: Path, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.IMAGES", [{**one, "Created": n} for n, one in enumerate(IMAGES[:2])])
    assert [one.place for one in made_by_stacks(engine, place / "none", place / "programs")] == ["sha256:2", "sha256:1"]


def test_what_images_share_is_counted_once_and_not_where_one_of_them_stays(
    place: Path, engine: Any, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = {"vpoc.matrix.stack": "rocm6.3", "vpoc.matrix.lock": "l", "vpoc.matrix.app": "a"}
    of_another = {**labels, "vpoc.matrix.lock": "m", "vpoc.matrix.cell": "rocm6.3-plain"}
    images: list[dict[str, Any]] = [
        {"Id": "sha256:1", "RepoTags": ["vpoc-runtime:rocm6.3-1"], "Size": 10_000, "Labels": labels},
        {
            "Id": "sha256:2",
            "RepoTags": ["vpoc-stack:rocm6.3-2"],
            "Size": 11_000,
            "Labels": {**labels, "vpoc.matrix.app": "b"},
        },
        {
            "Id": "sha256:3",
            "RepoTags": ["vpoc:rocm6.3-plain"],
            "Size": 12_000,
            "Labels": {**labels, "vpoc.matrix.cell": "rocm6.3-plain"},
        },
        {"Id": "sha256:4", "RepoTags": ["vpoc:rocm6.3-plain"], "Size": 20_000, "Labels": of_another},
        {"Id": "sha256:5", "RepoTags": ["vpoc:known-good-gfx1100"], "Size": 20_000, "Labels": of_another},
    ]
    monkeypatch.setattr(f"{__name__}.IMAGES", images)
    assert bytes_to_go(made_by_stacks(engine, place / "none", place / "programs")) == 12_000
    # An image that another checkout has made of the same runtime keeps that runtime, too.
    own.write_text("sha256:1\nsha256:2\n")
    assert bytes_to_go(made_by_stacks(engine, place / "none", place / "programs")) == 0
    (environment,) = made_by_stacks(None, place / "envs", place / "programs")
    assert bytes_to_go([environment]) == environment.bytes


def test_between_the_runs_of_a_command_nothing_goes(place: Path, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = made_by_stacks(engine, place / "envs", place / "programs")
    held: list[int] = []
    monkeypatch.setattr("harness.environments.in_use._held", held)
    keep_in_place(place / "envs")
    found = made_by_stacks(engine, place / "envs", place / "programs")
    assert {one.kept for one in found if one not in before} == {OF_A_COMMAND}
    assert all(one.kept for one in found)
    # The command began while `matrix clean` waited for the answer to its question.
    assert set(dict(remove(before, engine, place / "envs")).values()) == {OF_A_COMMAND}
    assert engine.client.api.removed == []
    assert (place / "envs/rocm").exists()
    os.close(held[0])
    assert made_by_stacks(engine, place / "envs", place / "programs") == before


@pytest.mark.parametrize(
    "make",
    [
        lambda cell: ensure_environment(cell.stack),
        lambda cell: build.ensure_cell_image(cast("Any", None), cell),
        lambda cell: build.ensure_stack_image(cast("Any", None), cell.stack),
        lambda cell: build.ensure_stack_image(cast("Any", None), cell.stack, own=True),
    ],
)
def test_while_something_is_made_nothing_goes(
    make: Callable[[Cell], object], place: Path, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str | None] = []

    def making(*_: Any) -> Any:
        seen.extend(one.kept for one in made_by_stacks(None, place / "envs", place / "none"))
        raise UserError("it is enough")

    held: list[int] = []
    monkeypatch.setattr("harness.environments.in_use._held", held)
    monkeypatch.setattr("harness.environments.in_use.LOCK", str(place / "lock"))
    monkeypatch.setattr(build, "BUILDS", place / "builds")
    monkeypatch.setattr(build, "current_image", making)
    monkeypatch.setattr(build, "inputs_of", making)
    monkeypatch.setattr("harness.environments.environment.ensure_python", making)
    with pytest.raises(UserError, match="it is enough"):
        make(matrix.cells["cpu-plain"])
    assert seen == [OF_A_COMMAND]
    os.close(held[0])


def test_what_another_removes_meanwhile_is_passed_over(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walk = os.walk

    def walk_late(folder: Path) -> Any:
        for found in walk(folder):
            shutil.rmtree(place / "envs/rocm", ignore_errors=True)
            yield found

    monkeypatch.setattr(os, "walk", walk_late)
    (one,) = made_by_stacks(None, place / "envs", place / "none")
    assert one.bytes == 0


@pytest.mark.parametrize(("words", "goes"), [(["--json"], False), (["--json", "--yes"], True), (["--yes"], True)])
def test_the_command_asks_and_json_alone_removes_nothing(
    words: list[str], place: Path, monkeypatch: pytest.MonkeyPatch, *, goes: bool
) -> None:
    monkeypatch.setattr(command, "find_engine", lambda: None)
    monkeypatch.setattr(
        command, "made_by_stacks", lambda engine: made_by_stacks(engine, place / "envs", place / "programs")
    )
    monkeypatch.setattr(command, "remove", lambda chosen, engine: remove(chosen, engine, place / "envs"))
    refused = CliRunner().invoke(cli, ["clean"], input="n\n")
    assert refused.exit_code == 1
    assert "rocm  (would go)" in refused.stdout
    done = CliRunner().invoke(cli, ["clean", *words])
    assert done.exit_code == 0, done.output
    if "--json" in words:
        assert [one["removed"] for one in json.loads(done.stdout)["made"]] == [goes]
    assert (place / "envs/rocm").exists() != goes
