import errno
import os
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.base import time_limits
from harness.base.errors import NoAnswerError, NoSpaceError, UserError
from harness.registry import retries
from harness.registry.kept_layers import ABANDONED_SECONDS, PARTIAL, KeptLayers
from harness.registry.oci import digest_of
from tests.harness.fake_registry import FakeRegistry

CONTENT = bytes(range(256)) * 1000
DIGEST = digest_of(CONTENT)
NAME = DIGEST.removeprefix("sha256:")


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    """Serve a registry that sends every blob from its beginning."""
    fake = FakeRegistry(blobs={DIGEST: CONTENT})
    with fake.serving():
        yield fake


def kept(registry: FakeRegistry, folder: Path, came: list[int]) -> KeptLayers:
    return KeptLayers(f"{registry.host}/vpoc", lambda _: None, came.append, folder)


def test_a_registry_that_sends_all_of_it_gives_the_same(registry: FakeRegistry, tmp_path: Path) -> None:
    (tmp_path / f"{NAME}{PARTIAL}").write_bytes(b"what came before")
    came: list[int] = []
    layers = kept(registry, tmp_path, came)
    assert layers.fetch(DIGEST, len(CONTENT)).read_bytes() == CONTENT
    assert sum(came) == len(CONTENT)
    assert layers.fetch(DIGEST, len(CONTENT)) == tmp_path / NAME
    assert len(registry.asked) == 1


@pytest.mark.parametrize("instead", [b"x" * len(CONTENT), CONTENT * 100])
def test_something_else_is_refused_and_not_kept(instead: bytes, registry: FakeRegistry, tmp_path: Path) -> None:
    registry.instead = instead
    with pytest.raises(UserError, match="do not trust this registry"):
        kept(registry, tmp_path, []).fetch(DIGEST, len(CONTENT))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damaged", [b"rotten", bytes(len(CONTENT))])
def test_what_the_disk_has_damaged_is_fetched_again(damaged: bytes, registry: FakeRegistry, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(damaged)
    assert kept(registry, tmp_path, []).fetch(DIGEST, len(CONTENT)).read_bytes() == CONTENT


def test_what_the_disk_has_damaged_of_a_download_is_not_blamed_on_the_registry(
    registry: FakeRegistry, tmp_path: Path
) -> None:
    """After a power cut a file may end in bytes that were never written."""
    (tmp_path / f"{NAME}{PARTIAL}").write_bytes(CONTENT[:500] + bytes(500))
    registry.range_starts_at = 1000
    came: list[int] = []
    assert kept(registry, tmp_path, came).fetch(DIGEST, len(CONTENT)).read_bytes() == CONTENT
    assert sum(came) == len(CONTENT)


def test_something_else_that_is_sent_again_is_refused(registry: FakeRegistry, tmp_path: Path) -> None:
    (tmp_path / f"{NAME}{PARTIAL}").write_bytes(CONTENT[:1000])
    registry.instead = b"x" * len(CONTENT)
    with pytest.raises(UserError, match="do not trust this registry"):
        kept(registry, tmp_path, []).fetch(DIGEST, len(CONTENT))
    assert len(registry.asked) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_registry_goes_on_where_it_was_asked_to(registry: FakeRegistry, tmp_path: Path) -> None:
    partial = tmp_path / f"{NAME}{PARTIAL}"
    partial.write_bytes(CONTENT[:1000])
    registry.range_starts_at = 1000
    assert kept(registry, tmp_path, []).fetch(DIGEST, len(CONTENT)).read_bytes() == CONTENT


def test_one_that_goes_on_elsewhere_damages_nothing(
    registry: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "PAUSES", ())
    partial = tmp_path / f"{NAME}{PARTIAL}"
    partial.write_bytes(CONTENT[:1000])
    registry.range_starts_at = 999
    with pytest.raises(NoAnswerError, match="does not continue at byte 1000"):
        kept(registry, tmp_path, []).fetch(DIGEST, len(CONTENT))
    assert partial.read_bytes() == CONTENT[:1000]


def test_one_that_sends_in_drops_is_abandoned(
    registry: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_limits, "time", SimpleNamespace(monotonic=count(0, 1e9).__next__))
    monkeypatch.setattr(retries, "PAUSES", ())
    with pytest.raises(NoAnswerError, match="fewer than 1000 bytes a second"):
        kept(registry, tmp_path, []).fetch(DIGEST, len(CONTENT))


def test_without_room_nothing_is_fetched(registry: FakeRegistry, tmp_path: Path) -> None:
    with pytest.raises(NoSpaceError, match=r"the disk has no room for a layer of which 1000000000\.0 GB are missing"):
        kept(registry, tmp_path, []).fetch(DIGEST, 10**18)
    assert registry.asked == []
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_is_left_with_the_room_there_was(
    registry: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NoSpaceError, match="the disk has no room; free some"):
        kept(registry, tmp_path, []).fetch(DIGEST, len(CONTENT))
    assert list(tmp_path.iterdir()) == []


def test_a_stop_while_the_registry_is_asked_changes_nothing(registry: FakeRegistry, tmp_path: Path) -> None:
    partial = tmp_path / f"{NAME}{PARTIAL}"
    partial.write_bytes(CONTENT[:1000])
    layers = kept(registry, tmp_path, [])
    answer = FakeRegistry.blob

    def stopping(asked: FakeRegistry, name: str) -> bytes:
        layers.stop()
        return answer(asked, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeRegistry, "blob", stopping)
        with pytest.raises(UserError, match="the pull was stopped"):
            layers.fetch(DIGEST, len(CONTENT))
    # Another process may be writing that file.
    assert partial.read_bytes() == CONTENT[:1000]


def test_nothing_is_fetched_after_a_stop(registry: FakeRegistry, tmp_path: Path) -> None:
    layers = kept(registry, tmp_path, [])
    layers.stop()
    with pytest.raises(UserError, match="the pull was stopped"):
        layers.fetch(DIGEST, len(CONTENT))
    assert registry.asked == []


def test_a_place_that_cannot_be_written_is_one_line(registry: FakeRegistry) -> None:
    with pytest.raises(UserError, match=r"cannot be written: .*; choose another"):
        kept(registry, Path("/proc/nowhere"), []).fetch(DIGEST, len(CONTENT))


def test_what_nobody_goes_on_with_goes_with_what_is_done(registry: FakeRegistry, tmp_path: Path) -> None:
    old, new = tmp_path / ("a" * 64), tmp_path / (f"{'b' * 64}{PARTIAL}")
    for file in (old, new):
        file.touch()
    long_ago = time.time() - ABANDONED_SECONDS - 60
    os.utime(old, (long_ago, long_ago))
    layers = kept(registry, tmp_path, [])
    layers.fetch(DIGEST, len(CONTENT))
    layers.forget([DIGEST])
    assert list(tmp_path.iterdir()) == [new]
