"""Tests that run the commands in docs/images.md as they stand.

Commands about tags need runs first, so they are in test_promote; those that verify and sign are in test_verify and
test_attestations.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest

from harness.base.paths import CHECKOUT
from harness.environments.docker.images import Image

DOCUMENT = CHECKOUT / "docs" / "images.md"
LINKED = (".venv", ".cache", "matrix.yaml", "Makefile", "requirements.txt", "pyproject.toml", "images", "harness")


@pytest.mark.long
def test_every_example_runs(tmp_path: Path, registry: str, images: dict[str, Image]) -> None:
    for name in LINKED:
        (tmp_path / name).symlink_to(CHECKOUT / name)
    (tmp_path / "wheels").mkdir()
    page = re.sub(
        r"^## (Known-good tags|Verify and sign)\n.*?(?=^## )",
        "",
        DOCUMENT.read_text(encoding="utf-8"),
        flags=re.MULTILINE | re.DOTALL,
    )
    blocks = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    lines = [
        line.split("  #")[0].strip().replace("ghcr.io/me", registry) for block in blocks for line in block.splitlines()
    ]
    assert len(lines) > 9
    assert "promote" not in " ".join(lines)
    for line in filter(None, lines):
        # test_base.py makes a base.
        command = line.replace("make base", "make -n base")
        done = subprocess.run(
            ["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ}
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        if "DRY_RUN" in line:
            assert (done.stdout.count("AS stack"), done.stdout.count("AS cell")) == (3, 15)
