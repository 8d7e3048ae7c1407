import io

import numpy as np
import polars as pl

from vpoc.data import synth
from vpoc.data.exchange.sessions import new_york, split_sessions
from vpoc.data.load import load_bars
from vpoc.data.prng import words
from vpoc.data.synth import BARS, synthetic_csv
from vpoc.files import sha256


def test_the_bytes_are_the_same_everywhere():
    assert sha256(synthetic_csv(3, 7)) == "928846aed3e744cb53a9bc7c354bf6fb2bdff1d524f1a57df2a32b0d30dceac6"


def test_another_seed_gives_other_prices():
    assert synthetic_csv(1, 7) != synthetic_csv(1, 8)


def test_fewer_sessions_are_a_prefix_of_more():
    assert synthetic_csv(3, 7).startswith(synthetic_csv(2, 7))


def test_it_has_the_shape_of_real_sessions(tmp_path):
    path = tmp_path / "m.csv"
    path.write_bytes(synthetic_csv(30, 7))
    bars = load_bars(path)
    sessions = split_sessions(bars)
    assert len(bars) == 30 * BARS
    assert len(sessions) == 30
    assert sessions.complete.all()
    assert str(sessions.date[0].astype("datetime64[D]")) == "2018-01-02"
    assert (np.diff(sessions.number) == 1).all()
    rth = [slice(a, b) for a, b in zip(sessions.start, sessions.stop, strict=True)]
    ranges = [bars.high[part].max() - bars.low[part].min() for part in rth]
    assert 150 <= np.median(ranges) <= 300
    volume = np.median([bars.volume[part] for part in rth], axis=0)
    assert volume.argmax() == 389, "the closing bar is the biggest"
    assert volume[:30].mean() > 2 * volume[180:210].mean() < volume[-31:-1].mean()


def test_sessions_are_those_of_the_calendar(summer):
    """3 July 2018 is a half day with bars until 17:00, and 4 July a holiday without bars."""
    bars = load_bars(summer)
    sessions = split_sessions(bars)
    date, minute = new_york(bars.ts)
    days, bars_of = np.unique(date, return_counts=True)
    assert days.tolist() == sessions.date.tolist()
    assert (np.diff(sessions.number) == 1).all()
    assert set(bars_of.tolist()) == {138}
    half_day = np.datetime64("2018-07-03").astype(int)
    assert minute[date == half_day][-1] == 16 * 60 + 50
    assert sessions.close[days == half_day].tolist() == [13 * 60]
    assert half_day + 1 not in days


def test_where_the_calendar_ends_sessions_begin_earlier(tmp_path, monkeypatch):
    monkeypatch.setattr(synth, "LAST", np.datetime64("2018-01-10"))
    found = {}
    for count in (7, 9):
        (tmp_path / "m.csv").write_bytes(synthetic_csv(count, 7))
        found[count] = split_sessions(load_bars(tmp_path / "m.csv")).date.astype("datetime64[D]").astype(str).tolist()
    assert (found[7][0], found[7][-1], len(found[7])) == ("2018-01-02", "2018-01-10", 7)
    assert found[9] == ["2017-12-28", "2017-12-29", *found[7]]


def test_vix_is_null_until_it_is_quoted():
    frame = pl.read_csv(io.BytesIO(synthetic_csv(1, 7)), schema_overrides={"vix": pl.Float64})
    first_rth = 15 * 60 + 30
    assert frame["vix"][:first_rth].null_count() == first_rth
    assert frame["vix"][first_rth:].null_count() == 0


def test_words_are_splitmix64_with_a_mixed_start():
    # Reference values of splitmix64 for seed 0 (Vigna, splitmix64.c): the start state mixes to 0.
    assert words(0, 0, 2).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]
