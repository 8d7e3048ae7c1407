"""What becomes of a container when its engine goes away or the disk is full, on a stand-in for the engine."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from docker.errors import APIError, NotFound
from requests.exceptions import ConnectionError as Unreachable

from harness.environments.executors.docker import LABEL, ContainerHandle, DockerExecutor
from harness.environments.executors.job import Exit, Job
from harness.evidence.run_folder import RunFolder
from harness.host.engine import Engine
from harness.run.watch.limits import LIMITS, Limits
from harness.run.watch.watch import Watch

RUNNING = {"Pid": 1, "Status": "running", "Running": True, "ExitCode": 0, "OOMKilled": False}
ENDED = {"Pid": 0, "Status": "exited", "Running": False, "ExitCode": 3, "OOMKilled": False}


class Api:
    """What an engine is asked, as docker-py names it."""

    def __init__(self, state: dict[str, Any], stopping: Exception | None = None) -> None:
        self.state = state
        self.stopping = stopping
        self.gone = False
        self.listed: list[dict[str, Any]] = []
        self.removed: list[str] = []

    def logs(self, _: str, *, stream: bool = False, follow: bool = False) -> Any:
        return iter([b"said"]) if stream else b"said"

    def inspect_container(self, _: str) -> dict[str, Any]:
        if self.gone:
            raise Unreachable
        return {"State": self.state}

    def stop(self, _: str, timeout: int) -> None:
        if self.stopping:
            self.gone = isinstance(self.stopping, Unreachable)
            raise self.stopping

    def containers(self, **_: object) -> list[dict[str, Any]]:
        return self.listed

    def remove_container(self, name: str, *, force: bool) -> None:
        self.removed.append(name)


def engine_of(api: Api) -> Engine:
    return cast("Engine", SimpleNamespace(client=SimpleNamespace(api=api)))


@pytest.mark.parametrize(
    ("error", "ended"),
    [(Unreachable(), True), (NotFound("no such container"), True), (APIError("did not receive an exit event"), False)],
)
def test_only_what_the_engine_itself_cannot_kill_is_unkillable(error: Exception, ended: bool, tmp_path: Path) -> None:
    assert ContainerHandle(engine_of(Api(RUNNING, error)), "c", tmp_path / "log").stop(1) is ended


def test_a_run_that_hung_stays_so_though_its_engine_goes_away_while_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.environments.executors.docker.ASK_SECONDS", 0.0)
    handle = ContainerHandle(engine_of(Api(RUNNING, Unreachable())), "c", tmp_path / "log")
    executor = cast("Any", SimpleNamespace(start=lambda _: handle))
    watch = Watch(RunFolder(tmp_path), executor, lambda _: None, None)
    limits = Limits.fixed(dict.fromkeys(LIMITS, 0.1))
    assert watch.execute(Job(("vpoc",), {}, tmp_path, tmp_path / "log.txt"), 60, limits) is None
    assert watch.stopped_by == "watchdog"
    assert "progress" in watch.stop_detail


@pytest.mark.parametrize("ask", [ContainerHandle.poll, lambda handle: handle.stop(1)])
def test_on_a_full_disk_a_container_is_removed_all_the_same(
    ask: Callable[[ContainerHandle], object], tmp_path: Path
) -> None:
    api, log = Api(ENDED), tmp_path / "log"
    log.symlink_to("/dev/full")
    handle = ContainerHandle(engine_of(api), "c", log)
    assert ask(handle)
    assert handle.poll() == Exit(3)
    assert api.removed == ["c"]


def test_containers_of_folders_that_are_gone_are_removed_unless_they_run(tmp_path: Path) -> None:
    api, runs = Api(ENDED), tmp_path / "runs"
    for name in ("recorded", "unfinished"):
        (runs / name).mkdir(parents=True)
    listed = {
        "recorded": (runs / "recorded", "running"),
        "unfinished": (runs / "unfinished", "exited"),
        "gone": (tmp_path / "data", "exited"),
        # Of a harness that has other folders than this one.
        "elsewhere": (tmp_path / "their" / "runs" / "r1", "running"),
        "hidden": (tmp_path / "file" / "r1", "exited"),
    }
    (tmp_path / "file").touch()
    api.listed = [
        {"Id": name, "Labels": {LABEL: str(folder)}, "State": state} for name, (folder, state) in listed.items()
    ]
    DockerExecutor(engine_of(api), runs).remove_leftovers(lambda run_id: run_id == "recorded" or None)
    assert api.removed == ["recorded", "gone"]
