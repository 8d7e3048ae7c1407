"""Tests of how a build gets its base image, on a stand-in for the engine; `tests/images` builds for real."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, NoReturn, cast

import pytest
from docker.errors import APIError

from harness.environments.docker import base_image
from harness.environments.docker.base_image import NoBaseImageError, digest_of_base, ensure_base
from harness.environments.docker.images import Image
from harness.matrix.cells import Matrix
from harness.matrix.stacks import Stack

if TYPE_CHECKING:
    from harness.host.engine import Engine

NO_HOST = 'Get "https://registry-1.docker.io/v2/": dial tcp: lookup registry-1.docker.io on 127.0.0.53:53: no such host'


class Pulls:
    """A stand-in for an engine that has no image and can pull none; `asked` lists the images that it tried to pull."""

    def __init__(self, said: str) -> None:
        self.said = said
        self.asked: list[str] = []
        self.client_without_timeout = SimpleNamespace(api=self)

    def pull(self, name: str, *_: object, **__: object) -> NoReturn:
        """Refuse to pull an image."""
        self.asked.append(name)
        raise APIError("500 Server Error", explanation=self.said)

    def refused(self, stack: Stack, base: str) -> str:
        """Return the message with which the base of a stack is refused."""
        with pytest.raises(NoBaseImageError) as caught:
            ensure_base(cast("Engine", self), stack.model_copy(update={"base": base}))
        return str(caught.value)


@pytest.fixture(autouse=True)
def _holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_image, "find", lambda *_: None)


def test_one_try_decides_for_all_bases_of_a_registry_that_does_not_answer(matrix: Matrix) -> None:
    stack, engine = matrix.stacks["cpu"], Pulls(NO_HOST)
    first = engine.refused(stack, "python:3.11-slim-bookworm")
    assert first.startswith(
        "base image python:3.11-slim-bookworm cannot be pulled: docker.io does not answer the Docker engine "
        f"({NO_HOST}): no network, or a firewall or proxy is in the way; run cells with --executor process"
    )
    assert engine.refused(stack, "python:3.11-slim-bookworm") == first
    assert "base image python:3.12-slim-bookworm cannot be pulled: docker.io" in engine.refused(
        stack, "python:3.12-slim-bookworm"
    )
    assert engine.asked == ["python"]
    engine.refused(stack, "registry.example/python:3.11")
    assert engine.asked == ["python", "registry.example/python"]


@pytest.mark.parametrize("said", ["unexpected EOF", "read tcp 10.0.0.2:4711->10.0.0.1:443: connection reset by peer"])
def test_a_pull_that_breaks_off_decides_for_itself_alone(matrix: Matrix, said: str) -> None:
    stack, engine = matrix.stacks["cpu"], Pulls(said)
    for _ in range(2):
        assert f"cannot be pulled: {said}; run" in engine.refused(stack, "python:3.11")
    assert len(engine.asked) == 2


def test_a_registry_that_lacks_one_base_is_asked_for_another(matrix: Matrix) -> None:
    stack, engine = matrix.stacks["cpu"], Pulls("manifest for python:3.11 not found: manifest unknown")
    assert "cannot be pulled: manifest for python:3.11 not found" in engine.refused(stack, "python:3.11")
    engine.refused(stack, "python:3.12")
    assert len(engine.asked) == 2


@pytest.mark.parametrize(
    ("base", "digest"),
    [
        ("python:3.11-slim-bookworm", "sha256:b"),
        ("docker.io/library/python:3.11-slim-bookworm", "sha256:b"),
        ("mirror.example/python:3.11-slim-bookworm", "sha256:a"),
        ("docker.io/me/python:3.11-slim-bookworm", "sha256:c"),
        ("other.example/python:3.11-slim-bookworm", None),
    ],
)
def test_a_base_has_the_digest_of_its_own_registry(base: str, digest: str | None, matrix: Matrix) -> None:
    names = ("mirror.example/python@sha256:a", "python@sha256:b", "me/python@sha256:c")
    image = Image("sha256:1", {}, (), 1, digests=names)
    assert digest_of_base(image, matrix.stacks["cpu"].model_copy(update={"base": base})) == digest
