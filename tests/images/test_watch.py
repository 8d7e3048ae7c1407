"""Tests of a hang in a container: the watchdog finds and names it, and collects evidence without further rights."""

import json
import os
from pathlib import Path

import pytest

from harness.environments.executors.container import WORK, Container
from harness.environments.executors.docker import DockerExecutor
from harness.environments.executors.job import Job
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.files.work_folder import WorkFolder
from harness.host.engine import Engine
from harness.run.launch import base_variables
from harness.run.watch.limits import LIMITS, Limits
from harness.run.watch.watch import Watch

RANK = """
import faulthandler, json, os, signal, time
faulthandler.register(signal.SIGUSR1, open("/work/stacks-0.txt", "ab", 0))
memory = {"rss_bytes": 1, "device_allocated_bytes": None, "device_reserved_bytes": None}
told = {"schema": 2, "wall": 0, "monotonic": time.monotonic(), "rank": 0, "pid": os.getpid(), "phase": "first-step",
        "done": 0, "total": None, "max_step_s": None, "loss": None, "gradient_norm": None, "memory": memory}
open("/work/progress-0.jsonl", "w").write(json.dumps(told) + chr(10))
def stuck(): time.sleep(600)
stuck()
"""


def test_a_hang_in_a_container_is_found_and_its_evidence_is_kept(
    engine: Engine, folder: Path, container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.run.watch.watch.GRACE_SECONDS", 2.0)
    watch = Watch(RunFolder(folder), DockerExecutor(engine, folder.parent), lambda _: None, None)
    variables = {**base_variables(WorkFolder(WORK), WorkFolder(WORK).temporary, 1), "PATH": "/opt/venv/bin"}
    limits = Limits.fixed({**LIMITS, "first-step": 2.0})
    job = Job(("/opt/venv/bin/python", "-c", RANK), variables, folder, folder / "log.txt", container)
    watch.execute(job, 60, limits)
    assert watch.stopped_by == "watchdog"
    assert watch.progress.last is not None
    assert watch.stop_detail.startswith("rank 0 made no progress for ")
    assert watch.stop_detail.endswith(" s in phase first-step at 0 (<string>:8 stuck)")
    index = json.loads((folder / "failure/index.json").read_text(encoding="utf-8"))
    assert {"stacks-1", "stacks-2", "processes", "cgroup", "container"} <= set(index["collected"])
    if os.geteuid() == 0:
        # It saw nothing but this process, by a root directory of its own.
        assert "stuck (<string>:8)" in (folder / "failure/py-spy.txt").read_text(encoding="utf-8")
    table = (folder / "failure/processes.txt").read_text(encoding="utf-8").splitlines()
    inner = {line.split()[1] for line in table[1:]}
    assert str(watch.progress.last.pid) in inner
    group = json.loads((folder / "failure/cgroup.json").read_text(encoding="utf-8"))
    inspected = json.loads((folder / "failure/container.json").read_text(encoding="utf-8"))
    assert inspected["Id"] in group["folder"]
    assert inspected["State"]["Running"]
    assert engine.client.containers.list(all=True, filters={"id": inspected["Id"]}) == []
