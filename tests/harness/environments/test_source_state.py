import subprocess
from pathlib import Path

import pytest

from harness.environments import source_state

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
    # As of a request to merge it that was fetched.
    beside = git("commit-tree", "-m", "three", "-p", "HEAD", "HEAD^{tree}")
    monkeypatch.setattr(source_state, "CHECKOUT", tmp_path)
    names = [git("rev-parse", "HEAD~1"), git("rev-parse", "HEAD"), beside, "0" * 40, "HEAD", "--help", ""]
    assert [source_state.is_in_history(name) for name in names] == [True, True, False, False, False, False, False]
