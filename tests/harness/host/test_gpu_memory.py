from pathlib import Path

import pytest

from harness.host import gpu_memory
from harness.host.gpu_memory import USED_BYTES, GpuWatch


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for minor in (128, 129):
        use(tmp_path, minor, 300 << 20)
    return tmp_path


def use(root: Path, minor: int, used: int) -> None:
    file = root / f"sys/class/drm/renderD{minor}/device/mem_info_vram_used"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{used}\n")


def test_a_gpu_was_used_when_its_memory_rose_while_it_was_watched(root: Path) -> None:
    watch = GpuWatch(root)
    watch.sample()
    assert watch.used() == 0
    use(root, 129, (300 << 20) + USED_BYTES + 1)
    watch.sample()
    use(root, 129, 300 << 20)
    watch.sample()
    assert watch.used() == 1


def test_a_little_more_is_the_desktop(root: Path) -> None:
    watch = GpuWatch(root)
    use(root, 128, (300 << 20) + USED_BYTES // 2)
    watch.sample()
    assert watch.used() == 0


def test_nvidia_gpus_are_asked_for_by_their_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '0, 512'\necho '1, 3'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert gpu_memory.memory_in_use(tmp_path) == {"nvidia0": 512 << 20, "nvidia1": 3 << 20}


def test_without_any_gpu_nothing_was_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert GpuWatch(tmp_path).used() == 0
