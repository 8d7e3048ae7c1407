"""The columns beside a probability: when it is known, whether the model saw the session, and the row's levels."""

import numpy as np
import polars as pl

from vpoc.arrays import Ints
from vpoc.data.bars import Bars
from vpoc.data.columns import TICK
from vpoc.data.exchange.sessions import AS_OF, RTH_OPEN, Sessions, ranges, split_sessions
from vpoc.features.feature_set import FeatureSet
from vpoc.features.market import Market


def with_levels(found: pl.DataFrame, bars: Bars, features: FeatureSet, trained: Market) -> pl.DataFrame:
    """Return `found`, the probabilities of the last rows of `features` of `bars`, with more columns.

    `known_at`: when everything is known that the row is made from: the end of the bar; for a session 17:00 New York, or
    the first bar of the next regular hours.
    `in_training`: whether the model was trained or validated on the session; None if the model does not say.
    `close`: the close of the row.
    `vpoc`, `vah`, `val`: the row's levels, in points.
    """
    rows = features.frame[features.frame.height - found.height :]
    date = rows["trade_date"].to_physical().to_numpy().astype(np.int64)
    if "ts" in rows.columns:
        ts = rows["ts"].dt.epoch("s").to_numpy()
        made_from = np.searchsorted(bars.ts, ts) if bars.bar_seconds else _trades(bars, features)[-found.height :]
        close = bars.close[made_from]
        known, price = ts + bars.bar_seconds, close
    else:
        known, close, price = _of_sessions(bars, date, features)
    levels = {
        "close": close,
        "vpoc": price - rows["vpoc_dist"].to_numpy(),
        "vah": price + rows["vah_dist"].to_numpy(),
        "val": price - rows["val_dist"].to_numpy(),
    }
    seen = trained.holds(date) if trained.first else [None] * len(date)
    return found.select(
        pl.exclude("probability"),
        pl.Series("known_at", known * 1_000_000).cast(pl.Datetime("us", "UTC")),
        pl.Series("in_training", seen, dtype=pl.Boolean),
        *(pl.Series(name, values * TICK) for name, values in levels.items()),
        "probability",
    )


def _trades(bars: Bars, features: FeatureSet) -> Ints:
    """Return the trade that each row of `features` was made from, as a row of `bars`; many have the same stamp."""
    sessions = split_sessions(bars, features.options.close_minute)
    used = features.frame["trade_date"].unique().to_physical().to_numpy()
    sessions = sessions.take(np.isin(sessions.date, used))
    rows = ranges(sessions.start, sessions.stop)
    return rows[~np.isnan(bars.vix[rows])]


def _of_sessions(bars: Bars, date: Ints, features: FeatureSet) -> tuple[Ints, Ints, Ints]:
    """Return when session rows are known, their closes, and the price that their distances refer to."""
    options = features.options
    sessions: Sessions = split_sessions(bars, options.close_minute)
    sessions = sessions.take(sessions.stop > sessions.start)
    place = np.searchsorted(sessions.date, date)
    close = bars.close[sessions.stop[place] - 1]
    if options.as_of == "close":
        return sessions.open_utc[place] + (AS_OF - RTH_OPEN) * 60, close, close
    opening = sessions.start[place + 1]
    return bars.ts[opening], close, bars.open[opening]
