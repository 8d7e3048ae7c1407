"""Tests of a lock file that is removed between opening and locking, so that its lock would keep nobody out."""

import errno
import fcntl
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.base.errors import InUseError, UserError
from harness.campaign.controls.comparisons import hold_campaign_lock
from harness.environments import in_use
from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.training.state import open_state_file


@pytest.fixture
def removed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Remove the next lock file just before it is locked; return a list that gets its path."""
    locks = fcntl.flock
    removed = list[str]()

    def flock(stream: Any, how: int) -> None:
        if not removed:
            descriptor = stream if isinstance(stream, int) else stream.fileno()
            removed.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
            Path(removed[0]).unlink()
        locks(stream, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    return removed


def test_trainings_and_comparisons_are_alone(tmp_path: Path, host: HostFacts, removed: list[str]) -> None:
    results = Results(tmp_path)
    bench: Any = SimpleNamespace(results=results)
    for lock in (hold_campaign_lock(bench, "c1"), open_state_file(results, host, tmp_path, "bars")):
        removed.clear()
        with pytest.raises(InUseError, match="another process"), lock:
            pass
        assert removed


@pytest.mark.usefixtures("removed")
def test_environments_that_are_in_use_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_use, "_held", [])
    in_use.keep_in_place(tmp_path)
    with in_use.try_exclusive_use(tmp_path) as alone_there:
        assert not alone_there
    os.close(in_use._held[0])


def test_a_link_in_the_place_of_the_lock_of_environments_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_use, "_held", [])
    (tmp_path / in_use.LOCK).symlink_to("elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        in_use.keep_in_place(tmp_path)


def test_a_checkout_of_another_user_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: Path, **_: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", file.name)

    monkeypatch.setattr(in_use, "open_regular", refuse)
    monkeypatch.setattr(in_use, "_held", [])
    said = rf"^{tmp_path}/in-use\.lock: cannot be written: Permission denied; .*clone the repository into"
    with pytest.raises(UserError, match=said):
        in_use.keep_in_place(tmp_path)
