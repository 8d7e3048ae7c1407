"""Tests that the tests of images leave nothing in the user's engine, on a stand-in for the engine."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from docker.errors import ImageNotFound

from tests.images import made_images
from tests.images.made_images import removed_at_the_end

if TYPE_CHECKING:
    from harness.host.engine import Engine


class Api:
    """A stand-in for an engine's API: its images, as names by id, and its build caches."""

    base_url, api_version = "http://engine", "1.41"

    def __init__(self) -> None:
        self.names = {"theirs": ["vpoc:cpu-plain", "base:1"], "pulled": ["registry.example/x@sha256:1"], "old": []}
        self.caches = ["their-cache"]

    def images(self) -> list[dict[str, Any]]:
        tags = {name: [one for one in names if "@" not in one] for name, names in self.names.items()}
        return [
            {"Id": name, "RepoTags": tags[name] or None, "RepoDigests": [one for one in names if "@" in one]}
            for name, names in list(self.names.items())
        ]

    def remove_image(self, name: str, *, force: bool) -> None:
        if self.names.pop(name, None) is None:
            found = next((names for names in self.names.values() if name in names), None)
            if found is None:
                raise ImageNotFound(name)
            found.remove(name)

    def tag(self, image: str, repository: str, tag: str) -> None:
        self.names[image].append(f"{repository}:{tag}")

    def get(self, _: str, params: dict[str, str]) -> Any:
        assert params == {"type": "build-cache"}
        answer = {"BuildCache": [{"ID": one} for one in self.caches]}
        return SimpleNamespace(raise_for_status=lambda: None, json=lambda: answer)


def test_what_was_there_stays_and_has_its_tags_again(monkeypatch: pytest.MonkeyPatch) -> None:
    api, own, commands = Api(), {"old"}, list[list[str]]()
    before = {name: list(names) for name, names in api.names.items()}
    monkeypatch.setattr(made_images, "own_ids", lambda: frozenset(own))
    monkeypatch.setattr(made_images, "SERVED", {"127.0.0.1:5001"})
    monkeypatch.setattr(made_images, "subprocess", SimpleNamespace(run=lambda words, **_: commands.append(words)))
    builder = SimpleNamespace(program="docker", prune=("builder", "prune"), variables={})
    engine = cast("Engine", SimpleNamespace(client=SimpleNamespace(api=api), builder=builder))
    with removed_at_the_end(engine):
        own.add("mine")
        api.names["theirs"].remove("vpoc:cpu-plain")
        api.names["mine"] = ["vpoc:cpu-plain", "vpoc:cpu-new", "127.0.0.1:5001/vpoc:cpu-plain"]
        api.names["pulled"] += ["127.0.0.1:5001/me/vpoc@sha256:2"]
        # Another process builds an image while these tests run.
        api.names["others"] = ["vpoc:cpu-other"]
        api.caches += ["fresh"]
    assert {name: sorted(names) for name, names in api.names.items()} == {
        **{name: sorted(names) for name, names in before.items()},
        "others": ["vpoc:cpu-other"],
    }
    assert [words[-1] for words in commands] == ["id=^(fresh)$"]
