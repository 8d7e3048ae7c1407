"""Parsed bars that are kept: used for the very same content and nothing else, and never a wrong answer."""

import dataclasses

import numpy as np
import pytest

from vpoc.data import cache
from vpoc.data.bars import COLUMNS, Bars
from vpoc.data.cache import load_cached
from vpoc.data.load import load_bars
from vpoc.errors import UserError
from vpoc.features.build import build_features
from vpoc.features.feature_options import FeatureOptions
from vpoc.features.store import read_features, write_features


@pytest.fixture
def data(merged, tmp_path):
    """Two sessions."""
    path = tmp_path / "data.csv"
    path.write_text("".join(merged.read_text().splitlines(keepends=True)[: 1 + 2 * 138]))
    return path


@pytest.fixture
def parsed(monkeypatch):
    """How often a file was really parsed."""
    calls = []

    def counted(path):
        calls.append(path)
        return load_bars(path)

    monkeypatch.setattr(cache, "load_bars", counted)
    return calls


def same(found: Bars, wanted: Bars) -> bool:
    facts = [field.name for field in dataclasses.fields(Bars) if field.name not in COLUMNS]
    return all(getattr(found, name) == getattr(wanted, name) for name in facts) and all(
        one.dtype == other.dtype and one.tobytes() == other.tobytes()
        for one, other in ((getattr(found, name), getattr(wanted, name)) for name in COLUMNS)
    )


@pytest.mark.parametrize("what", ["merged", "summer"])
def test_the_same_content_is_parsed_once(request, tmp_path, parsed, what):
    path, kept = request.getfixturevalue(what), tmp_path / "new" / "c.parquet"
    first = load_cached(path, kept)
    again = load_cached(path, kept)
    assert len(parsed) == 1
    assert same(first, load_bars(path))
    assert same(again, first)


def test_the_name_of_the_file_does_not_matter_but_its_content(data, tmp_path, parsed):
    kept = tmp_path / "c.parquet"
    load_cached(data, kept)
    copy = tmp_path / "copy.csv"
    copy.write_bytes(data.read_bytes())
    assert same(load_cached(copy, kept), load_bars(copy))
    assert load_cached(copy, kept).path == copy
    assert len(parsed) == 1


@pytest.mark.parametrize("change", ["a digit", "a line more", "a line less", "duplicates"])
def test_other_content_is_parsed_and_kept(data, tmp_path, parsed, change):
    kept = tmp_path / "c.parquet"
    load_cached(data, kept)
    lines = data.read_text().splitlines(keepends=True)
    if change == "a digit":
        cells = lines[5].split(",")
        lines[5] = ",".join([*cells[:5], str(int(cells[5]) + 1), *cells[6:]])
    elif change == "a line more":
        lines.append(lines[-1].replace("T21:50", "T21:51"))
    elif change == "a line less":
        del lines[-1]
    else:
        lines.insert(5, lines[5])
    data.write_text("".join(lines))
    wanted = load_bars(data)
    assert same(load_cached(data, kept), wanted)
    assert len(parsed) == 2
    assert same(load_cached(data, kept), wanted)
    assert len(parsed) == 2


def test_what_load_bars_refuses_is_refused_though_there_is_a_cache(data, tmp_path):
    kept = tmp_path / "c.parquet"
    load_cached(data, kept)
    before = kept.read_bytes()
    data.write_bytes(data.read_bytes()[:-3])
    with pytest.raises(UserError, match="does not end with a newline"):
        load_cached(data, kept)
    assert kept.read_bytes() == before
    data.unlink()
    with pytest.raises(UserError, match="no such file"):
        load_cached(data, kept)


def test_several_symbols_odd_prices_and_missing_vix_are_kept(data, tmp_path, parsed):
    header, *lines = data.read_text().splitlines()
    lines = [f"{line},{'ESH8' if place < 100 else 'ESM8'}" for place, line in enumerate(lines)]
    cells = lines[200].split(",")
    lines[200] = ",".join([*cells[:5], str(10**12), *cells[6:]])
    data.write_text("\n".join([f"{header},symbol", *lines]) + "\n")
    kept = tmp_path / "c.parquet"
    first = load_cached(data, kept)
    again = load_cached(data, kept)
    assert len(parsed) == 1
    assert same(again, first)
    assert (again.symbols, again.volume.max()) == (("ESH8", "ESM8"), 10**12)
    assert np.isnan(again.vix).any()


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not a cache", b"PAR1" + bytes(100) + b"PAR1"])
def test_other_files_are_not_used(data, tmp_path, parsed, content):
    kept = tmp_path / "c.parquet"
    kept.write_bytes(content)
    assert same(load_cached(data, kept), load_bars(data))
    assert same(load_cached(data, kept), load_bars(data))
    assert len(parsed) == 1, "it was rebuilt"


def test_features_are_no_cache(data, merged, tmp_path, parsed):
    kept = tmp_path / "f.parquet"
    options = FeatureOptions(rows="session", lookback=20)
    write_features(kept, build_features(load_bars(merged), options))
    assert same(load_cached(data, kept), load_bars(data))
    with pytest.raises(UserError, match="not a file that `vpoc features` wrote"):
        read_features(kept)


@pytest.mark.parametrize(("name", "older"), [("COLUMNS", COLUMNS[:-1]), ("__version__", "0")])
def test_a_cache_of_another_version_is_rebuilt(data, tmp_path, parsed, monkeypatch, name, older):
    """Also one of before Bars had its last column; nobody has to raise a number."""
    kept = tmp_path / "c.parquet"
    with monkeypatch.context() as then:
        then.setattr(cache, name, older)
        load_cached(data, kept)
    wanted = load_cached(data, kept)
    assert len(parsed) == 2
    assert same(load_cached(data, kept), wanted)
    assert len(parsed) == 2


def test_a_place_that_cannot_be_written_is_one_line(data, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for kept in (tmp_path / "file" / "c.parquet", tmp_path / "folder"):
        with pytest.raises(UserError) as caught:
            load_cached(data, kept)
        assert "\n" not in str(caught.value)
        assert str(tmp_path) in str(caught.value)


def test_nothing_but_the_cache_is_left(data, tmp_path):
    load_cached(data, tmp_path / "new" / "c.parquet")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["c.parquet"]
