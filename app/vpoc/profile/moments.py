"""Moments of the volume over the price, from the bars alone: a bar costs the same however many ticks it covers.

Sums of powers about one fixed price grow large and lose digits when they are moved to the mean. Integers lose none:
after an overflow of 64 bits the result is right again if it fits, and the sum about the mean nearly always does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from vpoc.arrays import Flags, Floats, Ints
from vpoc.profile.histogram import Spread

ONE_FIFTH = -3_689_348_814_741_910_323
"""Multiplying by this, modulo 2^64, divides a multiple of 5 by 5."""
FITS = 2.0**62


@dataclass(frozen=True)
class Moments:
    """Moments of profiles; every array is [profiles].

    `mean`: from the reference, ticks.
    `std`: ticks.
    `skew`: third standardised moment.
    `kurt`: fourth standardised moment, less 3.

    All are 0 without volume, and all but the mean if the volume is at one price.
    """

    mean: Floats
    std: Floats
    skew: Floats
    kurt: Floats


def profile_moments(
    placed: Spread,
    reference: Ints,
    add_up: Callable[[Any], Any],
    volume: Ints,
    width: Ints,
    spread: Flags,
) -> Moments:
    """Return the moments of profiles whose bars are `placed`; prices in ticks.

    `reference` [bars]: one price for each session.
    `add_up`: sums values of bars [bars, 4] to those of profiles [profiles, 4].
    `volume`, `width` [profiles]: of the profiles; the width in ticks.
    `spread`: flags of profiles with volume at more than one price.
    """
    mean, second, third, fourth = _about_the_mean(add_up(_power_sums(placed, reference, np.int64)), volume)
    wide = volume * width.astype(np.float64) ** 4 >= FITS
    if wide.any():
        rough = _roughly_about_the_mean(add_up(_power_sums(placed, reference, np.float64)), volume)
        mean, second, third, fourth = (
            np.where(wide, other, exact) for other, exact in zip(rough, (mean, second, third, fourth), strict=True)
        )
    some = spread & (second > 0)
    variance = np.where(some, second, 1.0)
    return Moments(
        mean=mean,
        std=np.where(some, np.sqrt(variance), 0.0),
        skew=np.where(some, third / variance**1.5, 0.0),
        kurt=np.where(some, fourth / variance**2 - 3, 0.0),
    )


def _power_sums(placed: Spread, reference: Ints, kind: Any) -> Any:
    """Return the sum of volume * (price - reference)^p, p = 1..4, per bar [bars, 4], modulo 2^64 for integers."""
    share: Any = placed.share.astype(kind)
    extra: Any = (placed.left > 0).astype(kind)
    low, high = _below(placed.low - reference, kind), _below(placed.high + 1 - reference, kind)
    begin = _below(placed.run - reference, kind)
    end = _below(placed.run + placed.left - reference, kind)
    columns = [
        share * (top - bottom) + extra * (stop - start)
        for bottom, top, start, stop in zip(low, high, begin, end, strict=True)
    ]
    return np.stack(columns, axis=1)


def _below(x: Ints, kind: Any) -> tuple[Any, Any, Any, Any]:
    """Return sums of k^p over 0 < k < x, or minus those over x <= k <= 0, p = 1..4, by Faulhaber's formulas."""
    n = x - 1
    first = n * (n + 1) // 2
    second = first * (2 * n + 1) // 3
    third: Any = first.astype(kind) ** 2
    factor = 3 * n * n + 3 * n - 1
    fourth = second * factor * ONE_FIFTH if kind is np.int64 else second.astype(kind) * factor / 5
    return first.astype(kind), second.astype(kind), third, fourth


def _about_the_mean(sums: Ints, volume: Ints) -> tuple[Floats, Floats, Floats, Floats]:
    """Return the mean from the reference, and the second to fourth central moment."""
    whole = np.where(volume > 0, volume, 1)
    s1, s2, s3, s4 = (sums[:, power] for power in range(4))
    # In integers about the tick nearest to the mean; from there, by less than a tick, in floats.
    m = np.rint(s1 / whole).astype(np.int64)
    rest = (s1 - m * whole) / whole
    # Powers of integers would cost as much as all the rest.
    m2 = m * m
    m3, m4 = m2 * m, m2 * m2
    second = (s2 - 2 * m * s1 + m2 * volume) / whole
    third = (s3 - 3 * m * s2 + 3 * m2 * s1 - m3 * volume) / whole
    fourth = (s4 - 4 * m * s3 + 6 * m2 * s2 - 4 * m3 * s1 + m4 * volume) / whole
    return (
        m + rest,
        second - rest**2,
        third - 3 * rest * second + 2 * rest**3,
        fourth - 4 * rest * third + 6 * rest**2 * second - 3 * rest**4,
    )


def _roughly_about_the_mean(sums: Floats, volume: Ints) -> tuple[Floats, Floats, Floats, Floats]:
    """Return the same moments, in floats only."""
    whole = np.where(volume > 0, volume, 1).astype(np.float64)
    mean, second, third, fourth = (sums[:, power] / whole for power in range(4))
    return (
        mean,
        second - mean**2,
        third - 3 * mean * second + 2 * mean**3,
        fourth - 4 * mean * third + 6 * mean**2 * second - 3 * mean**4,
    )
