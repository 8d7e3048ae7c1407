"""Tests of the commands for a program of the user's own."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from harness.base.errors import UserError
from harness.base.paths import CHECKOUT
from harness.cli import own_program
from harness.cli.shared import Settings


@pytest.mark.parametrize(
    ("labels", "built_here", "refused"),
    [
        ({"devcontainer.metadata": '[{"privileged": true}]'}, False, True),
        ({"devcontainer.metadata": '[{"privileged": true}]'}, True, False),
        ({"vpoc.cell": "cpu-plain"}, False, False),
        (None, False, False),
    ],
)
def test_an_image_of_others_grants_itself_nothing_in_an_editor(
    labels: dict[str, str] | None,
    built_here: bool,
    refused: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    image = None if labels is None else SimpleNamespace(id="sha256:1", labels=labels)
    monkeypatch.setattr(own_program, "find_engine", lambda: "an engine")
    monkeypatch.setattr(own_program, "find", lambda _, name: image if name == "vpoc:cpu-plain" else None)
    monkeypatch.setattr(own_program, "is_own", lambda _: built_here)
    settings = Settings(CHECKOUT / "matrix.yaml", tmp_path, None)
    file = tmp_path / "devcontainer.json"
    done = CliRunner().invoke(own_program.devcontainer, ["cpu-plain", "--output", str(file)], obj=settings)
    assert file.exists() == (not refused)
    if refused:
        assert isinstance(done.exception, UserError)
        assert "label devcontainer.metadata, which can grant it all permissions" in str(done.exception)
    else:
        assert json.loads(file.read_text())["image"] == "vpoc:cpu-plain"
