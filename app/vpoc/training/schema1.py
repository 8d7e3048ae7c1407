"""Model files and checkpoints as vpoc wrote them before schema 2: the same content, some keys by older names."""

from typing import Any


def as_schema2(document: dict[str, Any]) -> dict[str, Any]:
    """Return a checkpoint or a model file of schema 1 with the keys of schema 2; one of any other schema as it is."""
    if document.get("schema") != 1:
        return document
    renamed = {**document, "schema": 2}
    for part, names in {
        "identity": {"warm_up": "lookback"},
        "feature_options": {"warm_up": "lookback"},
        "history": {"drill": "injected_fault"},
    }.items():
        if part in document:
            renamed[part] = {names.get(name, name): value for name, value in document[part].items()}
    return renamed
