"""Tests of how an engine is found, without one; tests/images tests with one."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.base.errors import NoEngineError, NoSpaceError, UserError
from harness.host import engine
from harness.host.disk_use import RESERVE_BYTES
from harness.host.engine import Builder, find_engine

PODMAN = {"BuildahVersion": "1.28.2", "ServerVersion": "4.3.1"}


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the docker command's context point to a socket in an empty folder, and return its path."""
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.chdir(tmp_path)
    # The path is relative, because the path of a socket must be short.
    monkeypatch.setattr(engine, "_context_address", lambda: "unix://docker.sock")
    return tmp_path / "docker.sock"


def test_no_socket_is_no_engine(address: Path) -> None:
    assert find_engine() is None


def test_an_engine_that_does_not_answer_is_not_passed_over(address: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("docker.sock")
        with pytest.raises(UserError, match=r"start it .* or run cells with --executor process"):
            find_engine()


def test_one_that_was_asked_for_has_to_be_there(address: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(UserError, match=r"DOCKER_HOST is unix:///nowhere/docker.sock, .* `unset DOCKER_HOST`") as error:
        find_engine()
    # The engine of this host may well be running.
    assert "systemctl" not in str(error.value)


def test_one_that_may_not_be_used_names_the_fix(address: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(engine, "_try_socket", refuse)
    with pytest.raises(UserError, match="usermod -aG docker"):
        find_engine()


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (PODMAN, "is Podman 4.3.1: images are built with BuildKit"),
        (
            {**PODMAN, "SecurityOptions": ["name=seccomp,profile=default", "name=rootless"]},
            "is Podman 4.3.1, rootless, so that",
        ),
        ({}, r"leave that namespace \(`exit`\)"),
    ],
)
def test_an_engine_that_runs_no_cell_is_named(
    facts: dict[str, object], said: str, address: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address.touch()
    monkeypatch.setattr(engine, "UNKNOWN_USER", os.getuid())
    monkeypatch.setattr("os.getuid", lambda: 0)
    monkeypatch.setattr(engine, "_try_socket", lambda _: None)
    monkeypatch.setattr("harness.host.engine.Client", lambda base_url: SimpleNamespace(info=lambda: facts))
    with pytest.raises(NoEngineError, match=said):
        find_engine()


def test_a_transfer_ends_where_the_disk_of_images_is_nearly_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter([RESERVE_BYTES, RESERVE_BYTES - 1])
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=next(left)))
    here = engine.Engine("unix:///x", None)
    vars(here)["folder"] = tmp_path
    pieces = here.while_disk_has_room([b"1", b"2"], "pulling it")
    assert next(pieces) == b"1"
    with pytest.raises(NoSpaceError, match=r"pulling it: .*: only 1.1 GB are left; free"):
        next(pieces)


def test_images_are_on_the_disk_after_a_transfer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(engine, "sync_file_system", synced.append)
    here = engine.Engine("unix:///x", None)
    for folder in (tmp_path, None):
        vars(here)["folder"] = folder
        assert list(here.while_disk_has_room([b"1"], "pulling it")) == [b"1"]
    assert synced == [tmp_path]


def test_builds_go_to_the_engine_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUILDX_BUILDER", "somewhere-else")
    variables = Builder("docker", "unix:///x", (), ()).variables
    assert (variables["BUILDX_BUILDER"], variables["DOCKER_HOST"]) == ("default", "unix:///x")
    assert os.environ["BUILDX_BUILDER"] == "somewhere-else"


@pytest.fixture
def docker_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that makes a script the `docker` command and otherwise leaves PATH empty."""

    def put(script: str) -> None:
        program = tmp_path / "bin" / "docker"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent))

    return put


def test_what_drives_buildkit_is_found(docker_command: Callable[[str], None]) -> None:
    docker_command('[ "$1" = buildx ] && echo v0.29')
    assert engine.Engine("unix:///x", None).builder.build == ("buildx", "build", "--load")
    docker_command('[ "$1" = version ] && echo 20.10.24')
    assert engine.Engine("unix:///x", None).builder.build == ("build",)
    docker_command('[ "$1" = version ] && echo 28.2.2')
    with pytest.raises(UserError, match="install buildx"):
        _ = engine.Engine("unix:///x", None).builder
