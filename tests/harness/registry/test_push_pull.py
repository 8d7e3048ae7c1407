import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.base.errors import NoAnswerError, UserError
from harness.environments.docker.images import PREFIX, Image, cell_tag
from harness.matrix.cells import Matrix
from harness.registry import push_pull

DIGEST = f"sha256:{'d' * 64}"


def test_an_image_is_taken_by_the_digest_that_was_pulled_wherever_its_tag_leads_by_then(
    matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell, tags = matrix.cells["cpu-plain"], list[tuple[str, ...]]()
    pulled, other = (Image(id=one, labels={f"{PREFIX}.cell": cell.id}, layers=(), size=1) for one in ("a", "b"))
    held = {f"r/vpoc@{DIGEST}": pulled, "r/vpoc:cpu-plain": other}
    monkeypatch.setattr(push_pull, "_bring", lambda *_: DIGEST)
    monkeypatch.setattr(push_pull, "find", lambda _, reference: held.get(reference))
    engine: Any = SimpleNamespace(client=SimpleNamespace(api=SimpleNamespace(tag=lambda *words: tags.append(words))))
    assert push_pull.pull(engine, cell, "r", None, lambda _: None) is pulled
    assert tags == [("a", *cell_tag(cell).rsplit(":", 1))]


def test_a_registry_that_keeps_the_engine_waiting_for_a_name_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    manifest = SimpleNamespace(digest=DIGEST, parsed={})
    monkeypatch.setattr(push_pull, "Relay", lambda *_: SimpleNamespace(manifest=lambda _: manifest))
    monkeypatch.setattr(push_pull, "LAYERS", tmp_path)
    monkeypatch.setattr(push_pull, "find", lambda *_: object())
    monkeypatch.setattr(push_pull, "NAME_SECONDS", 0.1)
    api = SimpleNamespace(pull=lambda *_, **__: iter(over.wait, False))
    engine: Any = SimpleNamespace(
        client_without_timeout=SimpleNamespace(api=api), while_disk_has_room=lambda events, _: events
    )
    with pytest.raises(NoAnswerError, match="keeps the engine waiting"):
        push_pull._bring(engine, "r/vpoc", DIGEST, "pulling it", lambda _: None)
    over.set()


def test_an_image_of_more_layers_than_any_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = SimpleNamespace(digest=DIGEST, parsed={"layers": [{}] * 1001})
    monkeypatch.setattr(push_pull, "Relay", lambda *_: SimpleNamespace(manifest=lambda _: manifest))
    engine: Any = None
    with pytest.raises(UserError, match="pulling it: it has 1,001 layers, more than any engine takes"):
        push_pull._bring(engine, "r/vpoc", DIGEST, "pulling it", lambda _: None)
