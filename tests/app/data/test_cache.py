"""Tests of the cache of parsed bars: used only for exactly the same content, and never the cause of a wrong answer."""

import dataclasses
import os

import numpy as np
import polars as pl
import pytest

from vpoc.checksummed_parquet import read_checksummed, write_checksummed
from vpoc.data import cache
from vpoc.data.bars import COLUMNS, Bars
from vpoc.data.cache import BARS_KEY, cached_bars, write_bars
from vpoc.data.load import load_bars
from vpoc.errors import UserError
from vpoc.features.build import build_features
from vpoc.features.feature_options import FeatureOptions
from vpoc.features.store import read_features, write_features


@pytest.fixture
def data(merged, tmp_path):
    """Return a file of two sessions."""
    path = tmp_path / "data.csv"
    path.write_text("".join(merged.read_text().splitlines(keepends=True)[: 1 + 2 * 138]))
    return path


def same(found: Bars, wanted: Bars) -> bool:
    facts = [field.name for field in dataclasses.fields(Bars) if field.name not in COLUMNS]
    return all(getattr(found, name) == getattr(wanted, name) for name in facts) and all(
        one.dtype == other.dtype and one.tobytes() == other.tobytes()
        for one, other in ((getattr(found, name), getattr(wanted, name)) for name in COLUMNS)
    )


def kept(data, place):
    """Write the bars of `data` to `place` and return what is read back from there."""
    write_bars(place, load_bars(data))
    return cached_bars(place, data, None)


@pytest.mark.parametrize("what", ["merged", "summer"])
def test_what_was_written_is_read(request, tmp_path, what):
    path = request.getfixturevalue(what)
    assert same(kept(path, tmp_path / "new" / "c.parquet"), load_bars(path))
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["c.parquet"]


def test_the_name_of_the_file_does_not_matter_but_its_content(data, tmp_path):
    place, copy = tmp_path / "c.parquet", tmp_path / "copy.csv"
    kept(data, place)
    copy.write_bytes(data.read_bytes())
    assert same(cached_bars(place, copy, None), load_bars(copy))
    data.unlink()
    with pytest.raises(UserError, match="no such file"):
        cached_bars(place, data, None)


@pytest.mark.parametrize("change", ["a digit", "a line more", "a line less", "duplicates", "an unended line"])
def test_of_other_content_it_is_not_used(data, tmp_path, change):
    place = tmp_path / "c.parquet"
    kept(data, place)
    lines = data.read_text().splitlines(keepends=True)
    if change == "a digit":
        cells = lines[5].split(",")
        lines[5] = ",".join([*cells[:5], str(int(cells[5]) + 1), *cells[6:]])
    elif change == "a line more":
        lines.append(lines[-1].replace("T21:50", "T21:51"))
    elif change == "a line less":
        del lines[-1]
    elif change == "duplicates":
        lines.insert(5, lines[5])
    else:
        lines[-1] = lines[-1][:-3]
    data.write_text("".join(lines))
    assert cached_bars(place, data, None) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_one_of_another_user_is_not_used(data, tmp_path):
    place = tmp_path / "bars.parquet"
    write_bars(place, load_bars(data))
    os.chown(place, 65533, 65533)
    assert cached_bars(place, data, None) is None


def test_several_symbols_odd_prices_and_missing_vix_are_kept(data, tmp_path):
    header, *lines = data.read_text().splitlines()
    lines = [f"{line},{'ESH8' if place < 100 else 'ESM8'}" for place, line in enumerate(lines)]
    cells = lines[200].split(",")
    lines[200] = ",".join([*cells[:5], str(10**12), *cells[6:]])
    data.write_text("\n".join([f"{header},symbol", *lines]) + "\n")
    again = kept(data, tmp_path / "c.parquet")
    assert same(again, load_bars(data))
    assert (again.symbols, again.volume.max()) == (("ESH8", "ESM8"), 10**12)
    assert np.isnan(again.vix).any()


@pytest.mark.parametrize(
    "wrong", ["no column", "text", "nothing", "no rows", "late", "negative", "no contract", "facts"]
)
def test_bars_that_no_file_has_are_not_used(data, tmp_path, wrong):
    """Whoever makes such a cache can also compute its hash."""
    place = tmp_path / "c.parquet"
    kept(data, place)
    frame, facts = read_checksummed(place.read_bytes(), BARS_KEY)
    changed = {
        "no column": frame.drop("volume"),
        "text": frame.with_columns(volume=pl.lit("x")),
        "nothing": frame.with_columns(volume=pl.lit(None, pl.Int64)),
        "no rows": frame.clear(),
        "late": frame.reverse(),
        "negative": frame.with_columns(volume=pl.lit(-1)),
        "no contract": frame.with_columns(contract=pl.lit(7)),
    }.get(wrong, frame)
    if wrong == "facts":
        facts["bar_seconds"] = "60"
    write_checksummed(place, changed, BARS_KEY, facts)
    assert cached_bars(place, data, None) is None


@pytest.mark.parametrize("content", [None, b"not a cache"])
def test_other_files_are_not_used(data, tmp_path, content):
    place = tmp_path / "c.parquet"
    if content is not None:
        place.write_bytes(content)
    assert cached_bars(place, data, None) is None


def test_features_are_no_cache(data, merged, tmp_path):
    place = tmp_path / "f.parquet"
    write_features(place, build_features(load_bars(merged), FeatureOptions(rows="session", lookback=20)))
    assert cached_bars(place, merged, None) is None
    kept(data, place)
    with pytest.raises(UserError, match="not a file that `vpoc features` wrote"):
        read_features(place)


@pytest.mark.parametrize(("name", "older"), [("COLUMNS", COLUMNS[:-1]), ("features_source", lambda: "0")])
def test_a_cache_of_another_version_is_not_used(data, tmp_path, monkeypatch, name, older):
    """A cache from before Bars got its last column is not used either, though nobody raised a version number."""
    place = tmp_path / "c.parquet"
    with monkeypatch.context() as then:
        then.setattr(cache, name, older)
        write_bars(place, load_bars(data))
    assert cached_bars(place, data, None) is None
