import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.registry.kept_layers import ABANDONED_SECONDS, PARTIAL, KeptLayers
from harness.registry.oci import digest_of
from tests.harness.fake_registry import FakeRegistry

CONTENT = bytes(range(256)) * 1000
DIGEST = digest_of(CONTENT)
NAME = DIGEST.removeprefix("sha256:")


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    """A registry that sends everything from the beginning."""
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
