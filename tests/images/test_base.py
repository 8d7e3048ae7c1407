"""Tests of base images made from Debian's packages."""

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from harness.base.paths import CHECKOUT
from harness.environments.docker.images import find
from harness.host.engine import Engine


def make(tar: Path) -> str:
    """Make the base and return the hash of the archive that it is imported from."""
    made = subprocess.run(
        ["make", "-s", "base"],
        check=True,
        capture_output=True,
        text=True,
        cwd=CHECKOUT,
        env={**os.environ, "TAR": str(tar)},
    )
    assert made.stdout.strip() == "vpoc-base:bookworm"
    with tar.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def test_the_same_packages_give_the_same_bytes(engine: Engine, bases: tuple[str, str], tmp_path: Path) -> None:
    before = find(engine, bases[0])
    assert before is not None
    try:
        made = make(tmp_path / "first.tar")
        after = find(engine, bases[0])
        assert after is not None
        # The only layer of an imported image is the archive itself.
        assert after.layers == (f"sha256:{made}",)
        if before.layers != after.layers:
            # Debian's packages changed since the base was made, but two bases made now must still be equal.
            assert make(tmp_path / "second.tar") == made
    finally:
        # Restore the tag, because the other tests' images were built on that base.
        engine.client.api.tag(before.id, *bases[0].split(":"))


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
