from pathlib import Path

import pytest

from harness.host.gpus.gpu_memory import USED_BYTES, GpuWatch, memory_by_process

MINE, OTHER = 4711, 4712


def mine(pid: int) -> bool:
    return pid == MINE


def hold(root: Path, pid: int, gpu: str, used: int | str) -> None:
    file = root / f"sys/class/kfd/kfd/proc/{pid}/vram_{gpu}"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{used}\n")


def test_a_gpu_was_used_when_a_process_of_the_run_held_memory_on_it(tmp_path: Path) -> None:
    watch = GpuWatch({"51001"}, tmp_path)
    watch.sample(mine)
    assert watch.used == 0
    hold(tmp_path, MINE, "51001", USED_BYTES + 1)
    watch.sample(mine)
    hold(tmp_path, MINE, "51001", 0)
    watch.sample(mine)
    assert watch.used == 1


def test_what_others_hold_does_not_count(tmp_path: Path) -> None:
    watch = GpuWatch({"51001"}, tmp_path)
    hold(tmp_path, OTHER, "51001", 1 << 30)
    watch.sample(mine)
    assert watch.used == 0


def test_a_gpu_that_was_not_given_does_not_count(tmp_path: Path) -> None:
    hold(tmp_path, MINE, "60002", 1 << 30)
    given, any_gpu = GpuWatch({"51001"}, tmp_path), GpuWatch(None, tmp_path)
    given.sample(mine)
    any_gpu.sample(mine)
    assert (given.used, any_gpu.used) == (0, 1)


def test_a_little_is_not_training(tmp_path: Path) -> None:
    watch = GpuWatch(None, tmp_path)
    hold(tmp_path, MINE, "51001", USED_BYTES)
    watch.sample(mine)
    assert watch.used == 0


def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    file = tmp_path / "nvidia-smi"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def test_nvidia_gpus_are_asked_for_by_their_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path, monkeypatch, f"echo '{MINE}, GPU-aa, 512'; echo '{MINE}, GPU-bb, 3'")
    assert memory_by_process(tmp_path) == {}, "those of this machine are not a simulated host's"
    monkeypatch.setattr("harness.host.gpus.gpu_memory.is_simulated", lambda _: False)
    assert memory_by_process(tmp_path) == {MINE: {"GPU-aa": 512 << 20, "GPU-bb": 3 << 20}}


@pytest.mark.parametrize("script", ["exit 9", "echo no devices were found", "echo '1, GPU-aa, [N/A]'", "kill -9 $$"])
def test_an_unhealthy_driver_is_no_reason_to_fail(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path, monkeypatch, script)
    monkeypatch.setattr("harness.host.gpus.gpu_memory.is_simulated", lambda _: False)
    watch = GpuWatch(None, tmp_path)
    watch.sample(mine)
    assert watch.used == 0


def test_garbage_in_the_drivers_files_is_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    hold(tmp_path, MINE, "51001", "what")
    watch = GpuWatch(None, tmp_path)
    watch.sample(mine)
    assert watch.used == 0
