import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.evidence.files.run_folder import RunFolder
from harness.host.processes.run_processes import RunProcess
from harness.run.watch.collect import Collector, FailureScene, collect
from harness.run.watch.python_stacks import ProcessStacks, StackSample

PARTS = {"stacks-1", "stacks-2", "processes", "py-spy", "kernel-log", "gpus", "memory-owners", "cgroup", "container"}


def index(folder: Path) -> Any:
    return json.loads((folder / "failure" / "index.json").read_text(encoding="utf-8"))


def sample(*stacks: ProcessStacks, processes: tuple[RunProcess, ...] = ()) -> StackSample:
    return StackSample(0, 0, processes, stacks, {})


def test_of_every_part_the_index_says_where_it_is_or_why_it_is_not(tmp_path: Path) -> None:
    notes = collect(RunFolder(tmp_path), FailureScene(began=0, now=0, root=tmp_path / "nothing"))
    told = index(tmp_path)
    assert told["schema"] == 2
    assert set(told["collected"]) | set(told["missing"]) == PARTS
    assert told["collected"] == {}
    assert all(told["missing"].values())
    assert "/dev/kmsg: No such file or directory" in told["missing"]["kernel-log"]
    assert notes == ()


def test_what_is_there_is_kept_and_little_power_at_full_load_is_noted(tmp_path: Path) -> None:
    root = tmp_path / "root"
    device = root / "sys/class/drm/card0/device"
    for name, content in {"vendor": "0x1002", "gpu_busy_percent": "99"}.items():
        (device / "hwmon/hwmon0").mkdir(parents=True, exist_ok=True)
        (device / name).write_text(content)
    for name, content in {"power1_average": "20000000", "power1_cap": "300000000"}.items():
        (device / "hwmon/hwmon0" / name).write_text(content)
    (root / "dev").mkdir()
    (root / "dev/kmsg").write_text(f"3,1,{int(time.monotonic() * 1e6)},-;amdgpu: GPU reset begin!\n")
    process = RunProcess(5, 2, 0, 0, "R", "-", 1, 1 << 20, 3, "python", "sleep 5", catches=True)
    scene = FailureScene(
        began=5e9,
        now=5e9 + 5,
        samples=[sample(ProcessStacks(5, 0, "Thread 0x00 (most recent call first):\n"))],
        processes=[process],
        container={"Id": "abc", "State": {"OOMKilled": True}},
        memory_group=lambda: {"last": {"memory.events:oom_kill": 1}},
        root=root,
    )
    notes = collect(RunFolder(tmp_path), scene)
    told = index(tmp_path)
    assert set(told["missing"]) == {"stacks-2", "py-spy", "memory-owners"}
    assert told["missing"]["stacks-2"] == "only one sample was taken"
    for file in told["collected"].values():
        assert (tmp_path / file).stat().st_size > 0
    assert "GPU reset begin!" in (tmp_path / "failure/kernel-log.txt").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "failure/container.json").read_text(encoding="utf-8"))["State"] == {"OOMKilled": True}
    (note,) = notes
    assert note == told["notes"][0]
    assert note.endswith("is 99 % busy at 20 W of 300 W")


def test_the_kernel_log_is_kept_from_the_start_of_the_process(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    lines = (f"3,1,{int((time.monotonic() - ago) * 1e6)},-;{ago} s ago\n" for ago in (200, 50))
    (tmp_path / "dev/kmsg").write_text("".join(lines))
    folder = RunFolder(tmp_path)
    collector = Collector(folder, folder.work, tmp_path, can_dump_stacks=True, on_gpus=False)
    handle: Any = SimpleNamespace(inspected=None)
    collector.begin(handle, time.monotonic() - 100)
    collector.keep(())
    told = (tmp_path / "failure/kernel-log.txt").read_text(encoding="utf-8")
    assert [line.partition("] ")[2] for line in told.splitlines()] == ["50 s ago"]


def test_a_part_that_does_not_come_back_or_fails_costs_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Any:
        raise ZeroDivisionError

    def unhealthy(_root: Path) -> Any:
        time.sleep(60)

    monkeypatch.setattr("harness.run.watch.collect.SECONDS", 0.5)
    monkeypatch.setattr("harness.run.watch.collect.sample_gpus", unhealthy)
    began = time.monotonic()
    collect(RunFolder(tmp_path), FailureScene(began=0, now=0, container={"Id": "abc"}, memory_group=broken))
    assert time.monotonic() - began < 10
    told = index(tmp_path)
    assert told["missing"]["gpus"] == "not read within 0.5 s"
    assert told["missing"]["cgroup"].startswith("ZeroDivisionError")
    assert "container" in told["collected"]


def test_a_process_that_told_nothing_is_said_to_have_told_nothing(tmp_path: Path) -> None:
    deaf = RunProcess(5, 2, 0, 0, "S", "-", 1, 1 << 20, 3, "python", "sh", catches=False)
    scene = FailureScene(began=0, now=0, samples=[sample(processes=(deaf,))], processes=[deaf], root=tmp_path)
    collect(RunFolder(tmp_path), scene)
    assert "process 5 (python) gave no stack: it does not catch SIGUSR1" in index(tmp_path)["missing"]["stacks-1"]


def test_a_folder_that_cannot_be_written_to_does_not_fail_the_run(tmp_path: Path) -> None:
    (tmp_path / "failure").write_text("in the way")
    assert collect(RunFolder(tmp_path), FailureScene(began=0, now=0, container={"Id": "abc"}, root=tmp_path)) == ()
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"failure": "in the way"}
