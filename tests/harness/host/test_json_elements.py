"""Tests that the elements of a list are found, whatever strings they hold and wherever the bytes are cut."""

import json
from itertools import product

import pytest

from harness.host.json_elements import elements

LISTS: tuple[list[object], ...] = (
    [],
    [{"a": "\\", "b": ["]", "}", ",", '"', '\\"']}, {}, [], [[1, 2], {"c": {"d": "\n\u00e9"}}], "x,y", 1],
    [{"Labels": {"a": '[{"Id":"sha256:0"},' * 3}}, {"Id": "b"}],
)


def test_they_are_those_of_the_list() -> None:
    for listed, size, indent in product(LISTS, (1, 2, 3, 7, 1000), (None, 1)):
        text = json.dumps(listed, indent=indent).encode()
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert [json.loads(one) for one in elements(pieces, 1000)] == listed, size


@pytest.mark.parametrize("size", [1, 3, 50, 1000])
def test_of_a_large_one_only_the_beginning_is_kept(size: int) -> None:
    text = json.dumps(["x" * 200, "y" * 8, ["z" * 300], 5], separators=(",", ":")).encode()
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    found = list(elements(pieces, 10))
    assert found == [b'"' + b"x" * 10, b'"yyyyyyyy"', b'["' + b"z" * 9, b"5"]
