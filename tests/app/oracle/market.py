"""Synthetic markets: a few weeks of coarse bars with the things that real files have, and the CSV that loads them.

The days are those of autumn 2025: winter time from 2 November, Thanksgiving on the 27th, a half day on the 28th.
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
    """The minute at which the NYSE closes, from September 2025 to April 2026."""
    if date.weekday() >= 5 or date in HOLIDAYS:
        return None
    return 13 * 60 if date in HALF_DAYS else 16 * 60


def until_1615(date):
    close = calendar(date)
    return 16 * 60 + 15 if close == 16 * 60 else close


def market_csv(bars):
    """The merged CSV of `bars`; the column `symbol` only when they have one."""
    symbols = bars[0].symbol is not None
    lines = ["ts,open,high,low,close,volume,vix" + (",symbol" if symbols else "")]
    for bar in bars:
        stamp = dt.datetime.fromtimestamp(bar.ts, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        prices = ",".join(f"{price / 4:.2f}" for price in (bar.open, bar.high, bar.low, bar.close))
        vix = "" if bar.vix is None else f"{bar.vix:.2f}"
        lines.append(f"{stamp},{prices},{bar.volume},{vix}" + (f",{bar.symbol}" if symbols else ""))
    return "\n".join(lines) + "\n"


def trading_minutes(date, step):
    """Minutes of the New York day `date`, from 18:00 of the day before on, at which a bar starts; UTC stamps.

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
    """Bars of `minutes` for trade dates from `first` on, `days` of them sessions.

    `night`: share of the bars outside regular hours that are there, and but for 0 the first one after them.
    `without_vix`: bars before the first VIX.
    At a roll the price jumps by 60 ticks.
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
            # Of a session without a bar in the evening the last VIX is not known, nor a mean of 20 of them.
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
    """Positions of the regular bars of a session."""
    return [i for i, bar in enumerate(bars) if utc(date, OPEN) <= bar.ts < utc(date, calendar(date))]


def drop(bars, positions):
    gone = set(positions)
    return [bar for i, bar in enumerate(bars) if i not in gone]


def market(bars, minutes, rolls=(), **options):
    return Market(bars=bars, bar_seconds=60 * minutes, calendar=calendar, rolls=frozenset(rolls), **options)
