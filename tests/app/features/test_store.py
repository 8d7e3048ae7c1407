import json
from dataclasses import asdict, fields, replace

import polars as pl
import pytest

from vpoc.checksummed_parquet import write_checksummed
from vpoc.cli import run
from vpoc.data.load import load_bars
from vpoc.errors import UserError
from vpoc.features import store
from vpoc.features.build import build_features
from vpoc.features.feature_options import FeatureOptions
from vpoc.features.store import read_facts, read_features, require_same_features, write_features
from vpoc.files import sha256_file

OPTIONS = FeatureOptions(rows="session", lookback=20)
OTHERS = {
    "rows": "bar",
    "as_of": "open",
    "lookback": 60,
    "data_fraction": 0.5,
    "placement": "typical",
    "value_area": "one_row",
    "rth_close": "16:15",
    "rolls": "none",
}


@pytest.fixture(scope="module")
def built(merged):
    return build_features(load_bars(merged), OPTIONS)


def test_what_is_written_is_read(built, tmp_path):
    write_features(tmp_path / "f.parquet", built)
    again = read_features(tmp_path / "f.parquet")
    assert again.frame.equals(built.frame)
    assert again.options == OPTIONS
    assert again.sessions_total == 26
    assert vars(again) | {"frame": None} == vars(built) | {"frame": None}


def test_parquet_is_not_written_under_the_name_of_a_csv(tmp_path, merged, capsys):
    assert run(["features", "--data", str(merged), "--output", str(tmp_path / "f.CSV")]) == 2
    assert "f.CSV: features are written as Parquet; give a name such as f.parquet" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_metadata_say_what_the_file_is(built, tmp_path, merged):
    write_features(tmp_path / "f.parquet", built)
    found = json.loads(pl.read_parquet_metadata(tmp_path / "f.parquet")["vpoc"])
    assert list(found) == [
        *("file_sha256", "schema", "app_version", "source", "options", "data_sha256", "data_rows", "bar_seconds"),
        *("sessions_total", "sessions_used", "left_out", "market", "accepted", "smaller_kept", "rolls_sha256"),
    ]
    assert (found["schema"], found["app_version"]) == (store.FEATURES_SCHEMA, store.__version__)
    assert found["options"] == asdict(OPTIONS)
    assert found["data_sha256"] == sha256_file(merged)
    assert found["left_out"]["lookback"] == 20


def test_other_files_are_refused(built, tmp_path):
    path = tmp_path / "f.parquet"
    built.frame.write_parquet(path)
    with pytest.raises(UserError, match="not a file that `vpoc features` wrote, or changed since"):
        read_features(path)
    write_features(path, built)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match="not a file that `vpoc features` wrote, or changed since"):
        read_features(path)


@pytest.mark.parametrize(
    "odd",
    [{"options": {}}, {"options": "x"}, {"market": {"a": 1}}, {"accepted": 5}, {"bar_seconds": "a"}, {"more": 1}],
)
def test_a_file_with_a_right_hash_and_odd_facts_is_refused(built, tmp_path, odd):
    facts = {"schema": store.FEATURES_SCHEMA, "app_version": store.__version__, **store._facts(built), **odd}
    write_checksummed(tmp_path / "f.parquet", built.frame, store.FEATURES_KEY, facts)
    with pytest.raises(UserError, match="not a file that `vpoc features` wrote"):
        read_features(tmp_path / "f.parquet")


@pytest.mark.parametrize(
    "odd",
    [
        lambda frame: frame.reverse(),
        lambda frame: frame.with_columns(va_width=pl.lit("x")),
        lambda frame: frame.drop("trade_date"),
        lambda frame: frame.cast({"trade_date": pl.String}),
        lambda frame: frame.select(pl.exclude("up_30", "next_up")),
    ],
)
def test_a_file_with_a_right_hash_and_odd_rows_is_refused(built, tmp_path, odd):
    write_features(tmp_path / "f.parquet", replace(built, frame=odd(built.frame)))
    with pytest.raises(UserError, match="not a file that `vpoc features` wrote"):
        read_features(tmp_path / "f.parquet")


def test_a_further_column_of_lists_is_refused_before_any_row_is_read(built, tmp_path):
    """A list in one cell can fill the memory."""
    odd = built.frame.with_columns(further=pl.lit([0.0]))
    write_features(tmp_path / "f.parquet", replace(built, frame=odd))
    for read in (read_features, read_facts):
        with pytest.raises(UserError, match="not a file that `vpoc features` wrote"):
            read(tmp_path / "f.parquet")


def test_features_of_another_version_are_refused(built, tmp_path):
    fewer = type(built)(**{**vars(built), "frame": built.frame.select(pl.exclude("va_width"))})
    write_features(tmp_path / "f.parquet", fewer)
    with pytest.raises(UserError, match="not those of this version"):
        read_features(tmp_path / "f.parquet")


@pytest.mark.parametrize("name", ["FEATURES_SCHEMA", "__version__"])
def test_features_of_another_schema_or_version_are_refused(built, tmp_path, monkeypatch, name):
    with monkeypatch.context() as then:
        then.setattr(store, name, "0")
        write_features(tmp_path / "f.parquet", built)
    with pytest.raises(UserError, match="not those of this version"):
        read_features(tmp_path / "f.parquet")


def test_features_of_other_data_or_options_are_refused(built, tmp_path):
    path = tmp_path / "f.parquet"
    require_same_features(path, built, built.data_sha256, OPTIONS)
    with pytest.raises(UserError, match="made with data-sha256"):
        require_same_features(path, built, "0" * 64, OPTIONS)
    with pytest.raises(UserError, match="made with lookback 20, but this run has lookback 60"):
        require_same_features(path, built, built.data_sha256, replace(OPTIONS, lookback=60))


@pytest.mark.parametrize("name", OTHERS)
def test_every_option_that_changes_the_answer_is_compared(built, tmp_path, name):
    other = replace(OPTIONS, **{name: OTHERS[name]})
    wanted = f"made with {name.replace('_', '-')} {getattr(OPTIONS, name)}, but this run has .* {OTHERS[name]};"
    with pytest.raises(UserError, match=wanted):
        require_same_features(tmp_path / "f.parquet", built, built.data_sha256, other)


def test_an_edited_file_of_rolls_is_another_option(merged, tmp_path, capsys):
    rolls, output = tmp_path / "rolls.csv", tmp_path / "f.parquet"
    chosen = ["--data", str(merged), "--rows", "session", "--lookback", "20", "--rolls", str(rolls)]
    made = []
    for content in ("date\n2018-01-04\n", "date\n2018-01-04\n2018-01-25\n"):
        rolls.write_text(content)
        for name in (output, tmp_path / f"{len(made)}.parquet"):
            assert run(["features", *chosen, "--output", str(name)]) == 0
        made.append(read_features(output))
        assert made[-1].frame.equals(read_features(tmp_path / f"{len(made) - 1}.parquet").frame)
    assert made[0].frame.height > made[1].frame.height
    options = made[1].options
    require_same_features(output, made[1], made[1].data_sha256, options)
    with pytest.raises(UserError, match=r"f.parquet: made with other rolls than .*rolls.csv has now; make it again"):
        require_same_features(output, made[0], made[1].data_sha256, options)
    rolls.write_text("no dates\n")
    assert run(["features", *chosen, "--output", str(output)]) == 2
    assert "no column named date" in capsys.readouterr().err


def test_features_of_other_source_are_computed_again(merged, tmp_path, monkeypatch):
    """Their schema is the same where the changed source gives the data of the tests the same values."""
    chosen = ["--data", str(merged), "--rows", "session", "--lookback", "20", "--output", str(tmp_path / "f.parquet")]
    written = []
    for source in ("old", "old", "new"):
        monkeypatch.setattr(store, "features_source", lambda source=source: source)
        assert run(["features", *chosen]) == 0
        written.append((tmp_path / "f.parquet").stat().st_mtime_ns)
    assert written[0] == written[1] < written[2]


def test_how_many_sessions_are_computed_at_a_time_is_not_compared(built, tmp_path):
    require_same_features(tmp_path / "f.parquet", built, built.data_sha256, replace(OPTIONS, chunk_size=3))
    assert {field.name for field in fields(OPTIONS)} == {*OTHERS, "chunk_size"}


def test_what_was_accepted_of_the_data_must_be_accepted_again(built, tmp_path):
    """A features file has no data to check, so its user must accept the same findings as the user who made it."""
    path = tmp_path / "f.parquet"
    write_features(path, replace(built, accepted=("bad_print", "vix_range")))
    found = read_features(path)
    assert found.accepted == ("bad_print", "vix_range")
    assert "accepted although not plausible: bad_print, vix_range" in found.summary()
    for accepted, asked in ((), "bad_print"), (("bad_print",), "vix_range"):
        with pytest.raises(UserError, match=rf"made with --accept {asked} .* say --accept {asked} here, too"):
            require_same_features(path, found, built.data_sha256, OPTIONS, accepted)
    require_same_features(path, found, built.data_sha256, OPTIONS, ("vix_range", "end_stamps", "bad_print"))
