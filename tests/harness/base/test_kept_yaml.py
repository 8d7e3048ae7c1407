import json
from functools import partial
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from harness.base import kept_yaml
from harness.base.errors import UserError
from harness.base.kept_yaml import LONG, keep, kept
from harness.base.paths import CHECKOUT
from harness.matrix import load
from harness.matrix.load import load_matrix

LONG_TEXT = "a: 1\n" + "# a comment\n" * LONG


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where files that `load_matrix` reads are kept."""
    folder = tmp_path / "kept"
    folder.mkdir()
    monkeypatch.setattr(load, "kept", partial(kept, folder=folder))
    monkeypatch.setattr(load, "keep", partial(keep, folder=folder))
    return folder


def test_what_one_process_parsed_the_next_knows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = load_matrix(CHECKOUT / "matrix.yaml")
    assert len(list(folder.iterdir())) == 1
    monkeypatch.setattr(load, "_parsed", lambda *_: pytest.fail("parsed again"))
    assert load_matrix(CHECKOUT / "matrix.yaml") == parsed
    assert load_matrix(CHECKOUT / "matrix.yaml", "another:base") != parsed


@pytest.mark.parametrize("content", [b"", b"{", b"[[1, 2]]", b'{"a": 1}', b"null", b'{"stacks": 7}'])
def test_a_damaged_file_costs_time_and_nothing_else(folder: Path, content: bytes) -> None:
    parsed = load_matrix(CHECKOUT / "matrix.yaml")
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(content)
    assert load_matrix(CHECKOUT / "matrix.yaml") == parsed
    assert file.read_bytes() == whole


@pytest.mark.usefixtures("folder")
def test_a_mistake_is_told_with_its_line_after_the_sound_file_was_kept(tmp_path: Path) -> None:
    sound = (CHECKOUT / "matrix.yaml").read_text(encoding="utf-8")
    file = tmp_path / "matrix.yaml"
    file.write_text(sound, encoding="utf-8")
    load_matrix(file)
    file.write_text(f"{sound}\nsurprise: 1\n", encoding="utf-8")
    for _ in range(2):
        with pytest.raises(UserError, match=rf"matrix.yaml:{len(sound.splitlines()) + 2}: surprise: unknown key"):
            load_matrix(file)


def test_anchors_and_merges_are_kept_as_they_are_read(tmp_path: Path) -> None:
    text = f"a: &x {{p: 1, q: [0x1F, 1_000]}}\nb: {{<<: *x, r: 3.0}}\n{LONG_TEXT.replace('a:', 'c:')}"
    keep(text, YAML().load(text), tmp_path)
    assert kept(text, tmp_path) == {"a": {"p": 1, "q": [31, 1000]}, "b": {"p": 1, "q": [31, 1000], "r": 3.0}, "c": 1}


@pytest.mark.parametrize("held", [{1: "a"}, {"a": float("nan")}, {"a": (1, 2)}, {"a": {1}}, {"a": Path()}])
def test_what_json_tells_otherwise_is_not_kept(tmp_path: Path, held: object) -> None:
    keep(LONG_TEXT, held, tmp_path)
    assert kept(LONG_TEXT, tmp_path) is None


def test_short_files_are_not_kept(tmp_path: Path) -> None:
    keep(LONG_TEXT[: LONG - 1], {"a": 1}, tmp_path)
    assert not list(tmp_path.iterdir())


def test_another_release_of_the_parser_parses_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(LONG_TEXT, {"a": 1}, tmp_path)
    assert kept(LONG_TEXT, tmp_path) == {"a": 1}
    (tmp_path / "lock").write_text("ruamel.yaml==99", encoding="utf-8")
    monkeypatch.setattr(kept_yaml, "LOCK", tmp_path / "lock")
    assert kept(LONG_TEXT, tmp_path) is None


def test_no_folder_is_made_to_keep_them(tmp_path: Path) -> None:
    keep(LONG_TEXT, {"a": 1}, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_where_nothing_can_be_kept_files_are_parsed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text(json.dumps(1), encoding="utf-8")
    keep(LONG_TEXT, {"a": 1}, tmp_path / "file")
    assert kept(LONG_TEXT, tmp_path / "file") is None
