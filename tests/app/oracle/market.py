"""Synthetic markets: a few weeks of coarse bars with features of real files, and the CSV that the app loads.

The days are in autumn 2025: winter time from 2 November, Thanksgiving on the 27th, a half day on the 28th.
"""

import datetime as dt
import random

from oracle.features import Market
from oracle.profile import Bar
from oracle.sessions import OPEN, next_session, utc

HOLIDAYS = {
    dt.date(2025, 9, 1), dt.date(2025, 11, 27), dt.date(2025, 12, 25), dt.date(2026, 1, 1),
    dt.date(2026, 1, 19), dt.date(2026, 2, 16), dt.date(2026, 4, 3),
}  # fmt: skip
HALF_DAYS = {dt.date(2025, 11, 28), dt.date(2025, 12, 24)}


def calendar(date):
    """Return the minute at which the NYSE closes, from September 2025 to April 2026; None if it does not open."""
    if date.weekday() >= 5 or date in HOLIDAYS:
        return None
    return 13 * 60 if date in HALF_DAYS else 16 * 60


def until_1615(date):
    close = calendar(date)
    return 16 * 60 + 15 if close == 16 * 60 else close


def market_csv(bars):
    """Return the merged CSV of `bars`, with a column `symbol` only if the bars have one."""
    symbols = bars[0].symbol is not None
    lines = ["ts,open,high,low,close,volume,vix" + (",symbol" if symbols else "")]
    for bar in bars:
        stamp = dt.datetime.fromtimestamp(bar.ts, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        prices = ",".join(f"{price / 4:.2f}" for price in (bar.open, bar.high, bar.low, bar.close))
        vix = "" if bar.vix is None else f"{bar.vix:.2f}"
        lines.append(f"{stamp},{prices},{bar.volume},{vix}" + (f",{bar.symbol}" if symbols else ""))
    return "\n".join(lines) + "\n"


def trading_minutes(date, step):
    """Return the minutes at which a bar of the New York day `date` starts, counted from midnight; from -360 (18:00) on.

    A holiday trades until 13:00, a half day until 13:15, a weekend not at all.
    """
    if date.weekday() >= 5:
        return []
    close = calendar(date)
    stop = 13 * 60 if close is None else 13 * 60 + 30 if close == 13 * 60 else 17 * 60
    return list(range(-6 * 60, stop, step))


def synthetic(
    seed,
    days,
    minutes,
    first=dt.date(2025, 10, 20),
    volume=(0, 30),
    pace=4,
    night=0.3,
    rolls=(),
    symbols=False,
    without_vix=0,
    vix_pace=30,
):
    """Return bars of `minutes` for trade dates from `first` on, until there are `days` sessions.

    `night`: the share of the bars outside regular hours that exist; unless 0, the first bar after them always exists.
    `without_vix`: the number of bars before the first VIX.
    At a roll, the price jumps by 60 ticks.
    """
    rng = random.Random(seed)
    price, vix, symbol = 16_000, 1_700, "ESZ5"
    bars = []
    date, done = first, 0
    while done < days:
        if date in rolls:
            price, symbol = price + 60, "ESH6"
        is_session = calendar(date) is not None
        lively = rng.choice([1, pace, pace, 3 * pace])
        price += rng.choice([0, 0, 3, -3, 10, -10]) * pace
        for minute in trading_minutes(date, minutes):
            regular = is_session and OPEN <= minute < calendar(date)
            left_out = not regular and rng.random() > night
            # Without a bar after regular hours, a session has no last VIX, and no mean over 20 sessions is known.
            if left_out and not (night and is_session and minute == calendar(date)):
                continue
            moves = lively if regular else 1
            open_ = price + rng.choice([0, 0, 0, 1, -1])
            close = open_ + rng.randint(-moves, moves)
            high = max(open_, close) + rng.randint(0, moves)
            low = min(open_, close) - rng.randint(0, moves)
            vix = max(900, min(5_000, vix + rng.randint(-vix_pace, vix_pace)))
            size = rng.randint(*volume) if rng.random() > 0.1 else 0
            known = vix / 100 if len(bars) >= without_vix else None
            stamp = utc(date, minute)
            bars.append(Bar(stamp, open_, high, low, close, size, known, symbol if symbols else None))
            price = close
        done += is_session
        date += dt.timedelta(days=1)
    return bars


def session_dates(first, count):
    dates = [first]
    while len(dates) < count:
        dates.append(next_session(dates[-1], calendar))
    return dates


def regular(bars, date):
    """Return the positions of the RTH bars of a session."""
    return [i for i, bar in enumerate(bars) if utc(date, OPEN) <= bar.ts < utc(date, calendar(date))]


def drop(bars, positions):
    gone = set(positions)
    return [bar for i, bar in enumerate(bars) if i not in gone]


def market(bars, minutes, rolls=(), **options):
    return Market(bars=bars, bar_seconds=60 * minutes, calendar=calendar, rolls=frozenset(rolls), **options)
