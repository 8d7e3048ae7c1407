"""Compute volume profiles by brute force, one tick at a time, in Python integers.

A profile is a dict from row to volume with every row from the lowest to the highest, empty ones too. With row size
1, a row is a tick; with a larger size, row k holds the ticks k * size .. k * size + size - 1.
"""

import math
from fractions import Fraction
from itertools import groupby
from typing import NamedTuple


class Bar(NamedTuple):
    """A bar; `ts`: its start in UTC seconds; prices in ticks; `vix`: None before the first VIX was published."""

    ts: int
    open: int
    high: int
    low: int
    close: int
    volume: int
    vix: float | None = None
    symbol: str | None = None


class Area(NamedTuple):
    high: int
    low: int
    volume: int


def placed(bar, placement):
    """Return the volume of one bar by tick."""
    if placement == "uniform":
        ticks = range(bar.low, bar.high + 1)
        share, left = divmod(bar.volume, len(ticks))
        start = bar.close - left // 2
        start = min(start, bar.high - left + 1)
        start = max(start, bar.low)
        return {tick: share + (1 if start <= tick < start + left else 0) for tick in ticks}
    if placement == "typical":
        return {math.floor(Fraction(bar.high + bar.low + bar.close, 3) + Fraction(1, 2)): bar.volume}
    return {bar.close: bar.volume}


def dense(low, high, size):
    return dict.fromkeys(range(low // size, high // size + 1), 0)


def profile(bars, placement="uniform", size=1):
    rows = dense(min(bar.low for bar in bars), max(bar.high for bar in bars), size)
    for bar in bars:
        for tick, volume in placed(bar, placement).items():
            rows[tick // size] += volume
    return rows


def tpo(bars, brackets, size=1):
    """Return in how many different brackets each row traded; brackets[i] is the bracket of bars[i]."""
    rows = dense(min(bar.low for bar in bars), max(bar.high for bar in bars), size)
    for row in rows:
        held = {b for bar, b in zip(bars, brackets, strict=True) if bar.low // size <= row <= bar.high // size}
        rows[row] = len(held)
    return rows


def vpoc(rows):
    middle_twice = min(rows) + max(rows)
    peak = max(rows.values())
    tied = [row for row, volume in rows.items() if volume == peak]
    return min(tied, key=lambda row: (abs(2 * row - middle_twice), row))


def value_area(rows, method="two_row"):
    step = {"two_row": 2, "one_row": 1}[method]
    top = bottom = vpoc(rows)
    volume, total = rows[top], sum(rows.values())
    while 10 * volume < 7 * total:
        above = [row for row in range(top + 1, top + step + 1) if row in rows]
        below = [row for row in range(bottom - step, bottom) if row in rows]
        gain_above = sum(rows[row] for row in above) if above else -1
        gain_below = sum(rows[row] for row in below) if below else -1
        if gain_above >= gain_below:
            top, volume = max(above), volume + gain_above
        else:
            bottom, volume = min(below), volume + gain_below
    return Area(top, bottom, volume)


def developing_vpocs(bars, placement="uniform"):
    return [vpoc(profile(bars[: i + 1], placement)) for i in range(len(bars))]


def single_prints(rows):
    """Return the rows of one TPO that have a row of two or more TPOs somewhere below and somewhere above."""
    several = [row for row, count in rows.items() if count >= 2]
    return [row for row, count in rows.items() if count == 1 and several and min(several) < row < max(several)]


def upper_tail(rows):
    """Return how many rows from the highest down have one TPO without a break."""
    length = 0
    for row in sorted(rows, reverse=True):
        if rows[row] != 1:
            break
        length += 1
    return length


def lower_tail(rows):
    """Return how many rows from the lowest up have one TPO without a break."""
    length = 0
    for row in sorted(rows):
        if rows[row] != 1:
            break
        length += 1
    return length


def poor_high(rows):
    return rows[max(rows)] >= 2


def poor_low(rows):
    return rows[min(rows)] >= 2


def smoothed(rows):
    return {row: sum((5 - abs(away)) * rows.get(row + away, 0) for away in range(-4, 5)) for row in rows}


def nodes(rows):
    """Return the prices of the high and of the low volume nodes."""
    smooth = smoothed(rows)
    peak = max(smooth.values())
    if peak == 0:
        return [], []
    # Maximal runs of equal volume, each as (volume, lowest row, highest row).
    runs = []
    for value, run in groupby(sorted(smooth), key=smooth.__getitem__):
        found = list(run)
        runs.append((value, found[0], found[-1]))
    high, low = [], []
    for i, (value, first, last) in enumerate(runs):
        under = runs[i - 1][0] if i > 0 else None
        over = runs[i + 1][0] if i + 1 < len(runs) else None
        middle = (first + last) // 2
        if (under is None or under < value) and (over is None or over < value) and 2 * value >= peak:
            high.append(middle)
        if under is not None and over is not None and under > value < over and 4 * value <= peak:
            low.append(middle)
    return high, [row for row in low if any(h < row for h in high) and any(h > row for h in high)]


def composite(profiles):
    """Return the sum of profiles, over all rows from the lowest of any to the highest of any."""
    rows = dense(min(min(rows) for rows in profiles), max(max(rows) for rows in profiles), 1)
    for one in profiles:
        for row, volume in one.items():
            rows[row] += volume
    return rows


def is_naked(level, ranges):
    """Return whether `level` lies in none of the ranges (low, high)."""
    return not any(low <= level <= high for low, high in ranges)


def thirds(rows):
    """Return the volume in the lower and in the upper third of the range."""
    lowest, count = min(rows), len(rows)
    lower = upper = 0
    for row, volume in rows.items():
        middle = row - lowest + Fraction(1, 2)
        if middle <= Fraction(count, 3):
            lower += volume
        if middle >= Fraction(2 * count, 3):
            upper += volume
    return lower, upper


def mean(rows):
    return Fraction(sum(row * volume for row, volume in rows.items()), sum(rows.values()))


def central_moment(rows, power):
    centre = mean(rows)
    return sum((row - centre) ** power * volume for row, volume in rows.items()) / sum(rows.values())


def entropy(rows):
    """Return -sum p ln p / ln(rows); 0 for a single row."""
    total = sum(rows.values())
    if len(rows) == 1:
        return 0.0
    shares = [Fraction(volume, total) for volume in rows.values() if volume]
    return math.fsum(float(-p) * math.log(p) for p in shares) / math.log(len(rows))
