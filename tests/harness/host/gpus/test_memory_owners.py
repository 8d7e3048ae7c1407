from itertools import count
from pathlib import Path

import pytest

from harness.host.gpus import memory_owners as module
from harness.host.gpus.memory_owners import Owner, memory_owners

CARD = "0000:03:00.0"


def process(root: Path, pid: int, name: str, *clients: str) -> None:
    folder = root / f"proc/{pid}/fdinfo"
    folder.mkdir(parents=True)
    (root / f"proc/{pid}/comm").write_text(f"{name}\n")
    for number, text in enumerate(clients):
        (folder / str(number)).write_text(text)


def client(number: int, **regions: str) -> str:
    lines = "".join(f"drm-{key.replace('_', '-')}:\t{value}\n" for key, value in regions.items())
    return f"pos:\t0\ndrm-driver:\tamdgpu\ndrm-pdev:\t{CARD}\ndrm-client-id:\t{number}\n{lines}"


def test_owners_are_reported_by_both_sources_and_whether_they_are_of_the_run(tmp_path: Path) -> None:
    held = tmp_path / "sys/class/kfd/kfd/proc/42"
    held.mkdir(parents=True)
    (held / "vram_51001").write_text(str(3 << 30))
    process(tmp_path, 42, "python")
    process(tmp_path, 7, "Xorg", client(1, memory_vram="200 MiB", resident_vram="256 MiB"), "pos:\t0\n")
    assert memory_owners([42], tmp_path) == (
        Owner(42, "python", 3 << 30, "kfd", "51001", of_this_run=True),
        Owner(7, "Xorg", 256 << 20, "fdinfo", CARD, of_this_run=False),
    )


def test_a_client_with_several_descriptors_counts_once(tmp_path: Path) -> None:
    process(tmp_path, 7, "Xorg", client(1, memory_vram="1024 KiB"), client(1, memory_vram="1024 KiB"))
    process(tmp_path, 8, "child", client(1, memory_vram="1024 KiB"), client(2, memory_vram="512"))
    assert [(owner.pid, owner.bytes) for owner in memory_owners([], tmp_path)] == [(7, 1 << 20), (8, 512)]


def test_descriptors_that_name_no_client_all_count(tmp_path: Path) -> None:
    nameless = client(1, memory_vram="1024 KiB").replace("drm-client-id:\t1\n", "")
    process(tmp_path, 7, "Xorg", nameless, nameless)
    assert [(owner.pid, owner.bytes) for owner in memory_owners([], tmp_path)] == [(7, 2 << 20)]


def test_all_descriptors_are_looked_at_while_there_is_time_the_process_with_the_most_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process(tmp_path, 7, "Xorg", *(client(number, memory_vram="1") for number in range(6)))
    process(tmp_path, 8, "child", client(6, memory_vram="9"))
    for seconds, held in ((module.MOST_SECONDS, 6), (4, 3)):
        monkeypatch.setattr(module, "MOST_SECONDS", seconds)
        assert [(owner.pid, owner.bytes) for owner in memory_owners([], tmp_path)] == [(8, 9), (7, held)]
        # The second time, each look takes a second.
        monkeypatch.setattr("time.monotonic", count().__next__)


def test_a_process_that_holds_nothing_is_no_owner(tmp_path: Path) -> None:
    process(tmp_path, 7, "Xorg", client(1, memory_gtt="5 MiB", memory_vram="0"))
    assert memory_owners([], tmp_path) == ()
