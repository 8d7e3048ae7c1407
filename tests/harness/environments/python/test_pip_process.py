"""pip run several times in one process."""

import os
from pathlib import Path

import pytest

from harness.environments.python import pip_process as tested
from harness.environments.python.pip_process import pip_process


def test_each_run_has_its_own_status_and_words() -> None:
    with pip_process(os.environ) as pip:
        refused, said = pip(["download", "--no-such-option"])
        assert refused == 2
        assert "no such option" in said
        assert pip(["--version"]) == (0, "")


def test_a_process_that_ends_is_a_run_that_failed_and_the_next_has_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with pip_process(os.environ) as pip:
        with monkeypatch.context() as patched:
            patched.setattr(tested, "__name__", "harness.no_such_module")
            assert pip(["--version"]) == (1, "pip ended before it answered, with status 1")
        assert pip(["--version"]) == (0, "")


def test_nothing_of_the_folder_that_the_user_is_in_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(3)", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pip_process(os.environ) as pip:
        assert pip(["--version"]) == (0, "")
