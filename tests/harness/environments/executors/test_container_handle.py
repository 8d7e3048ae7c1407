"""Tests of a container whose engine goes away or whose disk is full, on a stand-in for the engine."""

import resource
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from docker.errors import APIError, NotFound
from requests.exceptions import ConnectionError as Unreachable
from requests.exceptions import ReadTimeout

from harness.environments.executors import container_handle
from harness.environments.executors.bounded_log import HEAD_BYTES, MAY_LACK_SOME, TAIL_BYTES
from harness.environments.executors.container_handle import ContainerHandle
from harness.environments.executors.job import EngineSilent, Exit, Job, JobLost
from harness.evidence.files.run_folder import RunFolder
from harness.run.watch.confirm import HangWatch
from harness.run.watch.limits import LIMITS, Limits
from harness.run.watch.watch import Watch
from tests.harness.environments.executors.engine_stand_in import ENDED, RUNNING, Api, engine_of

NOTE = f"\n{MAY_LACK_SOME}\n".encode()


@pytest.mark.parametrize(
    ("error", "ended"),
    [(Unreachable(), True), (NotFound("no such container"), True), (APIError("did not receive an exit event"), False)],
)
def test_only_what_the_engine_itself_cannot_kill_is_unkillable(error: Exception, ended: bool, tmp_path: Path) -> None:
    assert ContainerHandle(engine_of(Api(RUNNING, error)), "c", tmp_path / "log").stop(1) is ended


def test_a_link_in_the_place_of_the_log_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        ContainerHandle(engine_of(Api(RUNNING)), "c", tmp_path / "log")
    assert not (tmp_path / "elsewhere").exists()


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
    """The harness waits for the engine; when the engine answers again, it shows what happened to the container."""

    @pytest.fixture(autouse=True)
    def _at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(container_handle, "ASK_SECONDS", 0.0)

    @pytest.fixture
    def api(self) -> Api:
        return Api(RUNNING)

    def away(self, api: Api, log: Path, silence: Exception | None = None) -> ContainerHandle:
        """Return the handle of a container whose engine has just gone, or is silent."""
        handle = ContainerHandle(engine_of(api), "c", log)
        assert (handle.poll(), handle.unanswered) == (None, False)
        cast("Any", handle)._copying.join()
        api.unreachable, api.unreachable_error = True, silence or Unreachable()
        assert (handle.poll(), handle.unanswered) == (None, True)
        return handle

    def test_what_runs_on_is_followed_to_its_end_and_its_log_is_whole(
        self, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        handle = self.away(api, tmp_path / "log")
        api.unreachable = False
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
        """The stream of the log ends in order with the engine, although the container runs on."""
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
        api.unreachable = False

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
        api.unreachable, api.state = False, {**ENDED, "ExitCode": code}
        with pytest.raises(JobLost, match="ended or restarted, and ended the container"):
            handle.poll()
        assert handle.stop(1)
        assert api.removed == ["c"]

    def test_what_was_ended_by_a_restart_that_nobody_noticed_is_lost(self, api: Api, tmp_path: Path) -> None:
        handle = ContainerHandle(engine_of(api), "c", tmp_path / "log")
        assert handle.poll() is None
        api.restarted, api.state = True, {**ENDED, "ExitCode": 143}
        with pytest.raises(JobLost, match="ended or restarted, and ended the container"):
            handle.poll()

    def test_what_one_that_is_ending_ended_is_lost(self, api: Api, tmp_path: Path) -> None:
        """An engine that is ending still answers on open connections."""
        handle = ContainerHandle(engine_of(api), "c", tmp_path / "log")
        api.shutting_down, api.state = True, {**ENDED, "ExitCode": 143}
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
        api.unreachable, api.state = False, {**ENDED, **state}
        assert handle.poll() == expected

    def test_an_engine_that_was_only_silent_ends_nothing(self, api: Api, tmp_path: Path) -> None:
        handle = self.away(api, tmp_path / "log", ReadTimeout())
        api.unreachable, api.state = False, {**ENDED, "ExitCode": 137}
        assert handle.poll() == Exit(-9)

    def test_one_that_keeps_containers_alive_ends_none(self, api: Api, tmp_path: Path) -> None:
        handle = self.away(api, tmp_path / "log")
        cast("Any", handle)._engine.facts["LiveRestoreEnabled"] = True
        api.unreachable, api.state = False, ENDED
        assert handle.poll() == Exit(3)

    @pytest.mark.parametrize("noticed", [True, False])
    def test_what_ended_while_no_engine_was_there_to_see_how_is_lost(
        self, noticed: bool, api: Api, tmp_path: Path
    ) -> None:
        """If the container's shim is gone, too, an engine with live restore reports 255 (seen with dockerd 20.10)."""
        handle = self.away(api, tmp_path / "log") if noticed else ContainerHandle(engine_of(api), "c", tmp_path / "log")
        cast("Any", handle)._engine.facts["LiveRestoreEnabled"] = True
        api.unreachable, api.restarted, api.state = False, True, {**ENDED, "ExitCode": 255}
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
        api.unreachable = False
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
            api.unreachable = False

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
        assert said[0] == "the Docker engine does not answer; still waiting, 120 s at most"
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
        assert said == ["the Docker engine does not answer; still waiting, 120 s at most"]


@pytest.mark.parametrize("ask", [ContainerHandle.poll, lambda handle: handle.stop(1)])
def test_on_a_full_disk_a_container_is_removed_all_the_same(
    ask: Callable[[ContainerHandle], object], tmp_path: Path
) -> None:
    api = Api(ENDED)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # No file can grow.
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        handle = ContainerHandle(engine_of(api), "c", tmp_path / "log")
        assert ask(handle)
        assert handle.poll() == Exit(3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert api.removed == ["c"]


class TestOutput:
    """`followed`: the output that came while the container ran; `kept`: what the engine still has of it at the end."""

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
                if not stream:
                    return kept[-tail]
                return followed if follow else iter(kept[-tail:])

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

    def test_of_very_many_lines_that_broke_off_the_last_are_read(
        self, finished: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(container_handle, "LAST_LINES", 5)
        text = finished(iter([b"\n"]), [b"\n"] * 99 + [b"the end\n"])
        assert text == b"\n... an unknown number of bytes left out, which the engine did not keep ...\n\n\n\nthe end\n"

    def test_much_of_it_is_bounded(self, finished: Callable[..., bytes]) -> None:
        chunks = [b"%01023d\n" % number for number in range(20 << 10)]
        text = finished(iter(chunks), chunks)
        assert len(text) < HEAD_BYTES + TAIL_BYTES + 100
        assert text.startswith(chunks[0])
        assert text.endswith(chunks[-1])
        assert f"... {(20 << 20) - HEAD_BYTES - TAIL_BYTES:,} bytes left out ...\n".encode() in text
