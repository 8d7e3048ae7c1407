import inspect
import subprocess
from pathlib import Path

import pytest

from harness.base.paths import CHECKOUT
from harness.environments.app_wheel import app_wheel
from harness.environments.compiled_kernel import ensure_kernel
from harness.environments.docker import layers, source_state
from harness.environments.docker.build import build_cell, build_part
from harness.environments.docker.build_context import fill_app, fill_runtime
from harness.environments.docker.dockerfile import cell_part, render, stack_part

WHO = ("-c", "user.name=a", "-c", "user.email=a@b")


def test_a_commit_is_in_the_history_of_what_is_checked_out_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", tmp_path, *WHO, *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init", "--quiet")
    git("commit", "--quiet", "--allow-empty", "-m", "one")
    git("commit", "--quiet", "--allow-empty", "-m", "two")
    # A commit beside the history, such as a fetched merge request.
    beside = git("commit-tree", "-m", "three", "-p", "HEAD", "HEAD^{tree}")
    monkeypatch.setattr(source_state, "CHECKOUT", tmp_path)
    names = [git("rev-parse", "HEAD~1"), git("rev-parse", "HEAD"), beside, "0" * 40, "HEAD", "--help", ""]
    assert [source_state.is_in_history(name) for name in names] == [True, True, False, False, False, False, False]


def test_changes_in_a_checkout_of_another_user_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Git itself reads no checkout of another user, unless it is told to."""

    def git(*words: str) -> None:
        subprocess.run(["git", "-C", tmp_path, *WHO, *words], capture_output=True, check=True)

    git("init")
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "one.py").write_text("one")
    git("add", ".")
    git("commit", "--message=one")
    (tmp_path / "app" / "one.py").write_text("two")
    monkeypatch.setattr(source_state, "CHECKOUT", tmp_path)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    source_state.source_revision.cache_clear()
    try:
        assert source_state.is_dirty(source_state.source_revision())
    finally:
        source_state.source_revision.cache_clear()


def test_whatever_decides_the_bytes_of_an_image_is_of_its_source() -> None:
    makers = (app_wheel, build_cell, build_part, cell_part, ensure_kernel, fill_app, fill_runtime, render, stack_part)
    files = {Path(inspect.getfile(one)).relative_to(CHECKOUT).as_posix() for one in (*makers, layers.split)}
    assert files == {file for file in source_state.SOURCE if file.startswith("harness/")}
