import json

import polars as pl
import pytest

from vpoc.data.bars import load_bars
from vpoc.errors import UserError
from vpoc.features import store
from vpoc.features.build import build_features
from vpoc.features.store import read_features, require_same, write_features


@pytest.fixture
def built(merged):
    return build_features(load_bars(merged), "session", warm_up=20)


def test_what_is_written_is_read(built, tmp_path):
    write_features(tmp_path / "f.parquet", built)
    again = read_features(tmp_path / "f.parquet")
    assert again.frame.equals(built.frame)
    assert again.data_sha256 == built.data_sha256
    assert again.sessions_total == 26


def test_other_files_are_refused(built, tmp_path):
    path = tmp_path / "f.parquet"
    built.frame.write_parquet(path)
    with pytest.raises(UserError, match="not a file that `vpoc features` wrote"):
        read_features(path)
    path.write_bytes(b"PAR1 and then nothing")
    with pytest.raises(UserError, match="not a file that `vpoc features` wrote"):
        read_features(path)
    write_features(path, built)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match="not a file that `vpoc features` wrote"):
        read_features(path)


def test_features_of_another_version_are_refused(built, tmp_path):
    fewer = type(built)(**{**vars(built), "frame": built.frame.select(pl.exclude("va_width"))})
    write_features(tmp_path / "f.parquet", fewer)
    with pytest.raises(UserError, match="not those of this version"):
        read_features(tmp_path / "f.parquet")


@pytest.mark.parametrize("what", ["value", "null", "name", "order", "fact"])
def test_content_that_was_changed_is_found(built, tmp_path, what):
    path = tmp_path / "f.parquet"
    write_features(path, built)
    metadata = pl.read_parquet_metadata(path)
    frame = pl.read_parquet(path)
    first = pl.int_range(pl.len()) == 0
    if what == "value":
        frame = frame.with_columns(va_width=pl.when(first).then(0.5).otherwise("va_width"))
    elif what == "null":
        frame = frame.with_columns(next_up=pl.when(first).then(None).otherwise("next_up"))
    elif what == "name":
        frame = frame.rename({"va_width": "val_dist", "val_dist": "va_width"})
    elif what == "order":
        frame = frame.reverse()
    else:
        facts = {**json.loads(metadata["vpoc"]), "warm_up": 60}
        metadata["vpoc"] = json.dumps(facts)
    frame.write_parquet(path, metadata={"vpoc": metadata["vpoc"]})
    with pytest.raises(UserError, match="its content is not what `vpoc features` wrote there"):
        read_features(path)


@pytest.mark.parametrize("name", ["SCHEMA", "__version__"])
def test_features_of_another_schema_or_version_are_refused(built, tmp_path, monkeypatch, name):
    with monkeypatch.context() as then:
        then.setattr(store, name, "0")
        write_features(tmp_path / "f.parquet", built)
    with pytest.raises(UserError, match="not those of this version"):
        read_features(tmp_path / "f.parquet")


def test_features_of_other_data_or_options_are_refused(built, tmp_path):
    path = tmp_path / "f.parquet"
    require_same(path, built, {"data_sha256": built.data_sha256, "rows": "session", "warm_up": 20})
    with pytest.raises(UserError, match="made with data-sha256"):
        require_same(path, built, {"data_sha256": "0" * 64})
    with pytest.raises(UserError, match="made with warm-up 20, but this run has warm-up 60"):
        require_same(path, built, {"warm_up": 60})
