"""A stand-in for a Docker engine."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

from requests.exceptions import ConnectionError as Unreachable

from harness.host.engine import Engine

RUNNING = {"Pid": 1, "Status": "running", "Running": True, "ExitCode": 0, "OOMKilled": False}
ENDED = {"Pid": 0, "Status": "exited", "Running": False, "ExitCode": 3, "OOMKilled": False}


class Api:
    """A stand-in for docker-py's client of an engine, with scripted answers.

    - `state`: the state of the container.
    - `stopping`: the error with which stopping the container fails; None: it succeeds.
    - `unreachable`: the engine cannot be reached, and raises `unreachable_error`.
    - `shutting_down`: the engine is shutting down.
    - `restarted`: the engine was restarted, so it has no event for the end of the container.
    """

    def __init__(self, state: dict[str, Any], stopping: Exception | None = None) -> None:
        self.state = state
        self.stopping = stopping
        self.unreachable = self.shutting_down = self.restarted = False
        self.unreachable_error: Exception = Unreachable()
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
        if self.unreachable:
            raise self.unreachable_error
        return {"State": self.state}

    def stop(self, _: str, timeout: int) -> None:
        if self.stopping:
            self.unreachable = isinstance(self.stopping, Unreachable)
            raise self.stopping

    def events(self, *, filters: dict[str, str], **_: object) -> Iterator[dict[str, str]]:
        assert filters == {"container": "c", "event": "die"}
        return iter([] if self.restarted else [{"status": "die"}])

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
    return cast(
        "Engine", SimpleNamespace(client=client, api_with_timeout=api, facts={}, answers=lambda: not api.shutting_down)
    )
