"""Where the open sits relative to the session before, which alone explains most of whether a VPOC is touched."""

import numpy as np

from vpoc.arrays import Flags, Floats, Ints
from vpoc.data.exchange.calendar import rth_close
from vpoc.features.feature_set import FeatureSet

PLACES = ("inside value area", "inside range", "above range", "below range", "range not known")
IN_AREA, IN_RANGE, ABOVE, BELOW, UNKNOWN = range(len(PLACES))


def open_places(features: FeatureSet) -> Ints:
    """Return where the open sits [rows of the frame], as indices into PLACES.

    Session rows as of the next open: that open, relative to the value area and range of the row's session. As of the
    close, when the next open is not known, the close takes its place. Bar rows: the session's open relative to the
    session before it, whose range is unknown if that session has no rows.
    """
    if features.options.rows == "session":
        return _of_sessions(features)
    return _of_bars(features)


def _of_sessions(features: FeatureSet) -> Ints:
    column = {name: features.frame[name].to_numpy() for name in ("vah_dist", "val_dist", "close_pos", "gap")}
    height = _range(features)
    above_low = column["close_pos"] * height
    if features.options.as_of == "open":
        above_low = above_low + column["gap"]
    inside = (column["vah_dist"] >= 0) & (column["val_dist"] >= 0)
    return _places(inside, np.rint(above_low), height)


def _of_bars(features: FeatureSet) -> Ints:
    frame = features.frame
    date = frame["trade_date"].to_physical().to_numpy().astype(np.int64)
    height = _range(features)
    close_above_low = np.rint(frame["close_pos"].to_numpy() * height)
    dates, first = np.unique(date, return_index=True)
    before = np.maximum(np.arange(len(dates)) - 1, 0)
    last_row = np.append(first[1:], len(date)) - 1
    prior = last_row[before]
    gap = frame["gap"].to_numpy()[first]
    inside = frame["open_vs_prior_va"].to_numpy()[first] == 0
    places = _places(inside, close_above_low[prior] + gap, height[prior])
    places[~inside & ~_follows(dates)] = UNKNOWN
    return np.repeat(places, np.diff(np.append(first, len(date))))


def _follows(dates: Ints) -> Flags:
    """Return for each of `dates`, in order, whether the calendar's session before it is also among them."""
    follows = np.zeros(len(dates), dtype=np.bool_)
    if len(dates):
        trading = np.cumsum(rth_close(np.arange(dates[0], dates[-1] + 1)) > 0)
        follows[1:] = np.diff(trading[dates - dates[0]]) == 1
    return follows


def _range(features: FeatureSet) -> Floats:
    """Return H - L of each row, in ticks: the initial balance and the extensions beyond it."""
    parts = [features.frame[name].to_numpy() for name in ("ib_range", "ext_up", "ext_dn")]
    height: Floats = np.rint(parts[0] + parts[1] + parts[2])
    return height


def _places(inside_area: Flags, above_low: Floats, height: Floats) -> Ints:
    places = np.where(above_low > height, ABOVE, np.where(above_low < 0, BELOW, IN_RANGE))
    return np.where(inside_area, IN_AREA, places).astype(np.int64)
