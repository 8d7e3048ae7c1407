from dataclasses import replace

import numpy as np
import pytest

from vpoc.data.bars import COLUMNS
from vpoc.data.columns import PRICES
from vpoc.data.exchange.sessions import new_york, split_sessions
from vpoc.data.load import load_bars
from vpoc.data.synth import synthetic_csv
from vpoc.errors import UserError
from vpoc.features.build import build_features
from vpoc.features.feature_options import FeatureOptions
from vpoc.features.market import UNKNOWN_MARKET, Market, symbol_of
from vpoc.profile.session_profiles import session_levels
from vpoc.progress import Progress
from vpoc.training.model_file.artefact import load_model
from vpoc.training.model_file.predict import predict, require_match
from vpoc.training.model_file.prediction import with_levels
from vpoc.training.run import train


@pytest.fixture(scope="module")
def bars(merged):
    return load_bars(merged)


def table(bars, trained=UNKNOWN_MARKET, **chosen):
    features = build_features(bars, FeatureOptions(lookback=20, **chosen), fewest=1)
    found = features.frame.select([name for name in ("trade_date", "ts") if name in features.frame.columns])
    return with_levels(found.with_columns(probability=0.5), bars, features, trained)


def levels_of(bars, date):
    sessions = split_sessions(bars)
    days = sessions.take(np.isin(sessions.date, date))
    levels = session_levels(bars, days, 64, "uniform", "two_row")
    return {name: (getattr(levels, name) * 0.25).tolist() for name in ("vpoc", "vah", "val")}


def test_a_bar_row_is_known_at_the_end_of_its_bar(bars):
    rows = table(bars, rows="bar")
    assert ((rows["known_at"] - rows["ts"]).dt.total_seconds() == bars.bar_seconds).all()
    place = np.searchsorted(bars.ts, rows["ts"].dt.epoch("s").to_numpy())
    assert rows["close"].to_list() == (bars.close[place] * 0.25).tolist()
    # The developing levels at the last bar are the levels of the session.
    last = rows.group_by("trade_date", maintain_order=True).last()
    wanted = levels_of(bars, last["trade_date"].to_physical().to_numpy())
    assert {name: last[name].to_list() for name in wanted} == wanted


def test_each_trade_of_a_second_has_its_own_close(tmp_path):
    path = tmp_path / "minutes.csv"
    path.write_bytes(synthetic_csv(22, 7))
    minutes = load_bars(path)
    each = {name: np.repeat(getattr(minutes, name), 4) for name in COLUMNS}
    each |= dict.fromkeys(PRICES, np.stack([getattr(minutes, name) for name in PRICES], axis=1).reshape(-1))
    # A row without VIX gives no prediction: here the first trades of some seconds.
    each["vix"][(each["ts"] % 3600 == 1800) & (np.arange(len(each["ts"])) % 4 < 2)] = np.nan
    trades = replace(minutes, **each, bar_seconds=0)
    rows = table(trades, rows="bar", placement="ticks")
    date, number = np.unique(rows["trade_date"].to_physical().to_numpy(), return_inverse=True)
    sessions = split_sessions(trades)
    days = sessions.take(np.isin(sessions.date, date))
    made_from = np.concatenate([np.arange(start, stop) for start, stop in zip(days.start, days.stop, strict=True)])
    made_from = made_from[~np.isnan(trades.vix[made_from])]
    assert rows["close"].to_list() == (trades.close[made_from] * 0.25).tolist()
    # The developing levels at the last trade are the levels of the session.
    levels = session_levels(trades, days, 64, "ticks", "two_row")
    last = rows[np.flatnonzero(np.diff(number, append=len(date)))]
    assert last["vpoc"].to_list() == (levels.vpoc * 0.25).tolist()
    features = build_features(trades, FeatureOptions(lookback=20, rows="bar", placement="ticks"), fewest=1)
    fewer = rows.tail(7)
    again = with_levels(fewer.select("trade_date", "ts", "probability"), trades, features, UNKNOWN_MARKET)
    assert again.equals(fewer)


@pytest.mark.parametrize("as_of", ["close", "open"])
def test_the_levels_of_a_session_row_are_prices(bars, as_of):
    rows = table(bars, rows="session", as_of=as_of)
    date = rows["trade_date"].to_physical().to_numpy()
    wanted = levels_of(bars, date)
    assert {name: rows[name].to_list() for name in wanted} == wanted
    day, minute = new_york(rows["known_at"].dt.epoch("s").to_numpy())
    assert set(minute.tolist()) == {17 * 60 if as_of == "close" else 570}
    assert (day == date).all() == (as_of == "close")
    sessions = split_sessions(bars)
    ends = sessions.stop[np.searchsorted(sessions.date, date)] - 1
    assert rows["close"].to_list() == (bars.close[ends] * 0.25).tolist()


def test_sessions_of_the_training_are_marked(bars):
    dates = table(bars, rows="session")["trade_date"].cast(str).to_list()
    marked = table(bars, Market(first=dates[1], last=dates[2]), rows="session")["in_training"].to_list()
    assert marked == [False, True, True] + [False] * (len(dates) - 3)
    assert table(bars, rows="session")["in_training"].null_count() == len(dates)
    # The last session has no outcome yet, so no model was trained on it.
    assert build_features(bars, FeatureOptions(lookback=20, rows="session"), fewest=1).market.last == dates[-2]


def test_a_model_knows_its_market_and_refuses_another(options, tmp_path, bars):
    train(options(epochs=1), tmp_path, "m", Progress(None), lambda _: None)
    loaded = load_model(tmp_path / "m.pt")
    features = build_features(bars, FeatureOptions(rows="bar", lookback=20))
    assert loaded.market == features.market
    assert (loaded.market.tick, loaded.market.symbol) == (0.25, "")
    dates = features.frame["trade_date"].cast(str)
    assert (loaded.market.first, loaded.market.last) == (dates[0], dates[-1])
    es = replace(loaded, market=replace(loaded.market, symbol="ES"))
    require_match(es, bars.bar_seconds, features.market)
    for name, seconds, market in (
        ("symbol", bars.bar_seconds, Market(symbol="NQ")),
        ("tick", bars.bar_seconds, Market(tick=1.0)),
        ("bars", 60, Market()),
    ):
        with pytest.raises(UserError, match=f"or say --other {name}"):
            require_match(es, seconds, market)
        require_match(es, seconds, market, [name])


@pytest.mark.parametrize(
    ("symbols", "root"),
    [
        (["ESZ3", "ESH4"], "ES"),
        (["ESZ13"], "ES"),
        (["ES"], "ES"),
        (["ES.c.0"], "ES"),
        (["ES=F"], "ES"),
        (["NQM6"], "NQ"),
        (["ESZ3", "NQZ3"], ""),
        ([], ""),
        ([""], ""),
    ],
)
def test_the_root_of_contracts(symbols, root):
    assert symbol_of(symbols) == root


def test_batches_change_nothing(options, tmp_path, bars, monkeypatch):
    train(options(epochs=1), tmp_path, "m", Progress(None), lambda _: None)
    features = build_features(bars, FeatureOptions(rows="bar", lookback=20))
    whole, _ = predict(load_model(tmp_path / "m.pt"), features, "cpu")
    monkeypatch.setattr("vpoc.training.model_file.predict.ROWS_AT_A_TIME", 5)
    np.testing.assert_allclose(
        predict(load_model(tmp_path / "m.pt"), features)[0]["probability"], whole["probability"], rtol=1e-6
    )
