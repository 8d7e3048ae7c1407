"""What becomes of a container when its engine goes away or the disk is full, on a stand-in for the engine."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from docker.errors import APIError, ImageNotFound, NotFound
from requests.exceptions import ConnectionError as Unreachable
from requests.exceptions import ReadTimeout

from harness.environments.executors import container_handle
from harness.environments.executors.bounded_log import HEAD_BYTES, MAY_LACK_SOME, TAIL_BYTES
from harness.environments.executors.container import Container
from harness.environments.executors.container_handle import ContainerHandle
from harness.environments.executors.docker import LABEL, NO_PROGRAM, DockerExecutor
from harness.environments.executors.job import EngineSilent, Exit, Job, JobLost
from harness.environments.executors.pids import pids_limit
from harness.evidence.run_folder import RunFolder
from harness.host.engine import Engine
from harness.host.engine_client import FOLDER_MODE, TooLargeAnswerError
from harness.run.watch.confirm import HangWatch
from harness.run.watch.limits import LIMITS, Limits
from harness.run.watch.watch import Watch

NOTE = f"\n{MAY_LACK_SOME}\n".encode()
# In Go's `os.FileMode`.
PIPE, LINK = 1 << 25, 1 << 27
RUNNING = {"Pid": 1, "Status": "running", "Running": True, "ExitCode": 0, "OOMKilled": False}
ENDED = {"Pid": 0, "Status": "exited", "Running": False, "ExitCode": 3, "OOMKilled": False}


class Api:
    """What an engine is asked, as docker-py names it."""

    def __init__(self, state: dict[str, Any], stopping: Exception | None = None) -> None:
        self.state = state
        self.stopping = stopping
        self.gone = self.ending = self.started_again = False
        self.silence: Exception = Unreachable()
        self.asked = 0
        self.listed: list[dict[str, Any]] = []
        self.removed: list[str] = []
        self.volumes: dict[str, Any] | None = None
        self.labels: dict[str, str] = {}
        self.seen: dict[str, tuple[int, int]] = {}

    def logs(self, _: str, *, stream: bool = False, follow: bool = False, tail: int | None = None) -> Any:
        return iter([] if tail == 0 else [b"said"]) if stream else b"said"

    def inspect_container(self, _: str) -> dict[str, Any]:
        self.asked += 1
        if self.gone:
            raise self.silence
        return {"State": self.state}

    def stop(self, _: str, timeout: int) -> None:
        if self.stopping:
            self.gone = isinstance(self.stopping, Unreachable)
            raise self.stopping

    def events(self, *, filters: dict[str, str], **_: object) -> Iterator[dict[str, str]]:
        assert filters == {"container": "c", "event": "die"}
        return iter([] if self.started_again else [{"status": "die"}])

    def seen_in(self, _: str, path: str) -> tuple[int, int] | None:
        return self.seen.get(path)

    def containers(self, **_: object) -> list[dict[str, Any]]:
        return self.listed

    def inspect_image(self, _: str) -> dict[str, Any]:
        return {"Config": {"Volumes": self.volumes, "Labels": self.labels}}

    def remove_container(self, name: str, *, force: bool, v: bool) -> None:
        assert force
        assert v, "its volumes would stay"
        self.removed.append(name)


def engine_of(api: Api) -> Engine:
    client = SimpleNamespace(api=api)
    return cast("Engine", SimpleNamespace(client=client, brief=api, facts={}, answers=lambda: not api.ending))


@pytest.mark.parametrize(
    ("error", "ended"),
    [(Unreachable(), True), (NotFound("no such container"), True), (APIError("did not receive an exit event"), False)],
)
def test_only_what_the_engine_itself_cannot_kill_is_unkillable(error: Exception, ended: bool, tmp_path: Path) -> None:
    assert ContainerHandle(engine_of(Api(RUNNING, error)), "c", tmp_path / "log").stop(1) is ended


def test_a_run_that_hung_stays_so_though_its_engine_goes_away_while_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.environments.executors.container_handle.ASK_SECONDS", 0.0)
    handle = ContainerHandle(engine_of(Api(RUNNING, Unreachable())), "c", tmp_path / "log")
    executor = cast("Any", SimpleNamespace(start=lambda _: handle))
    watch = Watch(RunFolder(tmp_path), executor, lambda _: None, None)
    limits = Limits.fixed(dict.fromkeys(LIMITS, 0.1))
    assert watch.execute(Job(("vpoc",), {}, tmp_path, tmp_path / "log.txt"), 60, limits) is None
    assert watch.stopped_by == "watchdog"
    assert "progress" in watch.stop_detail


class TestAnEngineThatIsAway:
    """It is waited for; what became of the container meanwhile is seen when it answers again."""

    @pytest.fixture(autouse=True)
    def _at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(container_handle, "ASK_SECONDS", 0.0)

    @pytest.fixture
    def api(self) -> Api:
        return Api(RUNNING)

    def away(self, api: Api, log: Path, silence: Exception | None = None) -> ContainerHandle:
        """Return a container whose engine has just gone, or is silent."""
        handle = ContainerHandle(engine_of(api), "c", log)
        assert (handle.poll(), handle.unanswered) == (None, False)
        cast("Any", handle)._copying.join()
        api.gone, api.silence = True, silence or Unreachable()
        assert (handle.poll(), handle.unanswered) == (None, True)
        return handle

    def test_what_runs_on_is_followed_to_its_end_and_its_log_is_whole(
        self, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        handle = self.away(api, tmp_path / "log")
        api.gone = False
        said = [b"said", b" and", b" more"]
        monkeypatch.setattr(api, "logs", lambda *_, **__: iter(said))
        assert (handle.poll(), handle.unanswered) == (None, False)
        assert handle.silent_seconds > 0
        api.state = ENDED
        assert handle.poll() == Exit(3)
        assert (tmp_path / "log").read_bytes() == b"said and more" + NOTE

    @pytest.mark.parametrize("seen_running", [True, False])
    def test_after_a_restart_that_nobody_noticed_it_is_followed_too(
        self, seen_running: bool, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its stream ends in order with the engine, though the container runs on."""
        handle = ContainerHandle(engine_of(api), "c", tmp_path / "log")
        cast("Any", handle)._copying.join()
        monkeypatch.setattr(api, "logs", lambda *_, **__: iter([b"said and", b" more"]))
        if seen_running:
            assert handle.poll() is None
            cast("Any", handle)._copying.join()
            assert (tmp_path / "log").read_bytes() == b"said and more"
        api.state = {**ENDED, "ExitCode": 0}
        assert handle.poll() == Exit(0)
        assert (tmp_path / "log").read_bytes() == b"said and more" + NOTE

    def test_what_may_have_been_dropped_meanwhile_is_copied_at_the_end(
        self, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(container_handle, "NEVER_ROTATED_BYTES", 0)
        monkeypatch.setattr(container_handle, "COMPARED_BYTES", 4)
        handle = self.away(api, tmp_path / "log")
        api.gone = False

        def logs(*_: object, tail: int | None = None, **__: object) -> Iterator[bytes]:
            return iter([b"new"] if tail == 0 else [b"said", b" and new"])

        monkeypatch.setattr(api, "logs", logs)
        assert handle.poll() is None
        api.state = ENDED
        assert handle.poll() == Exit(3)
        assert (tmp_path / "log").read_bytes() == b"said and new" + NOTE

    @pytest.mark.parametrize("code", [143, 137, 3, 255])
    def test_what_its_restart_ended_is_lost(self, code: int, api: Api, tmp_path: Path) -> None:
        handle = self.away(api, tmp_path / "log")
        api.gone, api.state = False, {**ENDED, "ExitCode": code}
        with pytest.raises(JobLost, match="ended or restarted, and ended the container"):
            handle.poll()
        assert handle.stop(1)
        assert api.removed == ["c"]

    def test_what_was_ended_by_a_restart_that_nobody_noticed_is_lost(self, api: Api, tmp_path: Path) -> None:
        handle = ContainerHandle(engine_of(api), "c", tmp_path / "log")
        assert handle.poll() is None
        api.started_again, api.state = True, {**ENDED, "ExitCode": 143}
        with pytest.raises(JobLost, match="ended or restarted, and ended the container"):
            handle.poll()

    def test_what_one_that_is_ending_ended_is_lost(self, api: Api, tmp_path: Path) -> None:
        """It still answers on the connections that it has."""
        handle = ContainerHandle(engine_of(api), "c", tmp_path / "log")
        api.ending, api.state = True, {**ENDED, "ExitCode": 143}
        with pytest.raises(JobLost, match="ended or restarted, and ended the container"):
            handle.poll()

    @pytest.mark.parametrize(
        ("state", "expected"),
        [
            ({"ExitCode": 0}, Exit(0)),
            ({"ExitCode": 139}, Exit(-11)),
            ({"ExitCode": 137, "OOMKilled": True}, Exit(-9, out_of_memory=True)),
        ],
    )
    def test_what_ended_in_its_own_way_meanwhile_did_so(
        self, state: dict[str, Any], expected: Exit, api: Api, tmp_path: Path
    ) -> None:
        handle = self.away(api, tmp_path / "log")
        api.gone, api.state = False, {**ENDED, **state}
        assert handle.poll() == expected

    def test_an_engine_that_was_only_silent_ends_nothing(self, api: Api, tmp_path: Path) -> None:
        handle = self.away(api, tmp_path / "log", ReadTimeout())
        api.gone, api.state = False, {**ENDED, "ExitCode": 137}
        assert handle.poll() == Exit(-9)

    def test_one_that_keeps_containers_alive_ends_none(self, api: Api, tmp_path: Path) -> None:
        handle = self.away(api, tmp_path / "log")
        cast("Any", handle)._engine.facts["LiveRestoreEnabled"] = True
        api.gone, api.state = False, ENDED
        assert handle.poll() == Exit(3)

    @pytest.mark.parametrize("noticed", [True, False])
    def test_what_ended_while_no_engine_was_there_to_see_how_is_lost(
        self, noticed: bool, api: Api, tmp_path: Path
    ) -> None:
        """Where its shim is gone, too, one that keeps containers alive says 255 of it, as seen with dockerd 20.10."""
        handle = self.away(api, tmp_path / "log") if noticed else ContainerHandle(engine_of(api), "c", tmp_path / "log")
        cast("Any", handle)._engine.facts["LiveRestoreEnabled"] = True
        api.gone, api.started_again, api.state = False, True, {**ENDED, "ExitCode": 255}
        with pytest.raises(JobLost, match="restarted, and does not know how the container ended"):
            handle.poll()

    @pytest.mark.parametrize("live_restore", [True, False])
    def test_an_exit_status_of_255_that_the_engine_saw_is_the_programs_own(
        self, live_restore: bool, api: Api, tmp_path: Path
    ) -> None:
        handle = ContainerHandle(engine_of(api), "c", tmp_path / "log")
        cast("Any", handle)._engine.facts["LiveRestoreEnabled"] = live_restore
        api.state = {**ENDED, "ExitCode": 255}
        assert handle.poll() == Exit(255)

    def test_what_ran_on_and_fails_later_has_failed(self, api: Api, tmp_path: Path) -> None:
        handle = self.away(api, tmp_path / "log")
        api.gone = False
        assert handle.poll() is None
        api.state = ENDED
        assert handle.poll() == Exit(3)

    def test_after_two_minutes_it_is_abandoned(self, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        handle = self.away(api, tmp_path / "log")
        monkeypatch.setattr(container_handle, "WAIT_SECONDS", 0.0)
        with pytest.raises(JobLost, match="does not answer any more"):
            handle.poll()

    def test_it_is_asked_once_a_second(self, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        handle = self.away(api, tmp_path / "log")
        monkeypatch.setattr(container_handle, "ASK_SECONDS", 3600.0)
        before = api.asked
        assert handle.poll() is None
        assert api.asked == before

    def test_the_watch_says_so_and_takes_nothing_for_a_hang(
        self, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        handle = self.away(api, tmp_path / "log")
        said: list[str] = []

        def say(text: str) -> None:
            said.append(text)
            api.gone = False

        polls = iter([None, None, None, None])
        poll = handle.poll

        def later() -> Exit | None:
            if next(polls, "over"):
                api.state = {**ENDED, "ExitCode": 0}
            return poll()

        handle.poll = later  # type: ignore[method-assign]
        executor = cast("Any", SimpleNamespace(start=lambda _: handle))
        watch = Watch(RunFolder(tmp_path), executor, lambda _: None, None, say=say)
        seen: list[bool] = []
        monkeypatch.setattr(HangWatch, "find", lambda *_: seen.append(handle.unanswered))
        limits = Limits.fixed(dict.fromkeys(LIMITS, 3600.0))
        assert watch.execute(Job(("vpoc",), {}, tmp_path, tmp_path / "log.txt"), 60, limits) == Exit(0)
        assert said[0] == "the Docker engine does not answer; it is waited for, 120 s at most"
        assert said[1].startswith("the Docker engine answers again after ")
        assert seen
        assert not any(seen)

    def test_a_start_waits_for_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("harness.run.watch.engine_watch.AGAIN_SECONDS", 0.0)
        api = Api(ENDED)
        answers = iter([EngineSilent("away"), EngineSilent("away"), None])

        def start(_: Job) -> ContainerHandle:
            if error := next(answers):
                raise error
            return ContainerHandle(engine_of(api), "c", tmp_path / "log")

        said: list[str] = []
        executor = cast("Any", SimpleNamespace(start=start))
        watch = Watch(RunFolder(tmp_path), executor, lambda _: None, None, say=said.append)
        assert watch.execute(Job(("vpoc",), {}, tmp_path, tmp_path / "log.txt"), 60) == Exit(3)
        assert said == ["the Docker engine does not answer; it is waited for, 120 s at most"]


def test_an_image_with_a_place_that_can_be_written_to_and_stays_is_refused(tmp_path: Path) -> None:
    api = Api(ENDED)
    api.volumes = {"/kept": {}, "/a\nb": {}}
    container = Container("image", 1000, 1000, str(tmp_path))
    watch = Watch(RunFolder(tmp_path), DockerExecutor(engine_of(api), tmp_path), lambda _: None, None)
    assert watch.execute(Job(("vpoc",), {}, tmp_path, tmp_path / "log.txt", container), 60) is None
    assert watch.stopped_by == "start"
    assert watch.stop_detail.startswith(r"vpoc could not be started: its image declares volumes (/a\nb, /kept), which")


def test_that_of_an_image_too_much_is_reported_is_no_silence_of_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tell(_: str) -> None:
        raise TooLargeAnswerError("image large has labels")

    api = Api(ENDED)
    monkeypatch.setattr(api, "inspect_image", tell)
    job = Job(("vpoc",), {}, tmp_path, tmp_path / "log.txt", Container("image", 1000, 1000, str(tmp_path)))
    with pytest.raises(OSError, match="image large has labels"):
        DockerExecutor(engine_of(api), tmp_path).start(job)


@pytest.mark.parametrize(
    ("refusals", "of_empty", "ended"),
    [
        pytest.param(2, False, OSError, id="of-this-image-alone"),
        pytest.param(2, True, JobLost, id="of-every-image"),
        pytest.param(1, False, None, id="once"),
    ],
)
def test_what_the_engine_refuses_of_this_image_alone_is_the_fault_of_the_image(
    refusals: int, of_empty: bool, ended: type[Exception] | None, tmp_path: Path
) -> None:
    """Not by the engine's words, which are others in each version, and may repeat what the image says."""
    api, begun, removed = Api(RUNNING), list[tuple[str, str]](), list[str]()

    def create(*, image: str, entrypoint: list[str], **_: object) -> Any:
        def start() -> None:
            if of_empty or (image == "image" and begun.count(("image", "vpoc")) <= refusals):
                raise APIError("not a directory")

        begun.append((image, entrypoint[0]))
        return SimpleNamespace(id=image, start=start, remove=lambda **_: removed.append(image))

    client = SimpleNamespace(
        api=SimpleNamespace(
            **{name: getattr(api, name) for name in ("inspect_image", "logs", "seen_in")},
            import_image_from_data=lambda _: '{"status":"empty"}\r\n',
            remove_image=lambda name, **_: removed.append(f"image {name}"),
        ),
        containers=SimpleNamespace(create=create),
    )
    executor = DockerExecutor(cast("Engine", SimpleNamespace(client=client, brief=api)), tmp_path)
    job = Job(("vpoc",), {}, tmp_path, tmp_path / "log.txt", Container("image", 0, 0, str(tmp_path)))
    if ended:
        with pytest.raises(ended, match="not a directory"):
            executor.start(job)
    else:
        executor.start(job)
    again = [] if of_empty else [("image", "vpoc")]
    # Each image is first looked at in a container that is not started.
    looked_at = [("image", NO_PROGRAM), ("empty", NO_PROGRAM)]
    assert begun == [looked_at[0], ("image", "vpoc"), looked_at[1], ("empty", NO_PROGRAM), *again]
    ended_by_removal = [] if of_empty or not ended else ["image"]
    assert removed == ["image", "image", "empty", "empty", "image empty", *ended_by_removal]


def test_an_engine_that_imports_in_other_words_decides_nothing_about_the_image(tmp_path: Path) -> None:
    def create(**_: object) -> Any:
        def start() -> None:
            raise APIError("not a directory")

        return SimpleNamespace(id="a", start=start, remove=lambda **_: None)

    real = Api(RUNNING)
    names = {name: getattr(real, name) for name in ("inspect_image", "logs", "seen_in")}
    api = SimpleNamespace(**names, import_image_from_data=lambda _: "{}")
    client = SimpleNamespace(api=api, containers=SimpleNamespace(create=create))
    executor = DockerExecutor(cast("Engine", SimpleNamespace(client=client, brief=Api(RUNNING))), tmp_path)
    job = Job(("vpoc",), {}, tmp_path, tmp_path / "log.txt", Container("image", 0, 0, str(tmp_path)))
    with pytest.raises(JobLost, match="not a directory"):
        executor.start(job)


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (
            {"/etc/passwd": (PIPE, 0)},
            "/etc/passwd of its image is something else, which .*; put a file there in the image",
        ),
        # As of images made with Nix.
        (
            {"/etc": (FOLDER_MODE, 10), "/etc/passwd": (LINK, 60)},
            "/etc/passwd of its image is a link, which .*; put a file there .*`RUN cp .* /etc/passwd`",
        ),
        (
            {"/etc": (FOLDER_MODE, 10), "/etc/passwd": (0, 100), "/etc/group": (0, 2 << 20)},
            "/etc/group .* larger than any",
        ),
        ({"/etc": (LINK, 4)}, "/etc of its image is a link, which .*; put a folder there"),
        ({"/work": (LINK, 4)}, "/work of its image is a link, which .*; put a folder there"),
        ({"/data": (LINK, 4)}, "/data of its image is a link, which .*; put a folder there"),
        (
            {"/data": (FOLDER_MODE, 4), "/data/merged.csv": (LINK, 4)},
            "/data/merged.csv of its image is a link, which .*; put a folder there",
        ),
        ({"/etc": (FOLDER_MODE, 10), "/etc/passwd": (0, 100)}, None),
    ],
)
def test_what_an_engine_would_read_without_end_or_follow_is_not_started(
    seen: dict[str, tuple[int, int]], why: str | None, tmp_path: Path
) -> None:
    """It would hold the container for good, and seem to be silent itself, or have root make files in the work folder.

    The engine makes mount points when it is asked what is in a container, too: it is asked of one that has none.
    """
    api, done, mounts = Api(RUNNING), list[str](), list[Any]()
    api.seen = seen
    made = SimpleNamespace(id="c", start=lambda: done.append("start"), remove=lambda **_: done.append("remove"))

    def create(**options: Any) -> Any:
        mounts.append(options.get("mounts"))
        return made

    client = SimpleNamespace(api=api, containers=SimpleNamespace(create=create))
    executor = DockerExecutor(cast("Engine", SimpleNamespace(client=client, brief=api)), tmp_path)
    container = Container("image", 0, 0, str(tmp_path), ("/home/me/merged.csv",))
    job = Job(("vpoc",), {}, tmp_path, tmp_path / "log.txt", container)
    if why:
        with pytest.raises(OSError, match=why):
            executor.start(job)
    else:
        executor.start(job)
    assert done == (["remove"] if why else ["remove", "start"])
    assert mounts[0] is None


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
    api.listed = [container_of(name, folder, state) for name, (folder, state) in listed.items()]
    DockerExecutor(engine_of(api), runs).remove_leftovers(lambda run_id: run_id == "recorded" or None)
    assert api.removed == ["recorded", "gone"]


def container_of(name: str, folder: Path, state: str) -> dict[str, Any]:
    return {"Id": name, "ImageID": "image", "Labels": {LABEL: str(folder)}, "State": state}


def test_a_container_that_has_the_label_of_its_image_is_somebody_elses_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tell(_: str) -> None:
        raise ImageNotFound("no such image")

    api = Api(ENDED)
    api.listed = [container_of("by-hand", tmp_path / "gone", "exited")]
    executor = DockerExecutor(engine_of(api), tmp_path)
    api.labels = {LABEL: str(tmp_path / "gone")}
    executor.remove_leftovers(lambda _: None)
    with monkeypatch.context() as patch:
        patch.setattr(api, "inspect_image", tell)
        executor.remove_leftovers(lambda _: None)
    assert api.removed == []
    # That of a run has one of its own.
    api.labels = {LABEL: "/another"}
    executor.remove_leftovers(lambda _: None)
    assert api.removed == ["by-hand"]


class TestOutput:
    """`kept` is what the engine still has of it at the end, `followed` what came while it ran."""

    @pytest.fixture
    def finished(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., bytes]:
        monkeypatch.setattr(container_handle, "NEVER_ROTATED_BYTES", 0)
        monkeypatch.setattr(container_handle, "LOG_SECONDS", 60)
        monkeypatch.setattr(container_handle, "COMPARED_BYTES", 4)

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
        monkeypatch.setattr(container_handle, "LOG_SECONDS", 0.2)
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


@pytest.mark.parametrize(("cores", "ranks", "expected"), [(2, 1, 1024), (16, 1, 1024), (17, 1, 1088), (64, 8, 32768)])
def test_a_container_has_room_for_the_threads_of_every_rank(cores: int, ranks: int, expected: int) -> None:
    assert pids_limit(cores, ranks) == expected


def test_a_container_is_not_given_the_proxies_of_the_docker_command(tmp_path: Path) -> None:
    given: dict[str, Any] = {}

    def create(**arguments: Any) -> None:
        given.update(arguments)
        raise Unreachable

    client = SimpleNamespace(api=Api(RUNNING), containers=SimpleNamespace(create=create))
    executor = DockerExecutor(cast("Engine", SimpleNamespace(client=client)), tmp_path)
    container = Container("image", 0, 0, str(tmp_path))
    with pytest.raises(JobLost):
        executor.start(Job(("true",), {}, tmp_path, tmp_path / "log.txt", container))
    # The library's own default adds them, with the password that an address may hold.
    assert given["use_config_proxy"] is False


def test_no_program_of_the_image_is_started_beside_the_run() -> None:
    container = Container("image", 0, 0, "/work")
    assert container.create_arguments()["healthcheck"] == {"test": ["NONE"]}
    assert "--no-healthcheck" in container.command_line({}, ()).split()


def test_a_run_leaves_no_core_dump_which_the_host_may_keep_outside_of_its_folder() -> None:
    container = Container("image", 0, 0, "/work")
    assert {"Name": "core", "Soft": 0, "Hard": 0} in container.create_arguments()["ulimits"]
    assert "--ulimit core=0:0 " in container.command_line({}, ())


def test_where_the_hosts_memory_runs_out_a_run_is_killed_before_anything_else() -> None:
    container = Container("image", 0, 0, "/work")
    assert container.create_arguments()["oom_score_adj"] == 1000
    assert "--oom-score-adj 1000 " in container.command_line({}, ())
