"""Tests of the cache of session facts: used only for exactly the same content and options."""

import dataclasses
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from vpoc.checksummed_parquet import read_checksummed, write_checksummed
from vpoc.data.load import load_bars
from vpoc.errors import UserError
from vpoc.features import compute as command
from vpoc.features import session_facts_cache as kept
from vpoc.features.build import all_session_facts, build_features
from vpoc.features.compute import compute_features
from vpoc.features.feature_options import FeatureOptions
from vpoc.features.session_facts import SessionFacts
from vpoc.features.session_facts_cache import SESSION_FACTS_KEY, cached_session_facts, write_session_facts
from vpoc.features.store import read_features
from vpoc.profile.flow import Flow
from vpoc.progress import Progress

OPTIONS = FeatureOptions(rows="session", lookback=20)


@pytest.fixture
def place(merged, tmp_path):
    """Write the facts of `merged` and return their file."""
    bars = load_bars(merged)
    path = tmp_path / "c.session-facts.parquet"
    write_session_facts(path, bars, all_session_facts(bars, OPTIONS, Progress(None)), OPTIONS)
    return path


def computed(data, options, cache):
    return compute_features(data, options, Progress(None), cache=cache)


def refuse(*_, **__):
    raise AssertionError


def flat(part, name=""):
    """Return every array and number in a dataclass of dataclasses, by name."""
    if hasattr(part, "__dataclass_fields__"):
        inner = [(field, getattr(part, field)) for field in part.__dataclass_fields__]
    elif isinstance(part, tuple):
        inner = list(enumerate(part))
    else:
        return {name: (part.dtype, part.tobytes()) if isinstance(part, np.ndarray) else part}
    return {key: value for place, each in inner for key, value in flat(each, f"{name}.{place}").items()}


@pytest.mark.parametrize("data", ["merged", "summer"])
def test_all_is_kept(request, tmp_path, data):
    path, place = request.getfixturevalue(data), tmp_path / "c.session-facts.parquet"
    bars = load_bars(path)
    days = all_session_facts(bars, OPTIONS, Progress(None))
    write_session_facts(place, bars, days, OPTIONS)
    found_bars, found = cached_session_facts(place, path, None, OPTIONS)
    assert flat(found) == flat(days)
    for name in kept.BARS_FACTS:
        assert getattr(found_bars, name) == getattr(bars, name)


@pytest.mark.parametrize("as_of", ["close", "open"])
def test_session_rows_need_no_bars(merged, tmp_path, monkeypatch, as_of):
    options, cache = replace(OPTIONS, as_of=as_of), tmp_path / "c.bars.parquet"
    wanted = build_features(load_bars(merged), options)
    first = computed(merged, options, cache)
    assert (tmp_path / "c.session-facts.parquet").exists()
    monkeypatch.setattr(command, "load_bars", refuse)
    again = computed(merged, options, cache)
    for found in (first, again):
        assert found.frame.equals(wanted.frame)
        assert vars(found) | {"frame": None} == vars(wanted) | {"frame": None}


def test_what_does_not_decide_about_sessions_does_not_matter(merged, place):
    others = {"rolls": "none", "as_of": "open", "lookback": 21, "data_fraction": 0.5, "chunk_size": 1}
    assert cached_session_facts(place, merged, None, replace(OPTIONS, **others)) is not None


@pytest.mark.parametrize("other", [{"placement": "close"}, {"value_area": "one_row"}, {"rth_close": "16:15"}])
def test_other_options_are_computed(merged, tmp_path, place, other):
    options = replace(OPTIONS, **other)
    assert cached_session_facts(place, merged, None, options) is None
    if options.rth_close == OPTIONS.rth_close:
        wanted = build_features(load_bars(merged), options).frame
        assert computed(merged, options, tmp_path / "c.bars.parquet").frame.equals(wanted)


def test_other_content_is_computed(merged, tmp_path, place):
    path = tmp_path / "data.csv"
    path.write_bytes(merged.read_bytes())
    assert cached_session_facts(place, path, None, OPTIONS) is not None
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    assert cached_session_facts(place, path, None, OPTIONS) is None
    path.unlink()
    with pytest.raises(UserError, match="no such file"):
        cached_session_facts(place, path, None, OPTIONS)


@pytest.mark.parametrize("wrong", ["no column", "text", "nothing", "no rows", "a fact less", "a fact of text"])
def test_facts_that_no_data_have_are_not_used(merged, place, wrong):
    frame, facts = read_checksummed(place.read_bytes(), SESSION_FACTS_KEY, arrays=True)
    changed = {
        "no column": frame.drop("open"),
        "text": frame.with_columns(open=pl.lit("x")),
        "nothing": frame.with_columns(open=pl.lit(None, pl.Int64)),
        "no rows": frame.clear(),
    }.get(wrong, frame)
    if wrong == "a fact less":
        del facts["sha256"]
    elif wrong == "a fact of text":
        facts["symbols"] = "x"
    write_checksummed(place, changed, SESSION_FACTS_KEY, facts)
    assert cached_session_facts(place, merged, None, OPTIONS) is None


def test_those_of_other_source_are_not_used(merged, place, monkeypatch):
    assert cached_session_facts(place, merged, None, OPTIONS) is not None
    monkeypatch.setattr(kept, "features_source", lambda: "0")
    assert cached_session_facts(place, merged, None, OPTIONS) is None


def fields_as(kind, **others):
    """Return a dataclass like `kind` in which some fields have other types."""
    fields = [(field.name, others.get(field.name, field.type)) for field in dataclasses.fields(kind)]
    return dataclasses.make_dataclass(kind.__name__, fields, frozen=True)


def with_a_field(kind):
    return dataclasses.make_dataclass(kind.__name__, [("more", np.ndarray)], bases=(kind,), frozen=True)


@pytest.mark.parametrize("where", ["session facts", "the flow in them"])
def test_a_new_field_makes_older_files_useless_by_itself(merged, tmp_path, monkeypatch, where):
    """No version number must be raised: without the new field, facts are computed again instead of a KeyError."""
    cache = tmp_path / "c.bars.parquet"
    wanted = computed(merged, OPTIONS, cache)
    grown = with_a_field(SessionFacts) if where == "session facts" else fields_as(SessionFacts, flow=with_a_field(Flow))
    monkeypatch.setattr(kept, "SessionFacts", grown)
    assert cached_session_facts(tmp_path / "c.session-facts.parquet", merged, None, OPTIONS) is None
    again = compute_features(merged, OPTIONS, Progress(None), cache=cache)
    assert again.frame.equals(wanted.frame)


def test_damaged_ones_are_not_used(merged, place):
    place.write_bytes(place.read_bytes()[:-1])
    assert cached_session_facts(place, merged, None, OPTIONS) is None
    place.unlink()
    assert cached_session_facts(place, merged, None, OPTIONS) is None


def test_they_are_no_features_and_bars_no_days(merged, tmp_path, place):
    with pytest.raises(UserError, match="not a file that `vpoc features` wrote"):
        read_features(place)
    computed(merged, replace(OPTIONS, rows="bar"), tmp_path / "b.bars.parquet")
    assert not (tmp_path / "b.session-facts.parquet").exists()
    (tmp_path / "b.bars.parquet").rename(place)
    assert cached_session_facts(place, merged, None, OPTIONS) is None


@pytest.mark.parametrize(("rows", "name"), [("session", "c.session-facts.parquet"), ("bar", "c.bars.parquet")])
def test_where_no_cache_can_be_written_the_rows_are_computed(merged, tmp_path, rows, name):
    (tmp_path / name).mkdir()
    options = replace(OPTIONS, rows=rows)
    found = computed(merged, options, tmp_path / "c.bars.parquet")
    assert found.frame.equals(computed(merged, options, None).frame)
