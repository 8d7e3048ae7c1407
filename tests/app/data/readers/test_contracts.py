"""Tests of files in which several contracts trade at the same time."""

import numpy as np
import polars as pl
import pytest

from vpoc.cli import run
from vpoc.data.checks.quality import inspect
from vpoc.data.exchange.sessions import session_dates
from vpoc.data.load import load_bars
from vpoc.data.readers import read_vendor
from vpoc.data.readers.contracts import one_contract
from vpoc.errors import UserError
from vpoc.features.store import read_features

DAY = 86_400
MONDAY = 1_386_601_200
"""Monday 2013-12-09, 10:00 New York."""


def databento(path, rows):
    """Write a file in Databento's layout; each of `rows` is (day, minute, symbol, volume)."""
    lines = (
        f"{(MONDAY + day * DAY + minute * 60) * 10**9},33,1,{len(symbol)},1800,1801,1799,1800.25,{volume},{symbol}"
        for day, minute, symbol, volume in rows
    )
    path.write_text(
        "ts_event,rtype,publisher_id,instrument_id,open,high,low,close,volume,symbol\n" + "\n".join(lines) + "\n"
    )
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data.csv"


def kept(path, **options):
    one = one_contract(read_vendor(path, **options))
    day = (one.bars.frame["ts"] - MONDAY) // DAY
    return one, list(zip(day.to_list(), one.bars.frame["symbol"].to_list(), strict=True))


def week(volumes, symbols=("ESZ3", "ESH4")):
    return [
        (day, minute, symbol, volume)
        for day, pair in enumerate(volumes)
        for minute in range(2)
        for symbol, volume in zip(symbols, pair, strict=True)
    ]


def test_the_contract_that_trades_most_in_a_session_is_kept(path):
    databento(path, week([(90, 10), (10, 90), (10, 90)]))
    one, rows = kept(path)
    assert rows == [(0, "ESZ3")] * 2 + [(1, "ESH4")] * 2 + [(2, "ESH4")] * 2
    assert (one.other_rows, one.spread_rows, one.symbols) == (6, 0, ("ESZ3", "ESH4"))
    assert one.smaller_kept == ()


def test_of_equals_the_one_that_expires_first_is_kept(path):
    databento(path, week([(50, 50)]))
    assert kept(path)[1] == [(0, "ESZ3")] * 2


def test_a_series_never_goes_back_and_says_where_that_keeps_the_smaller_contract(path):
    databento(path, week([(90, 10), (10, 90), (60, 40), (10, 90)]))
    one, rows = kept(path)
    assert [symbol for _, symbol in rows] == ["ESZ3"] * 2 + ["ESH4"] * 6
    assert one.smaller_kept == (
        "2013-12-11: ESH4 was kept, with 80 contracts, and not ESZ3 with 120: a series never goes back to an earlier "
        "expiry",
    )


def test_what_comes_later_changes_nothing(path):
    rng = np.random.default_rng(3)
    volumes = rng.integers(1, 100, (5, 2)).tolist()
    databento(path, week(volumes))
    whole = kept(path)[1]
    for days in range(1, 5):
        databento(path, week(volumes[:days]))
        assert kept(path)[1] == whole[: 2 * days]


def test_an_expired_contract_gives_way(path):
    databento(path, [*week([(90, 10)]), (1, 0, "ESH4", 5), (1, 0, "ESM4", 1)])
    assert kept(path)[1][-1] == (1, "ESH4")


def test_spreads_are_dropped_and_counted(path):
    spreads = [(0, 0, "ESZ3-ESH4", 500), (0, 1, "ES:BF H4-M4-U4", 500), (0, 1, "UD:1V: 123", 500)]
    databento(path, [*spreads, *week([(90, 10)])])
    one, rows = kept(path)
    assert (one.spread_rows, one.other_rows) == (3, 2)
    assert rows == [(0, "ESZ3")] * 2
    assert one.bars.where(0).endswith("line 5")
    databento(path, spreads)
    with pytest.raises(UserError, match="spreads only"):
        kept(path)


def test_years_of_one_digit_come_round(path):
    databento(path, week([(50, 50)], ("ESH4", "ESZ3")))
    assert kept(path)[1] == [(0, "ESZ3")] * 2
    databento(path, week([(50, 50)], ("ESH14", "ESZ13")))
    assert kept(path)[1] == [(0, "ESZ13")] * 2


def test_a_series_that_rolls_by_itself_stays_as_it_is(path):
    databento(path, [(0, 0, "ESZ3", 5), (0, 1, "ESZ3", 5), (0, 2, "ESH4", 1), (1, 0, "ESH4", 1)])
    one, rows = kept(path)
    assert [symbol for _, symbol in rows] == ["ESZ3", "ESZ3", "ESH4", "ESH4"]
    assert one.other_rows == 0


def test_a_symbol_can_be_chosen(path):
    databento(path, week([(90, 10), (10, 90)]))
    one, rows = kept(path, symbol="ESH4")
    assert rows == [(0, "ESH4")] * 2 + [(1, "ESH4")] * 2
    assert one.bars.counts == {"rows_of_other_symbols": 4}
    assert one.bars.where(0).endswith("line 3")
    with pytest.raises(UserError, match="no rows of ESM4; there are: ESZ3, ESH4"):
        kept(path, symbol="ESM4")


@pytest.mark.parametrize("symbols", [("ESZ3", "NQZ3"), ("ES.c.0", "ES.c.1"), ("ESZ3", "SPY")])
def test_symbols_of_which_none_is_in_front(path, symbols):
    databento(path, week([(90, 10)], symbols))
    with pytest.raises(UserError, match=r"line 3: several symbols in one file \(.*choose one with --symbol"):
        kept(path)


def test_instrument_numbers_do_not_tell_the_expiry(path):
    databento(path, week([(90, 10)]))
    frame = pl.read_csv(path, infer_schema=False).drop("symbol").with_columns(instrument_id=pl.Series(["17", "18"] * 2))
    frame.write_csv(path)
    with pytest.raises(UserError, match=r"several symbols in one file \(17, 18\)"):
        kept(path)
    assert len(kept(path, symbol="18")[1]) == 2


def test_sessions_begin_in_the_evening(path):
    """18:30 on Monday belongs to Tuesday's session."""
    evening = 8 * 60 + 30
    rows = [(0, 0, "ESZ3", 9), (0, 0, "ESH4", 1), (0, evening, "ESZ3", 1), (0, evening, "ESH4", 9)]
    databento(path, rows)
    assert kept(path)[1] == [(0, "ESZ3"), (0, "ESH4")]


@pytest.fixture
def smaller(merged, tmp_path):
    """Return a file of two contracts; the later one traded more in the second session and less in the 24 after it."""
    bars = load_bars(merged)
    date = session_dates(bars.ts)
    second = pl.Series(date == np.unique(date)[1])
    frame = pl.read_csv(merged, infer_schema=False).rename({"ts": "time"})
    volume = frame["volume"].cast(pl.Int64)
    parts = [
        frame.with_columns(volume=pl.when(larger).then(volume).otherwise(volume // 2), symbol=pl.lit(name))
        for name, larger in (("ESH8", ~second), ("ESM8", second))
    ]
    path = tmp_path / "two.csv"
    pl.concat(parts).sort("time", "symbol").write_csv(path)
    return path


def test_a_smaller_contract_is_never_kept_silently(smaller, tmp_path, capsys):
    """Every command that reads the file warns, also when the bars come from a cache."""
    first = "2018-01-04: ESM8 was kept, with "
    assert sum(first[12:] in warning for warning in inspect(smaller).warnings) == 24
    assert run(["merge", "--bars", str(smaller), "--output", str(tmp_path / "merged.csv")]) == 0
    out = capsys.readouterr().out
    assert out.count("warning: 2018-0") == 20
    assert f"warning: {first}" in out
    assert "warning: and 4 more; --json lists them all\n" in out
    said = f"a contract that traded less than another in 24 session(s): {first}"
    for rows in ("bar", "session"):
        for _ in ("computed", "cached"):
            output = ["--lookback", "20", "--rows", rows, "--output", str(tmp_path / f"{rows}.parquet")]
            (tmp_path / f"{rows}.parquet").unlink(missing_ok=True)
            for _ in ("made", "there"):
                assert run(["features", "--data", str(smaller), *output]) == 0
                assert said in capsys.readouterr().out
        assert said in read_features(tmp_path / f"{rows}.parquet").summary()
