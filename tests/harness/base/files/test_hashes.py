"""Tests of the hashes of values and folders."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.base.files.hashes import json_hash, tree_hash

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@pytest.mark.slow
@given(st.dictionaries(st.text(), JSON))
def test_the_hash_does_not_depend_on_the_order_of_keys(value: dict[str, object]) -> None:
    assert json_hash(value) == json_hash(dict(reversed(list(value.items()))))
    assert json_hash(value) != json_hash({**value, "one more key": 1, "and another": 2})


def test_the_hash_of_a_tree_sees_content_and_names(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    before = tree_hash(tmp_path, ["*.py"])
    (tmp_path / "notes.txt").write_text("not asked for")
    assert tree_hash(tmp_path, ["*.py"]) == before
    (tmp_path / "a.py").write_text("2")
    changed = tree_hash(tmp_path, ["*.py"])
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert len({before, changed, tree_hash(tmp_path, ["*.py"])}) == 3
