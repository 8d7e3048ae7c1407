"""What becomes of a container when its engine goes away or the disk is full, on a stand-in for the engine."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from docker.errors import APIError, NotFound
from requests.exceptions import ConnectionError as Unreachable

from harness.environments.executors import docker
from harness.environments.executors.bounded_log import HEAD_BYTES, TAIL_BYTES
from harness.environments.executors.container import Container
from harness.environments.executors.docker import LABEL, ContainerHandle, DockerExecutor
from harness.environments.executors.job import Exit, Job
from harness.environments.executors.pids import pids_limit
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
        self.volumes: dict[str, Any] | None = None

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

    def inspect_image(self, _: str) -> dict[str, Any]:
        return {"Config": {"Volumes": self.volumes}}

    def remove_container(self, name: str, *, force: bool, v: bool) -> None:
        assert force
        assert v, "its volumes would stay"
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


def test_an_image_with_a_place_that_can_be_written_to_and_stays_is_refused(tmp_path: Path) -> None:
    api = Api(ENDED)
    api.volumes = {"/kept": {}, "/a\nb": {}}
    container = Container("image", 1000, 1000, str(tmp_path))
    watch = Watch(RunFolder(tmp_path), DockerExecutor(engine_of(api), tmp_path), lambda _: None, None)
    assert watch.execute(Job(("vpoc",), {}, tmp_path, tmp_path / "log.txt", container), 60) is None
    assert watch.stopped_by == "start"
    assert watch.stop_detail.startswith(r"vpoc could not be started: its image declares volumes (/a\nb, /kept), which")


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


class TestOutput:
    """`kept` is what the engine still has of it at the end, `followed` what came while it ran."""

    @pytest.fixture
    def finished(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., bytes]:
        monkeypatch.setattr(docker, "NEVER_ROTATED_BYTES", 0)
        monkeypatch.setattr(docker, "LOG_SECONDS", 60)
        monkeypatch.setattr(docker, "COMPARED_BYTES", 4)

        def finished(followed: Iterator[bytes], kept: list[bytes]) -> bytes:
            api = Api(ENDED)
            log = tmp_path / "log"
            log.write_bytes(b"before\n")

            def logs(_: str, *, stream: bool = False, follow: bool = False, tail: int = 0) -> Any:
                if tail:
                    return kept[-1]
                assert stream, "all of it would be held in memory"
                return followed if follow else iter(kept)

            monkeypatch.setattr(api, "logs", logs)
            handle = ContainerHandle(engine_of(api), "c", log)
            assert handle.poll() == Exit(3)
            assert api.removed == ["c"]
            return log.read_bytes().removeprefix(b"before\n")

        return finished

    def test_what_came_whole_stays(self, finished: Callable[..., bytes]) -> None:
        assert finished(iter([b"one\n", b"two\n"]), [b"one\n", b"two\n"]) == b"one\ntwo\n"

    def test_what_broke_off_is_read_again_from_the_engine(self, finished: Callable[..., bytes]) -> None:
        assert finished(iter([b"one\n"]), [b"one\n", b"two\n"]) == b"one\ntwo\n"

    def test_what_the_engine_dropped_unread_is_said_and_the_end_is_there(self, finished: Callable[..., bytes]) -> None:
        left = b"... an unknown number of bytes left out, which the engine did not keep ...\n"
        assert finished(iter([b"one\n", b"two\n"]), [b"eight\n", b"nine\n"]) == b"one\ntwo\n" + left + b"eight\nnine\n"

    def test_what_is_followed_too_slowly_is_not_waited_for(
        self, finished: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(docker, "LOG_SECONDS", 0.2)
        over = threading.Event()

        def slow() -> Iterator[bytes]:
            yield b"one\n"
            over.wait(30)

        began = time.monotonic()
        assert finished(slow(), [b"one\n", b"two\n", b"three\n"]) == b"one\ntwo\nthree\n"
        assert time.monotonic() - began < 10
        over.set()

    def test_much_of_it_is_bounded(self, finished: Callable[..., bytes]) -> None:
        chunks = [b"%01023d\n" % number for number in range(20 << 10)]
        text = finished(iter(chunks), chunks)
        assert len(text) < HEAD_BYTES + TAIL_BYTES + 100
        assert text.startswith(chunks[0])
        assert text.endswith(chunks[-1])
        assert f"... {(20 << 20) - HEAD_BYTES - TAIL_BYTES:,} bytes left out ...\n".encode() in text


def test_the_limits_of_a_container_are_given_to_the_engine_and_shown_alike() -> None:
    container = Container("image", 1, 2, "/work", pids=5000)
    arguments = container.create_arguments()
    assert arguments["pids_limit"] == container.plain["pids"] == 5000
    assert int(arguments["log_config"]["Config"]["max-size"]) * int(arguments["log_config"]["Config"]["max-file"]) < 1e8
    shown = container.command_line({}, ("train",))
    assert "--pids-limit 5000 " in shown
    assert "--log-driver json-file --log-opt max-size=" in shown


@pytest.mark.parametrize(("cores", "ranks", "expected"), [(2, 1, 4096), (64, 1, 4096), (65, 1, 4160), (64, 8, 32768)])
def test_a_container_has_room_for_the_threads_of_every_rank(cores: int, ranks: int, expected: int) -> None:
    assert pids_limit(cores, ranks) == expected
