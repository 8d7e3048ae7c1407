import errno
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import APIError, ImageNotFound

from harness.base.errors import UserError
from harness.doctor import ask as asking
from harness.doctor.ask import ask, ask_docker, docker_of, measure_write_speed, others_may_change, unwritable
from harness.doctor.checks import examine
from harness.doctor.machine import BaseImage, Docker, Machine
from harness.host.engine import Engine
from harness.matrix.cells import Matrix
from tests.harness.doctor import trees

Read = Callable[[Path], Machine]

# The output of `docker info`, cut to the fields that are read.
INFO = {
    "ServerVersion": "28.5.1",
    "Driver": "overlay2",
    "CgroupVersion": "2",
    "OperatingSystem": "Ubuntu 24.04.2 LTS",
    "SecurityOptions": ["name=apparmor", "name=seccomp,profile=builtin", "name=cgroupns"],
    "DockerRootDir": "/var/lib/docker",
}


@pytest.fixture(autouse=True)
def _executor_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MATRIX_EXECUTOR")


def engine(**changes: Any) -> Engine:
    return Engine("unix:///var/run/docker.sock", SimpleNamespace(info=lambda: {**INFO, **changes}))


@pytest.fixture
def buildx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))


@pytest.mark.usefixtures("buildx")
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {}),
        ({"SecurityOptions": ["name=seccomp,profile=builtin", "name=rootless"]}, {"maps_users": "rootless"}),
        ({"SecurityOptions": ["name=userns", "name=cgroupns"]}, {"maps_users": "userns-remap"}),
        ({"SecurityOptions": None}, {}),
        ({"OperatingSystem": "Docker Desktop"}, {"desktop": True}),
        ({"Driver": "vfs", "CgroupVersion": "1"}, {"storage": "vfs", "cgroups": "1"}),
    ],
)
def test_what_an_engine_says(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    usual = Docker(version="28.5.1", storage="overlay2", cgroups="2")
    assert docker_of(engine(**changes)) == replace(usual, **expected)


def test_an_engine_that_nothing_drives_buildkit_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "install buildx" in (docker_of(engine()).no_builder or "")


@pytest.mark.usefixtures("buildx")
def test_cells_are_not_planned_for_an_engine_that_maps_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "reach_engine", lambda: engine(SecurityOptions=["name=rootless"]))
    docker, usable = ask_docker()
    assert (docker.maps_users, usable) == ("rootless", None)
    monkeypatch.setattr(asking, "reach_engine", engine)
    assert ask_docker()[1] is not None


def test_an_engine_that_refuses_and_none_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise UserError("this user may not use it: `sudo usermod -aG docker $USER`")

    monkeypatch.setattr(asking, "reach_engine", refuse)
    docker, usable = ask_docker()
    assert (docker.refusal, docker.answers, usable) == (
        "this user may not use it: `sudo usermod -aG docker $USER`",
        False,
        None,
    )
    monkeypatch.setattr(asking, "reach_engine", lambda: None)
    assert ask_docker() == (Docker(), None)


@pytest.mark.usefixtures("buildx")
def test_an_engine_is_asked_only_where_one_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "reach_engine", engine)
    monkeypatch.setenv("MATRIX_EXECUTOR", "docker")
    assert ask_docker()[0].executor == "docker"
    monkeypatch.setenv("MATRIX_EXECUTOR", "process")
    assert ask_docker() == (Docker("process"), None)


@pytest.mark.parametrize(("mode", "others"), [(0o755, False), (0o757, True), (0o775, True)])
def test_folders_that_others_may_change(
    mode: int, others: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(mode)
    monkeypatch.setattr(Path, "owner", lambda _: "me")
    monkeypatch.setattr(Path, "group", lambda _: "me")
    assert others_may_change(tmp_path) == (mode == 0o757)
    monkeypatch.setattr(Path, "group", lambda _: "users")
    assert others_may_change(tmp_path) == others


def test_folders_that_this_user_may_not_write_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own := tmp_path / "own").mkdir()
    (other := tmp_path / "other").mkdir()
    monkeypatch.setattr(os, "access", lambda place, _: place != other)
    assert unwritable([own, other, other / "missing/envs", own / "missing"]) == (str(other),)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert unwritable([tmp_path, own, other]) == (str(tmp_path),)


def test_a_folder_that_this_user_may_not_look_into_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: object, *_: object, **__: object) -> os.stat_result:
        if "closed/" in str(path):
            raise PermissionError(errno.EACCES, "Permission denied")
        return stat(path)  # type: ignore[arg-type]

    (closed := tmp_path / "closed").mkdir()
    stat = os.stat
    monkeypatch.setattr(os, "stat", refused)
    monkeypatch.setattr(os, "access", lambda place, _: place != closed)
    assert unwritable([closed, closed / "envs"]) == (str(closed),)


def registry(answer: Callable[[str], object]) -> Engine:
    """Return an engine that only holds the image `here:1`, with a registry that answers as `answer` does."""

    def inspect_image(name: str) -> dict[str, Any]:
        if name != "here:1":
            raise ImageNotFound("no such image")
        return {"Id": "sha256:1", "Config": {"Labels": {}}, "RootFS": {"Layers": []}, "Size": 1}

    return Engine(
        "unix://", SimpleNamespace(api=SimpleNamespace(inspect_image=inspect_image, inspect_distribution=answer))
    )


def refused(_: str) -> None:
    raise APIError("no", explanation="lookup registry: no such host")


def test_bases_that_are_here_that_can_be_pulled_and_that_cannot(
    matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = matrix.stacks["cpu"]
    here, there = cpu.model_copy(update={"base": "here:1"}), cpu.model_copy(update={"base": "there:1"})
    assert asking.ask_bases(registry(refused), [here, here]) == (BaseImage("here:1", here=True),)
    assert asking.ask_bases(registry(lambda _: {}), [there]) == (BaseImage("there:1", here=False),)
    [base] = asking.ask_bases(registry(refused), [there])
    assert "no such host" in (base.unreachable or "")
    monkeypatch.setattr(asking, "REGISTRY_SECONDS", 0.05)
    [late] = asking.ask_bases(registry(lambda _: time.sleep(1)), [there])
    assert "no answer within" in (late.unreachable or "")
    only_processes = matrix.stacks["host"].model_copy(update={"base": "there:1"})
    assert asking.ask_bases(registry(refused), [only_processes]) == ()


@pytest.mark.slow
def test_the_plan_and_the_disk_of_this_host(
    read: Read, tmp_path: Path, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "reach_engine", lambda: None)
    trees.dual_7900xt(tmp_path)
    room = ask(read(tmp_path), matrix).room
    assert room is not None
    assert room.sentence.startswith("On a simulated host, found 2 AMD GPUs, no Docker engine is used")
    assert room.free_gb is not None
    assert room.free_gb > 0
    # Without a Python of the version that stacks need, no cell is planned, and the reason names that version.
    assert (room.cells > 0) == (room.needed_gb > 0)
    assert room.cells or "3.11" in "".join(room.left_out)
    found = {finding.check for finding in examine(ask(read(tmp_path), matrix))}
    assert {"what-runs", "disk-space"} <= found


def test_the_speed_of_a_disk_and_nothing_left_behind(tmp_path: Path) -> None:
    assert (measure_write_speed(tmp_path) or 0) > 0
    assert list(tmp_path.iterdir()) == []
    assert measure_write_speed(tmp_path / "missing") is None


def test_a_hook_of_slurm_counts_where_it_runs_this_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Read
) -> None:
    hook = tmp_path / "epilog"
    hook.write_text("#!/bin/sh\nexec /shared/matrix/.venv/bin/matrix --results /shared/results slurm-epilog\n")
    hook.chmod(0o755)
    told = f"Configuration data\nEpilog[0]               = {hook}\nEpilogMsgTime = 2000 usec\nProlog = (null)\n"
    for name in ("sbatch", "squeue", "scancel", "sinfo"):
        (tmp_path / name).symlink_to("/bin/true")
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\ncat <<'END'\n{told}END\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    hooks = asking.ask_slurm()
    assert [(one.name, one.ours) for one in hooks] == [("Prolog", None), ("Epilog", str(hook))]
    # Slurm runs all programs that a pattern finds.
    (tmp_path / "epilog.d").mkdir()
    (tmp_path / "epilog.d/10-theirs").write_text("#!/bin/sh\n")
    hook.rename(tmp_path / "epilog.d/20-ours")
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\necho 'Epilog[0] = {tmp_path}/epilog.d/*'\n")
    hooks = asking.ask_slurm()
    assert [(one.name, one.ours) for one in hooks] == [("Prolog", None), ("Epilog", f"{tmp_path}/epilog.d/20-ours")]
    machine = replace(read(trees.none(tmp_path / "root").root), slurm_hooks=hooks)
    found = [one for one in examine(machine) if one.check == "slurm-hooks"]
    assert [(one.level, one.fix) for one in found] == [("warning", ".venv/bin/matrix slurm-prolog"), ("ok", None)]
