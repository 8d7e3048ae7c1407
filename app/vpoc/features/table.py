"""The features: one table of name, formula, unit and source, which the code computes from.

A division by zero gives 0.5 for a position in a range and 0 for any other ratio. C, O, H, L are those of regular
trading hours up to the as-of time, in ticks; P is the price that distances are measured from: C, or for session rows as
of the next open that open. t-1 is the session before.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vpoc.arrays import Floats, Ints

if TYPE_CHECKING:
    # Not imported at run time: code that needs only the names imports neither polars nor the profiles.
    from vpoc.features.look_back import Naked
    from vpoc.profile.facts import ProfileFacts
    from vpoc.profile.flow import Flow

TICKS, RATIO, CODE, COUNT, MINUTES, SESSIONS, POINTS = (
    "ticks",
    "ratio",
    "code",
    "count",
    "minutes",
    "sessions",
    "points",
)
_YEAR = 252
"""Sessions in a year, for annualised VIX values."""


@dataclass(frozen=True)
class Snapshot:
    """Values known at the as-of time of each row; every array is [rows], prices in ticks, volumes in contracts.

    `high`, `low`, `close`, `profile`, `flow`: RTH of the session up to the as-of time.
    `price`: the price that distances are measured from.
    `vwap`, `std`, `skew`, `kurt`: moments of the profile.
    `ib_range`, `ext_up`, `ext_dn`: the range of the first hour, and how far the session's range exceeds it.
    `vpoc_age`: minutes since the developing VPOC moved.
    `usual_volume`: mean of 20 full sessions at the same time of day.
    `on_volume`, `on_range`: overnight; `day_volume`: the volume that the overnight volume is compared with.
    `vpoc_1` .. `close_1`, `vpoc_5`: of t-1 and t-5.
    `entry`, `entry_vah`, `entry_val`, `entry_close`: the latest open, and the value area and close before it.
    `comp5`, `comp20`: VPOC of composites.
    `vix`: last value; `vix_1`: close of t-1; `vix_mean`, `vix_std`: of 20 closes.
    `adr`: mean range of 20 sessions.
    """

    high: Ints
    low: Ints
    close: Ints
    price: Ints
    profile: "ProfileFacts"
    vwap: Floats
    std: Floats
    skew: Floats
    kurt: Floats
    ib_range: Ints
    ext_up: Ints
    ext_dn: Ints
    vpoc_age: Floats
    usual_volume: Floats
    on_volume: Ints
    on_range: Ints
    day_volume: Ints
    flow: "Flow"
    vpoc_1: Ints
    vah_1: Ints
    val_1: Ints
    close_1: Ints
    vpoc_5: Ints
    entry: Ints
    entry_vah: Ints
    entry_val: Ints
    entry_close: Ints
    comp5: Ints
    comp20: Ints
    naked: "Naked"
    vix: Floats
    vix_1: Floats
    vix_mean: Floats
    vix_std: Floats
    adr: Floats


@dataclass(frozen=True)
class Feature:
    """A column: its `name`, its `formula` as in the docs, `unit`, `source`, and the function that computes it."""

    name: str
    formula: str
    unit: str
    source: str
    compute: Callable[[Snapshot], Ints | Floats]


def _ratio(part: Ints | Floats, whole: Ints | Floats, otherwise: float = 0.0) -> Floats:
    zero = whole == 0
    return np.where(zero, otherwise, part / np.where(zero, 1, whole))


def _log_ratio(part: Ints | Floats, whole: Ints | Floats) -> Floats:
    some = (part > 0) & (whole > 0)
    return np.where(some, np.log(np.where(some, part, 1) / np.where(some, whole, 1)), 0.0)


def _side(price: Ints, val: Ints, vah: Ints) -> Ints:
    return (price > vah).astype(np.int64) - (price < val)


def _va_overlap(s: Snapshot) -> Floats:
    v = s.profile.levels
    both = np.maximum(np.minimum(v.vah, s.vah_1) - np.maximum(v.val, s.val_1) + 1, 0)
    share: Floats = both / ((v.vah - v.val + 1) + (s.vah_1 - s.val_1 + 1) - both)
    return share


def _va_relation(s: Snapshot) -> Ints:
    v = s.profile.levels
    higher = ((v.vah > s.vah_1) & (v.val > s.val_1)).astype(np.int64) + (v.val > s.vah_1)
    lower = ((v.vah < s.vah_1) & (v.val < s.val_1)).astype(np.int64) + (v.vah < s.val_1)
    return higher - lower


def _range(s: Snapshot) -> Ints:
    return s.high - s.low


def _expected_move(s: Snapshot) -> Floats:
    move: Floats = s.close * (s.vix / 100 / np.sqrt(_YEAR))
    return move


_DALTON = "Dalton, Mind over Markets: value area, point of control"
_STRUCTURE = "Dalton, Mind over Markets: TPO profile"
_BALANCE = "Steidlmayer: initial balance and range extension"
_RANGE = "position in the range (stochastic %K)"
_SHARE = "concentration of volume at price"
_MIGRATION = "value migration between sessions"
_MEMORY = "untested levels of earlier sessions"
_MOMENT = "moments of the volume at price"
_ENTROPY = "Shannon entropy of the volume at price"
_NODES = "high and low volume nodes of the smoothed profile"
_VOLUME = "volume against its habit"
_DIRECTION = "volume by direction of the bar; a proxy, not order flow"
_IMPLIED = "CBOE VIX"
_VOLATILITY = "average daily range (ADR): without gaps and smoothing, unlike Wilder's ATR"
_RETURN = "log return"
_GAP = "opening gap"
_NIGHT = "overnight range against the day's"

FEATURES = (
    Feature("vpoc_dist", "P - VPOC", TICKS, _DALTON, lambda s: s.price - s.profile.levels.vpoc),
    Feature("vah_dist", "VAH - P", TICKS, _DALTON, lambda s: s.profile.levels.vah - s.price),
    Feature("val_dist", "P - VAL", TICKS, _DALTON, lambda s: s.price - s.profile.levels.val),
    Feature("va_width", "VAH - VAL", TICKS, _DALTON, lambda s: s.profile.levels.vah - s.profile.levels.val),
    Feature(
        "va_width_frac",
        "(VAH - VAL) / (H - L)",
        RATIO,
        _DALTON,
        lambda s: _ratio(s.profile.levels.vah - s.profile.levels.val, _range(s)),
    ),
    Feature(
        "vpoc_pos",
        "(VPOC - L) / (H - L)",
        RATIO,
        _RANGE,
        lambda s: _ratio(s.profile.levels.vpoc - s.low, _range(s), 0.5),
    ),
    Feature("close_pos", "(C - L) / (H - L)", RATIO, _RANGE, lambda s: _ratio(s.close - s.low, _range(s), 0.5)),
    Feature(
        "close_vs_va",
        "C: -1 below VAL, 0 inside, +1 above VAH",
        CODE,
        _DALTON,
        lambda s: _side(s.close, s.profile.levels.val, s.profile.levels.vah),
    ),
    Feature(
        "vpoc_share",
        "volume at VPOC / V",
        RATIO,
        _SHARE,
        lambda s: _ratio(s.profile.levels.vpoc_volume, s.profile.levels.volume),
    ),
    Feature(
        "va_share",
        "volume in VA / V",
        RATIO,
        _SHARE,
        lambda s: _ratio(s.profile.levels.area_volume, s.profile.levels.volume),
    ),
    Feature("vpoc_chg1", "VPOC - VPOC of t-1", TICKS, _MIGRATION, lambda s: s.profile.levels.vpoc - s.vpoc_1),
    Feature("vpoc_chg5", "VPOC - VPOC of t-5", TICKS, _MIGRATION, lambda s: s.profile.levels.vpoc - s.vpoc_5),
    Feature("va_overlap", "rows in VA and VA of t-1 / rows in either", RATIO, _MIGRATION, _va_overlap),
    Feature(
        "va_relation",
        "+2 VA above that of t-1, +1 overlapping and both ends higher, 0 inside or outside, -1, -2",
        CODE,
        _MIGRATION,
        _va_relation,
    ),
    Feature(
        "open_vs_prior_va",
        "latest open against the VA before it, as in close_vs_va",
        CODE,
        _DALTON,
        lambda s: _side(s.entry, s.entry_val, s.entry_vah),
    ),
    Feature("gap", "latest open - close before it", TICKS, _GAP, lambda s: s.entry - s.entry_close),
    Feature(
        "prior_vpoc_hit",
        "1 if L <= VPOC of t-1 <= H",
        CODE,
        _MEMORY,
        lambda s: ((s.low <= s.vpoc_1) & (s.vpoc_1 <= s.high)).astype(np.int64),
    ),
    Feature("comp5_dist", "P - VPOC of the composite of 5 sessions", TICKS, _DALTON, lambda s: s.price - s.comp5),
    Feature("comp20_dist", "P - VPOC of the composite of 20 sessions", TICKS, _DALTON, lambda s: s.price - s.comp20),
    Feature("naked_n", "naked VPOCs alive", COUNT, _MEMORY, lambda s: s.naked.above + s.naked.below),
    Feature(
        "naked_up", "nearest naked VPOC above - P, at most 4 adr20", TICKS, _MEMORY, lambda s: _capped(s, s.naked.up)
    ),
    Feature(
        "naked_dn", "P - nearest naked VPOC below, at most 4 adr20", TICKS, _MEMORY, lambda s: _capped(s, s.naked.down)
    ),
    Feature("naked_age", "sessions since the nearest naked VPOC formed", SESSIONS, _MEMORY, lambda s: s.naked.age),
    Feature(
        "naked_imb",
        "(naked above - naked below) / naked",
        RATIO,
        _MEMORY,
        lambda s: (s.naked.above - s.naked.below) / np.maximum(s.naked.above + s.naked.below, 1),
    ),
    Feature(
        "vwap_dist",
        "P - volume-weighted mean price",
        TICKS,
        _MOMENT,
        lambda s: np.where(s.profile.levels.volume > 0, s.price - s.vwap, 0.0),
    ),
    Feature("prof_std", "sqrt(m2) of the profile", TICKS, _MOMENT, lambda s: s.std),
    Feature("prof_skew", "m3 / m2^1.5", RATIO, _MOMENT, lambda s: s.skew),
    Feature("prof_kurt", "m4 / m2^2 - 3", RATIO, _MOMENT, lambda s: s.kurt),
    Feature("prof_entropy", "-sum p ln p / ln(rows)", RATIO, _ENTROPY, lambda s: s.profile.entropy),
    Feature(
        "shape_pb",
        "share of V in the upper third of the rows - share in the lower",
        RATIO,
        _DALTON,
        lambda s: _ratio(s.profile.upper - s.profile.lower, s.profile.levels.volume),
    ),
    Feature("hvn_n", "high volume nodes", COUNT, _NODES, lambda s: s.profile.hvn),
    Feature("lvn_n", "low volume nodes between them", COUNT, _NODES, lambda s: s.profile.lvn),
    Feature("tpoc_dist", "P - TPOC", TICKS, _STRUCTURE, lambda s: s.price - s.profile.time.tpoc),
    Feature("vpoc_tpoc", "VPOC - TPOC", TICKS, _STRUCTURE, lambda s: s.profile.levels.vpoc - s.profile.time.tpoc),
    Feature(
        "single_share",
        "single-print rows / rows",
        RATIO,
        _STRUCTURE,
        lambda s: s.profile.time.single / (s.profile.high - s.profile.low + 1),
    ),
    Feature("tail_hi", "rows in the upper tail", TICKS, _STRUCTURE, lambda s: s.profile.time.tail_hi),
    Feature("tail_lo", "rows in the lower tail", TICKS, _STRUCTURE, lambda s: s.profile.time.tail_lo),
    Feature(
        "poor_hl",
        "poor high - poor low",
        CODE,
        _STRUCTURE,
        lambda s: s.profile.time.poor_hi.astype(np.int64) - s.profile.time.poor_lo,
    ),
    Feature("ib_range", "IBH - IBL", TICKS, _BALANCE, lambda s: s.ib_range),
    Feature("ib_frac", "(IBH - IBL) / (H - L)", RATIO, _BALANCE, lambda s: _ratio(s.ib_range, _range(s))),
    Feature("ext_up", "H - IBH", TICKS, _BALANCE, lambda s: s.ext_up),
    Feature("ext_dn", "IBL - L", TICKS, _BALANCE, lambda s: s.ext_dn),
    Feature("dvpoc_age", "minutes since the developing VPOC moved", MINUTES, _DALTON, lambda s: s.vpoc_age),
    Feature(
        "log_vol_rel",
        "ln(V / mean V of 20 full sessions by the same minute)",
        RATIO,
        _VOLUME,
        lambda s: _log_ratio(s.profile.levels.volume, s.usual_volume),
    ),
    Feature(
        "on_vol_share",
        "overnight volume / volume of the day",
        RATIO,
        _VOLUME,
        lambda s: _ratio(s.on_volume, s.day_volume),
    ),
    Feature(
        "delta_proxy",
        "sum of sign(close - open) v / V",
        RATIO,
        _DIRECTION,
        lambda s: _ratio(s.flow.signed, s.profile.levels.volume),
    ),
    Feature(
        "delta_at_vpoc",
        "the same over the bars whose range holds the VPOC",
        RATIO,
        _DIRECTION,
        lambda s: _ratio(s.flow.signed_at, s.flow.volume_at),
    ),
    Feature("on_range_frac", "overnight range / (H - L)", RATIO, _NIGHT, lambda s: _ratio(s.on_range, _range(s))),
    Feature("vix", "last VIX value published", POINTS, _IMPLIED, lambda s: s.vix),
    Feature("vix_chg", "ln(VIX / VIX close of t-1)", RATIO, _IMPLIED, lambda s: _log_ratio(s.vix, s.vix_1)),
    Feature(
        "vix_z20",
        "(VIX - mean of 20 closes) / their standard deviation",
        RATIO,
        _IMPLIED,
        lambda s: _ratio(s.vix - s.vix_mean, s.vix_std),
    ),
    Feature(
        "range_to_expected_move",
        "(H - L) / (C VIX / 100 / sqrt(252)): range over the expected move of a day, one standard deviation",
        RATIO,
        _IMPLIED,
        lambda s: _ratio(_range(s).astype(np.float64), _expected_move(s)),
    ),
    Feature("adr20", "mean of H - L over 20 sessions", TICKS, _VOLATILITY, lambda s: s.adr),
    Feature("ret1", "ln(C / C of t-1)", RATIO, _RETURN, lambda s: _log_ratio(s.close, s.close_1)),
)


def _capped(s: Snapshot, distance: Ints) -> Floats:
    return np.minimum(distance, 4 * s.adr)


NAMES = tuple(feature.name for feature in FEATURES)
FEATURES_SCHEMA = "5.5670d39b1f16"
"""Version of the features and targets: a number, then the digest of this table, which `test_build.py` computes.

The number is raised when the input of the formulas, or a target, changes.
"""
BY_RANGE = frozenset(feature.name for feature in FEATURES if feature.unit == TICKS) - {"adr20"}
"""Columns that are divided by the row's adr20 before they enter a network."""
