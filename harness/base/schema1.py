"""Reads files of schema 1, whose keys had other names, as files of schema 2."""

import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

KEYS = {
    "drill": "injected_fault",
    "standstill": "longest_stall",
    "warm_up": "lookback",
    "earns_tags": "qualifies_for_promotion",
}
BEGINS = {"going-on": "resumed"}
DIAGNOSES = {"drill": "injected-fault", "sick-gpu": "unhealthy-gpu"}
# Keys whose value is a diagnosis, or the class of an explanation.
NAMED_BY_DIAGNOSIS = ("diagnosis", "class")

_SCHEMA_1 = re.compile(rb'"schema":\s*1\b')


def upgraded(content: bytes) -> bytes:
    """Return a JSON file as schema 2; any other schema, text that is not JSON, and too deep nesting stay unchanged."""
    if not _SCHEMA_1.search(content):
        return content
    try:
        return json.dumps(upgraded_values(from_json(content))).encode()
    except ValueError:
        return content


def upgraded_values(value: Any) -> Any:
    """Return values that were read from a file, with the keys of schema 2."""
    if isinstance(value, list):
        return [upgraded_values(one) for one in value]
    if not isinstance(value, dict):
        return value
    values = {KEYS.get(key, key): upgraded_values(one) for key, one in value.items()}
    if values.get("schema") == 1:
        values["schema"] = 2
    for key in NAMED_BY_DIAGNOSIS:
        if isinstance(named := values.get(key), str):
            values[key] = DIAGNOSES.get(named, named)
    if isinstance(begins := values.get("begins"), list):
        values["begins"] = [BEGINS.get(begin, begin) for begin in begins]
    return values


def former_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with the keys of schema 1, to find what was hashed under these."""
    former = {name: before for before, name in KEYS.items()}
    return {former.get(name, name): value for name, value in values.items()}
