"""The features: one table of name, formula, unit and source, which the code computes from.

A division by zero gives 0.5 for a position in a range and 0 for any other ratio.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vpoc.data.bars import Floats, Ints
from vpoc.profile.levels import Levels

TICKS, RATIO, CODE = "ticks", "ratio", "code"


@dataclass(frozen=True)
class Snapshot:
    """What is known at the as-of time of each row; every array is [rows], prices in ticks.

    `high`, `low`, `close`: RTH of the session up to the as-of time. `levels`: of the same bars.
    `vpoc_1`, `vpoc_5`: VPOC of the session 1 and 5 sessions before.
    """

    high: Ints
    low: Ints
    close: Ints
    levels: Levels
    vpoc_1: Ints
    vpoc_5: Ints


@dataclass(frozen=True)
class Feature:
    """A column: its `name`, its `formula` in words of the documentation, `unit`, `source`, and how it is computed."""

    name: str
    formula: str
    unit: str
    source: str
    compute: Callable[[Snapshot], Ints | Floats]


def _ratio(part: Ints, whole: Ints, otherwise: float) -> Floats:
    zero = whole == 0
    return np.where(zero, otherwise, part / np.where(zero, 1, whole))


def _close_vs_va(s: Snapshot) -> Ints:
    above, below = s.close > s.levels.vah, s.close < s.levels.val
    return above.astype(np.int64) - below.astype(np.int64)


DALTON = "Dalton, Mind over Markets: value area and point of control"
RANGE = "position in the day's range (stochastic %K)"
SHARE = "concentration of volume at price"
MIGRATION = "value migration between sessions"

FEATURES = (
    Feature("vpoc_dist", "C - VPOC", TICKS, DALTON, lambda s: s.close - s.levels.vpoc),
    Feature("vah_dist", "VAH - C", TICKS, DALTON, lambda s: s.levels.vah - s.close),
    Feature("val_dist", "C - VAL", TICKS, DALTON, lambda s: s.close - s.levels.val),
    Feature("va_width", "VAH - VAL", TICKS, DALTON, lambda s: s.levels.vah - s.levels.val),
    Feature(
        "va_width_frac",
        "(VAH - VAL) / (H - L)",
        RATIO,
        DALTON,
        lambda s: _ratio(s.levels.vah - s.levels.val, s.high - s.low, 0.0),
    ),
    Feature(
        "vpoc_pos", "(VPOC - L) / (H - L)", RATIO, RANGE, lambda s: _ratio(s.levels.vpoc - s.low, s.high - s.low, 0.5)
    ),
    Feature("close_pos", "(C - L) / (H - L)", RATIO, RANGE, lambda s: _ratio(s.close - s.low, s.high - s.low, 0.5)),
    Feature("close_vs_va", "-1 below VAL, 0 inside, +1 above VAH", CODE, DALTON, _close_vs_va),
    Feature("vpoc_share", "H[VPOC] / V", RATIO, SHARE, lambda s: _ratio(s.levels.vpoc_volume, s.levels.volume, 0.0)),
    Feature("va_share", "volume in VA / V", RATIO, SHARE, lambda s: _ratio(s.levels.area_volume, s.levels.volume, 0.0)),
    Feature("vpoc_chg1", "VPOC(t) - VPOC(t-1)", TICKS, MIGRATION, lambda s: s.levels.vpoc - s.vpoc_1),
    Feature("vpoc_chg5", "VPOC(t) - VPOC(t-5)", TICKS, MIGRATION, lambda s: s.levels.vpoc - s.vpoc_5),
)

NAMES = tuple(feature.name for feature in FEATURES)
SCALING = {feature.name: "atr20" if feature.unit == TICKS else "none" for feature in FEATURES}
"""How each column enters a network: divided by the row's atr20, or as it is."""
