"""Tests of the Slurm hooks on a node where they can look at nothing."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.campaign.under_way import LeftOver
from harness.cli.main import cli


@pytest.mark.parametrize("hook", ["slurm-prolog", "slurm-epilog"])
def test_a_hook_that_cannot_look_drains_no_node(hook: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("HOME", raising=False)
    (tmp_path / "runs").write_text("as of a folder that cannot be read")
    (tmp_path / "health").write_text("")
    done = CliRunner().invoke(cli, ["--results", str(tmp_path), hook])
    assert done.exit_code == 0, done.output


def test_the_epilog_says_that_it_could_not_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    (tmp_path / "runs").write_text("as of a folder that cannot be read")
    done = CliRunner().invoke(cli, ["--results", str(tmp_path), "slurm-epilog"])
    assert "slurm-epilog: nothing was checked" in done.output


@pytest.mark.parametrize("hook", ["slurm-prolog", "slurm-epilog"])
def test_a_hook_reads_no_note_of_what_was_under_way(hook: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> list[LeftOver]:
        raise AssertionError(hook)

    monkeypatch.setattr("harness.campaign.under_way.left_under_way", read)
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    (tmp_path / "campaigns").mkdir()
    (tmp_path / "campaigns" / "one.under-way").touch()
    assert CliRunner().invoke(cli, ["--results", str(tmp_path), hook]).exit_code == 0
