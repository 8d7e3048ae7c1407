"""Tests of commands on images, with right and wrong arguments."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from harness.base.paths import CHECKOUT
from harness.environments.docker.images import Image
from harness.matrix.load import load_matrix
from tests.harness.run_matrix import CompletedCommand, run_matrix


def matrix_command(*words: str) -> CompletedCommand:
    done = run_matrix(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_what_is_built_is_not_in_the_plan(images: dict[str, Image]) -> None:
    plan = json.loads(matrix_command("build", *images, "--dry-run", "--json").stdout)
    assert plan["there"] == list(images)
    assert plan["build"] == []
    assert plan["disk_gb"] == plan["download_gb"] == 0
    told = json.loads(matrix_command("build", *images, "--json").stdout)["images"]
    assert {one["cell"]: one["image"] for one in told} == {cell: image.id for cell, image in images.items()}


def test_a_large_download_is_asked_about_first(images: dict[str, Image]) -> None:
    cells = load_matrix(CHECKOUT / "matrix.yaml").select("default")
    stacks = len({cell.stack.name for cell in cells if cell.stack.accelerator == "rocm"})
    command = [str(CHECKOUT / ".venv" / "bin" / "matrix"), "build", "--selection", "default"]
    told = subprocess.run(command, input="n\n", capture_output=True, text=True, check=False, cwd=CHECKOUT)
    assert told.returncode == 1, told.stdout + told.stderr
    assert re.search(r"Download about [3-9]\d GB\?", told.stderr), told.stderr
    assert stacks > 5
    # Unpacked, the images are much larger than that.
    assert re.search(r"disk: [12]\d\d\.\d GB at most on", told.stderr), told.stderr


def test_the_plan_of_a_run_names_the_disk_of_the_images(images: dict[str, Image]) -> None:
    plan = json.loads(matrix_command("plan", "cpu-plain", "--json").stdout)
    root = subprocess.run(
        ["docker", "info", "--format", "{{.DockerRootDir}}"], capture_output=True, text=True, check=True
    )
    # containerd's image store is in its own folder, or in that of the engine that started containerd.
    own = Path(root.stdout.strip())
    assert Path(plan["place"]) in (own, own / "containerd", Path("/var/lib/containerd"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("build", "--rocm", "6.33"), "ROCm 6.33: no stack of it; there are "),
        (("build", "cpu-plian"), "did you mean cpu-plain?"),
        (("build", "host-plain"), "there is no image to build"),
        (("lock", "cpuu"), "unknown stack 'cpuu'"),
        (("push", "cpu-plian", "--registry", "127.0.0.1:1"), "did you mean cpu-plain?"),
        (("--wheels", "/none", "build", "cpu-plain"), "--wheels /none: no such folder"),
        (("run-cell", "host-plain", "--print-command"), "only runs as a process"),
        (("build", "cpu"), "did you mean cpu-plain, "),
        (("build", "cpu-plain", "--rocm", "6.3"), "either cells or --rocm"),
        (("build", "rocm6-tensorflow-plain", "--dry-run"), "there is no image to build"),
        (("render", "host-plain"), "has no image"),
        (("pull", "host-plain", "--registry", "127.0.0.1:1"), "has no image"),
        (("lock", "rocm6-tensorflow"), "need a system ROCm"),
    ],
)
def test_a_mistake_is_one_line(words: tuple[str, ...], told: str, images: dict[str, Image]) -> None:
    done = run_matrix(*words)
    assert done.returncode == 2, done
    last = done.stderr.splitlines()[-1]
    assert last.startswith("matrix: ")
    assert told in last


def test_without_an_engine_the_plan_and_the_dockerfiles_are_printed_all_the_same() -> None:
    nobody = {**os.environ, "DOCKER_HOST": "", "HOME": "/nonexistent", "DOCKER_CONTEXT": ""}
    command = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        "mount -t tmpfs none /var/run && exec .venv/bin/matrix build --rocm 6.3 --dry-run",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=CHECKOUT, env=nobody)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("FROM ${STACK} AS cell") == 15
