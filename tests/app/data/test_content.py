"""What a file holds, read while the rest is imported."""

import subprocess
import sys

import pytest

from vpoc.data import content
from vpoc.data.content import content_ahead, read_content
from vpoc.data.load import load_bars
from vpoc.errors import UserError
from vpoc.files import sha256_file


def test_a_plain_file_is_kept_as_bars_alone(merged):
    held = read_content(merged)
    assert held.plain is not None
    assert held.sha256 == sha256_file(merged)
    assert held.content == b""


@pytest.mark.parametrize("changed", [lambda text: text.replace(",", ", "), lambda text: text.rstrip("\n")])
def test_any_other_is_kept_as_it_is(merged, tmp_path, changed):
    path = tmp_path / "other.csv"
    path.write_text(changed(merged.read_text()))
    held = read_content(path)
    assert (held.plain, held.content) == (None, path.read_bytes())


def test_bars_of_what_was_read_before_are_those_of_the_file(merged, summer):
    ahead = content_ahead(summer)
    assert load_bars(summer, ahead).sha256 == load_bars(summer).sha256 != load_bars(merged).sha256


def test_what_cannot_be_read_is_told_when_it_is_asked_for(tmp_path):
    ahead = content_ahead(tmp_path / "none.csv")
    assert ahead is not None
    with pytest.raises(UserError, match=r"none\.csv"):
        ahead.result()


def test_a_large_file_is_not_read_as_a_whole(merged, monkeypatch):
    monkeypatch.setattr(content, "LARGE_BYTES", merged.stat().st_size - 1)
    assert content_ahead(merged) is None


def test_it_needs_no_polars():
    code = "import sys, vpoc.data.content; sys.exit('polars' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
