import os
import shutil
from pathlib import Path

import pytest

from harness.host.processes.cgroup import MemoryGroupWatch, memory_group


def make(root: Path, pid: int, lines: str, folder: str, **files: str) -> Path:
    place = root / "sys/fs/cgroup" / folder
    place.mkdir(parents=True)
    (root / f"proc/{pid}").mkdir(parents=True)
    (root / f"proc/{pid}/cgroup").write_text(lines)
    for name, content in files.items():
        (place / name.replace("__", ".")).write_text(content)
    return place


def v2(root: Path, kills: int = 0) -> Path:
    events = f"low 0\nhigh 0\nmax 31\noom 1\noom_kill {kills}\n"
    return make(root, 5, "0::/docker/abc\n", "docker/abc", memory__events=events, memory__max="max\n")


def test_version_2_tells_kills_and_limits(tmp_path: Path) -> None:
    v2(tmp_path, kills=1)
    group = memory_group(5, tmp_path)
    assert group is not None
    told = group.read()
    assert (told["memory.events:oom_kill"], told["memory.events:max"], told["memory.max"]) == (1, 31, "max")


def test_version_1_tells_kills_and_failures(tmp_path: Path) -> None:
    lines = "12:devices:/docker/abc\n4:memory:/docker/abc\n0::/\n"
    control = "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"
    make(tmp_path, 5, lines, "memory/docker/abc", memory__oom_control=control, memory__failcnt="17\n")
    group = memory_group(5, tmp_path)
    assert group is not None
    assert group.version == 1
    told = group.read()
    assert (told["memory.oom_control:oom_kill"], told["memory.failcnt"]) == (2, 17)


def test_what_a_group_said_last_is_kept_when_it_is_gone(tmp_path: Path) -> None:
    place = v2(tmp_path)
    watch = MemoryGroupWatch(5, tmp_path)
    (place / "memory.events").write_text("oom_kill 1\n")
    watch.look()
    shutil.rmtree(place)
    told = watch.summary()
    assert told["gone"] is True
    assert told["first"] == {f"memory.events:{key}": value for key, value in FIRST.items()} | {"memory.max": "max"}
    assert told["last"] == {"memory.events:oom_kill": 1, "memory.max": "max"}


FIRST = {"low": 0, "high": 0, "max": 31, "oom": 1, "oom_kill": 0}


def test_without_a_group_there_is_nothing_to_tell(tmp_path: Path) -> None:
    assert memory_group(5, tmp_path) is None
    with pytest.raises(LookupError, match="control group"):
        MemoryGroupWatch(5, tmp_path).summary()


def test_this_machine_is_read(tmp_path: Path) -> None:
    group = memory_group(os.getpid())
    if group is None:
        pytest.skip("memory is not accounted for by control groups here")
    assert any(key.startswith("memory.") for key in group.read())
