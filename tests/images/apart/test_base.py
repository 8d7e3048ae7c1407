"""Tests of base images made from Debian's packages."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from harness.base.paths import CHECKOUT
from harness.environments.docker.images import find
from harness.host.engine import Engine
from tests.images.conftest import BASE


def make(folder: Path, name: str) -> str:
    """Make the base under another name, and return the hash of the archive that it is imported from."""
    folder.mkdir()
    tar, docker = folder / "base.tar", folder / "docker"
    # The name of the base stays with the image that the other tests build on meanwhile.
    docker.write_text(f'#!/bin/bash\nexec {shutil.which("docker")} "${{@/{BASE}/{name}}}"\n', encoding="utf-8")
    docker.chmod(0o755)
    made = subprocess.run(
        ["make", "-s", "base"],
        check=True,
        capture_output=True,
        text=True,
        cwd=CHECKOUT,
        env={**os.environ, "TAR": str(tar), "PATH": f"{folder}:{os.environ['PATH']}"},
    )
    assert made.stdout.strip() == BASE
    with tar.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def test_the_same_packages_give_the_same_bytes(engine: Engine, bases: tuple[str, str], tmp_path: Path) -> None:
    before = find(engine, bases[0])
    assert before is not None
    name = f"vpoc-test:base-{os.getpid()}"
    try:
        made = make(tmp_path / "first", name)
        after = find(engine, name)
        assert after is not None
        # The only layer of an imported image is the archive itself.
        assert after.layers == (f"sha256:{made}",)
        if before.layers != after.layers:
            # Debian's packages changed since the base was made, but two bases made now must still be equal.
            assert make(tmp_path / "second", name) == made
    finally:
        engine.client.images.remove(name)


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ((), "mmdebstrap is missing (Debian: apt install mmdebstrap)"),
        (
            ("mmdebstrap", "docker"),
            "file:/none gives no suite bookwrm (File not found - /none/dists/bookwrm/InRelease (2: No such file or ",
        ),
    ],
)
def test_a_base_without_what_it_takes_is_one_line(tmp_path: Path, tools: tuple[str, ...], said: str) -> None:
    for tool in ("sed", "mktemp", "rm", "env"):
        (tmp_path / tool).symlink_to(f"/usr/bin/{tool}")
    for tool in tools:
        (tmp_path / tool).symlink_to("/bin/true")
    bare = subprocess.run(
        ["/bin/sh", CHECKOUT / "images/base.sh", "bookwrm"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": str(tmp_path), "MIRROR": "file:/none"},
    )
    assert bare.returncode == 2
    assert bare.stderr.startswith(f"base.sh: {said}")
    assert bare.stderr.count("\n") == 1
