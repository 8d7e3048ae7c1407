"""Tests of built images from inside the container: what all stacks share, and what each stack declares."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
import testinfra
from testinfra.host import Host

from harness.base.contract import CONTRACT
from harness.environments.docker.images import Image
from harness.environments.python.pins import lock_file
from harness.environments.python.wheelhouse import locked_versions
from harness.host.engine import Engine
from harness.matrix.cells import Matrix
from harness.matrix.stacks import Stack
from harness.report.upstream.reproducers import reproducer

PYTHON = "/opt/venv/bin/python"
FACTS = """
import getpass, importlib.util, json, os, sys, torch, importlib.metadata as m, vpoc
print(json.dumps({
    "torch": torch.__version__, "hip": torch.version.hip, "python": "%d.%d" % sys.version_info[:2],
    "torch file": torch.__file__,
    # Of two, the first is the one that is imported.
    "packages": {d.name.lower().replace("_", "-"): d.version for d in reversed(list(m.distributions()))},
    "pip": importlib.util.find_spec("pip") is not None, "user": getpass.getuser(),
    "bytecode": {n: open(importlib.util.cache_from_source(sys.modules[n].__file__), "rb").read(8)[4]
                 for n in ("torch", "torch.optim.adam", "polars", "vpoc") if n in sys.modules or __import__(n)},
}))
"""


@pytest.fixture(scope="module", params=["cpu", "cpu-debian13-torch2.6.0"])
def stack(request: pytest.FixtureRequest, matrix: Matrix) -> Stack:
    return matrix.stacks[request.param]


@pytest.fixture(scope="module")
def image(stack: Stack, images: dict[str, Image]) -> Image:
    return images[f"{stack.name}-plain"]


@pytest.fixture(scope="module")
def host(engine: Engine, image: Image) -> Iterator[Host]:
    options = {"entrypoint": "sleep", "command": "600", "init": True, "network_mode": "none", "detach": True}
    container = engine.client.containers.run(image.id, **options)
    yield testinfra.get_host(f"docker://{container.id}")
    container.remove(force=True)


@pytest.fixture(scope="module")
def facts(host: Host) -> dict[str, Any]:
    return dict(json.loads(host.check_output("%s -W ignore -c %s", PYTHON, FACTS)))


def test_torch_and_python_are_as_declared(stack: Stack, facts: dict[str, Any]) -> None:
    assert str(facts["torch"]).split("+")[0] == stack.torch
    assert facts["hip"] is None
    assert facts["python"] == stack.python
    assert str(facts["torch file"]).startswith("/usr/lib" if stack.torch_from_base else "/opt/venv")


def test_what_the_lock_names_is_installed_and_nothing_else(stack: Stack, facts: dict[str, Any], host: Host) -> None:
    locked = locked_versions(lock_file(stack))
    installed = facts["packages"]
    assert {name: installed.get(name) for name in locked} == locked
    here = host.check_output("ls -d /opt/venv/lib/python3*/site-packages/*.dist-info").splitlines()
    assert len(here) == len(locked) + 1


def test_it_is_run_by_nobody_and_nothing_in_it_can_be_changed(host: Host, image: Image) -> None:
    user = host.user()
    assert (user.uid, user.gid) == (65534, 65534)
    assert host.check_output("find /opt /usr /etc -writable -not -type l -print -quit 2>/dev/null || true") == ""
    assert (
        host.check_output("find / -xdev -perm -4000 -newer /opt/venv/pyvenv.cfg -print -quit 2>/dev/null || true") == ""
    )
    assert host.check_output("vpoc --version").startswith("vpoc")


def test_no_compiler_and_nothing_left_of_the_build(host: Host) -> None:
    for program in ("gcc", "cc", "g++", "clang", "make", "ld", "pip", "git", "curl", "wget"):
        assert not host.exists(program), program
    for place in (
        "/mnt/*",
        "/srv/*",
        "/root/.cache",
        "/root/.config",
        "/root/.netrc",
        "/etc/pip.conf",
        "/run/secrets",
        "/tmp/*",
    ):
        assert host.run(f"ls -d {place}").rc != 0, place


def test_bytecode_is_there_and_is_not_checked_against_times(facts: dict[str, Any], stack: Stack) -> None:
    bytecode = facts["bytecode"]
    # Bit 0: based on a hash; bit 1: the source is checked. Debian compiles its own packages with other flags.
    mine = {name: flags for name, flags in bytecode.items() if name in ("polars", "vpoc") or not stack.torch_from_base}
    assert set(mine.values()) == {0b01}


@pytest.mark.parametrize("class_", ["blas-init", "no-device"])
def test_the_script_of_a_bug_report_runs_in_a_clean_container(host: Host, class_: str) -> None:
    script = base64.b64encode((reproducer(class_) or "").encode()).decode()
    # -I: only installed packages are imported, nothing from the folder.
    done = host.run("echo %s | base64 -d | %s -I -", script, PYTHON)
    assert done.rc == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("right on ")


def test_the_labels_say_what_it_is(image: Image, stack: Stack) -> None:
    labels = image.labels
    assert labels["vpoc.matrix.cell"] == labels["org.opencontainers.image.title"] == f"{stack.name}-plain"
    assert labels["vpoc.matrix.torch"] == stack.torch
    assert labels["org.opencontainers.image.base.name"] == stack.base
    assert labels["vpoc.matrix.contract"] == str(CONTRACT)
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    for part in ("base", "lock", "app", "recipe", "inputs", "cell-recipe"):
        assert len(labels[f"vpoc.matrix.{part}"]) == 64, part


def test_the_preset_is_baked_in(engine: Engine, images: dict[str, Image], matrix: Matrix) -> None:
    for cell, image in images.items():
        told = engine.client.api.inspect_image(image.id)["Config"]
        variables = dict(word.split("=", 1) for word in told["Env"])
        for name, value in matrix.cells[cell].preset.variables.items():
            assert variables[name] == value
        assert variables["VPOC_DEVICE"] == "cpu"
        assert told["Entrypoint"] == ["vpoc"]


def test_it_works_by_hand(engine: Engine, image: Image) -> None:
    said = engine.client.containers.run(image.id, ["--help"], remove=True, network_mode="none", read_only=True)
    assert b"train" in said
