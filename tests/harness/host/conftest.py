from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.gpu_tree import Tree


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "root")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Puts a shell script on PATH, where besides it there are only the usual tools; it writes its arguments down."""
    places = tmp_path / "bin"
    places.mkdir()
    for tool in ("sh", "cat", "sleep"):
        (places / tool).symlink_to(f"/bin/{tool}")
    monkeypatch.setenv("PATH", str(places))

    def make(name: str, script: str) -> Path:
        """The file that holds a line of arguments for each call."""
        said = tmp_path / f"{name}.calls"
        file = places / name
        file.write_text(f'#!/bin/sh\necho "$@" >> {said}\n{script}\n', encoding="utf-8")
        file.chmod(0o755)
        return said

    return make
