"""Compute the features and the targets by brute force, one row at a time, from the definitions.

Every row is a dict from column names to values. A row that lacks a value is left out.
"""

import math
from dataclasses import dataclass, field
from datetime import date
from fractions import Fraction
from functools import cache

from oracle import profile as vp
from oracle.profile import Bar
from oracle.sessions import OPEN, Calendar, Session, local, next_session, split, utc

FEATURES = [
    "vpoc_dist", "vah_dist", "val_dist", "va_width", "va_width_frac", "vpoc_pos", "close_pos", "close_vs_va",
    "vpoc_share", "va_share", "vpoc_chg1", "vpoc_chg5", "va_overlap", "va_relation", "open_vs_prior_va", "gap",
    "prior_vpoc_hit", "comp5_dist", "comp20_dist", "naked_n", "naked_up", "naked_dn", "naked_age", "naked_imb",
    "vwap_dist", "prof_std", "prof_skew", "prof_kurt", "prof_entropy", "shape_pb", "hvn_n", "lvn_n",
    "tpoc_dist", "vpoc_tpoc", "single_share", "tail_hi", "tail_lo", "poor_hl", "ib_range", "ib_frac", "ext_up",
    "ext_dn", "dvpoc_age", "log_vol_rel", "on_vol_share", "delta_proxy", "delta_at_vpoc", "on_range_frac",
    "vix", "vix_chg", "vix_z20", "range_to_expected_move", "adr20", "ret1",
]  # fmt: skip
"""The features in the order of their numbers, 1 to 54."""
TARGETS = {
    "bar": ["up_30", "move_30", "prior_vpoc_touched", "label_weight"],
    "session": ["next_up", "next_vpoc_touched", "next_vpoc_move"],
}
FULL_CLOSE = 16 * 60
"""The close of a full day, in minutes from midnight; a session that closes earlier is a half day."""


@dataclass(frozen=True)
class Market:
    """A file of bars and what is known about its days.

    `rolls`: the dates of the first sessions of new contracts.
    `bar_seconds`: the length of a bar, or 0 where every row is a trade.
    """

    bars: list[Bar]
    bar_seconds: int
    calendar: Calendar
    rolls: frozenset[date] = frozenset()
    lookback: int = 20
    placement: str = "uniform"
    value_area: str = "two_row"
    profiles: dict[date, dict[int, int]] = field(default_factory=dict, repr=False, init=False)

    def profile(self, session: Session) -> dict[int, int]:
        """Return the RTH profile of a session, which is computed once."""
        if session.date not in self.profiles:
            self.profiles[session.date] = vp.profile(session.rth, self.placement)
        return self.profiles[session.date]

    def sessions(self) -> list[Session]:
        return split(self.bars, self.calendar, self.bar_seconds)

    def roll_between(self, earlier: date, later: date) -> bool:
        return any(earlier < roll <= later for roll in self.rolls)

    def end(self, bar: Bar) -> int:
        return bar.ts + self.bar_seconds


def ratio(above, below, empty=0):
    return Fraction(above) / Fraction(below) if below else Fraction(empty)


def versus(price, area):
    return 1 if price > area.high else -1 if price < area.low else 0


def sign(number):
    return (number > 0) - (number < 0)


def spread(bars):
    return max(bar.high for bar in bars) - min(bar.low for bar in bars) if bars else 0


def total(bars):
    return sum(bar.volume for bar in bars)


def delta(bars):
    return ratio(sum(sign(bar.close - bar.open) * bar.volume for bar in bars), total(bars))


class Past:
    """The complete sessions before session t, and the trading since each of them."""

    def __init__(self, market, sessions, t):
        self.market = market
        self.sessions = sessions
        self.t = t
        self.complete = [session for session in sessions[:t] if session.complete]
        self.same_contract = [s for s in self.complete if not market.roll_between(s.date, sessions[t].date)]

    def k_th(self, k):
        return self.complete[-k]

    def vpoc(self, session):
        return vp.vpoc(self.market.profile(session))

    def area(self, session):
        return vp.value_area(self.market.profile(session), self.market.value_area)

    def composite_vpoc(self, sessions):
        return vp.vpoc(vp.composite([self.market.profile(session) for session in sessions]))

    def naked(self, now):
        """Return (level, age in complete sessions) of VPOCs not traded through since; `now`: RTH bars of session t."""
        alive = []
        for k in range(1, min(60, self.market.lookback) + 1):
            if k > len(self.complete) or self.k_th(k) not in self.same_contract:
                continue
            formed = self.k_th(k)
            since = [s.rth for s in self.sessions[: self.t] if s.date > formed.date and s.rth]
            ranges = [(min(bar.low for bar in rth), max(bar.high for bar in rth)) for rth in [*since, now]]
            if vp.is_naked(self.vpoc(formed), ranges):
                alive.append((self.vpoc(formed), k))
        return alive

    def vix_close(self, session):
        ended = [bar for bar in session.bars if self.market.end(bar) <= utc(session.date, 17 * 60)]
        return ended[-1].vix

    def usual_volume(self, minutes):
        """Return the mean volume in the first `minutes` of RTH over the last 20 full days; None if there are fewer."""
        full = [session for session in self.complete if session.close >= FULL_CLOSE][-20:]
        if len(full) < 20:
            return None
        return Fraction(
            sum(b.volume for s in full for b in s.rth if b.ts < utc(s.date, OPEN + minutes)),
            20,
        )


def has_row(market, sessions, t):
    """Return whether session t, complete or in progress, has all the earlier sessions that a row needs."""
    before = [session for session in sessions[:t] if session.complete]
    if len(before) < max(market.lookback, 5):
        return False
    five = before[-5:]
    for earlier, later in zip(five, [*five[1:], sessions[t]], strict=True):
        if next_session(earlier.date, market.calendar) != later.date:
            return False
    return not market.roll_between(five[0].date, sessions[t].date)


def of_profile(market, rth, price):
    """Return the features of the bars `rth` alone; `price` (C or O') is the price that distances are taken from."""
    rows = vp.profile(rth, market.placement)
    vpoc, area = vp.vpoc(rows), vp.value_area(rows, market.value_area)
    high, low, close = max(b.high for b in rth), min(b.low for b in rth), rth[-1].close
    volume = total(rth)
    brackets = [((local(bar.ts).hour * 60 + local(bar.ts).minute) - OPEN) // 30 for bar in rth]
    tpos = vp.tpo(rth, brackets)
    tpoc = vp.vpoc(tpos)
    initial = [bar for bar in rth if (local(bar.ts).hour, local(bar.ts).minute) < (10, 30)] or rth
    hvn, lvn = vp.nodes(rows)
    found = {
        "vpoc_dist": price - vpoc,
        "vah_dist": area.high - price,
        "val_dist": price - area.low,
        "va_width": area.high - area.low,
        "va_width_frac": ratio(area.high - area.low, high - low),
        "vpoc_pos": ratio(vpoc - low, high - low, Fraction(1, 2)),
        "close_pos": ratio(close - low, high - low, Fraction(1, 2)),
        "close_vs_va": versus(close, area),
        "vpoc_share": ratio(rows[vpoc], volume),
        "va_share": ratio(area.volume, volume),
        "hvn_n": len(hvn),
        "lvn_n": len(lvn),
        "tpoc_dist": price - tpoc,
        "vpoc_tpoc": vpoc - tpoc,
        "single_share": ratio(len(vp.single_prints(tpos)), len(tpos)),
        "tail_hi": vp.upper_tail(tpos),
        "tail_lo": vp.lower_tail(tpos),
        "poor_hl": int(vp.poor_high(tpos)) - int(vp.poor_low(tpos)),
        "ib_range": spread(initial),
        "ib_frac": ratio(spread(initial), high - low),
        "ext_up": high - max(b.high for b in initial),
        "ext_dn": min(b.low for b in initial) - low,
        "delta_proxy": delta(rth),
        "delta_at_vpoc": delta([bar for bar in rth if bar.low <= vpoc <= bar.high]),
    }
    return found | of_moments(rows, price)


def of_moments(rows, price):
    volume = sum(rows.values())
    if not volume:
        return dict.fromkeys(("vwap_dist", "prof_std", "prof_skew", "prof_kurt", "prof_entropy", "shape_pb"), 0)
    m2, m3, m4 = (vp.central_moment(rows, power) for power in (2, 3, 4))
    lower, upper = vp.thirds(rows)
    return {
        "vwap_dist": price - vp.mean(rows),
        "prof_std": math.sqrt(m2),
        "prof_skew": float(m3) / float(m2) ** 1.5 if m2 else 0,
        "prof_kurt": m4 / m2**2 - 3 if m2 else 0,
        "prof_entropy": vp.entropy(rows),
        "shape_pb": Fraction(upper - lower, volume),
    }


def of_prior(rows_vpoc, area, past):
    """Return the features that compare today's levels with those of t-1 and t-5."""
    before = past.area(past.k_th(1))
    inter = max(0, min(area.high, before.high) - max(area.low, before.low) + 1)
    union = (area.high - area.low + 1) + (before.high - before.low + 1) - inter
    if area.low > before.high:
        relation = 2
    elif area.high < before.low:
        relation = -2
    elif area.high > before.high and area.low > before.low:
        relation = 1
    elif area.high < before.high and area.low < before.low:
        relation = -1
    else:
        relation = 0
    return {
        "vpoc_chg1": rows_vpoc - past.vpoc(past.k_th(1)),
        "vpoc_chg5": rows_vpoc - past.vpoc(past.k_th(5)),
        "va_overlap": Fraction(inter, union),
        "va_relation": relation,
    }


def uniqueness(i, labelled):
    """Return the average uniqueness of the label of bar i, which covers the next 30 bars (Lopez de Prado 2018, 4.4)."""
    return sum(Fraction(1, sum(j < t <= j + 30 for j in labelled)) for t in range(i + 1, i + 31)) / 30


def of_naked(levels, price, adr20):
    above = [(level, age) for level, age in levels if level > price]
    below = [(level, age) for level, age in levels if level < price]
    cap = 4 * adr20
    nearest = min(levels, key=lambda item: (abs(item[0] - price), item[1]), default=(0, 0))
    return {
        "naked_n": len(levels),
        "naked_up": min([level - price for level, _ in above] + [cap]),
        "naked_dn": min([price - level for level, _ in below] + [cap]),
        "naked_age": nearest[1],
        "naked_imb": Fraction(len(above) - len(below), max(1, len(levels))),
    }


@cache
def centre_and_deviation(closes):
    exact = [Fraction(one) for one in closes]
    centre = sum(exact) / len(exact)
    return centre, math.sqrt(sum((one - centre) ** 2 for one in exact) / len(exact))


def of_vix(vix, before, closes, move, close):
    """Return the VIX features, or None when a VIX is missing.

    `before`: the VIX close of t-1.
    `closes`: the 20 closes for mean and deviation.
    """
    if vix is None or before is None or None in closes:
        return None
    now = Fraction(vix)
    centre, deviation = centre_and_deviation(tuple(closes))
    return {
        "vix": vix,
        "vix_chg": math.log(vix / before),
        "vix_z20": float(now - centre) / deviation if deviation else 0,
        "range_to_expected_move": move / (close * vix / 100 / math.sqrt(252)),
    }


def log_relative(volume, usual):
    return math.log(volume / usual) if volume and usual else 0


def last_move(levels):
    """Return the bar at which the developing VPOC last moved; the first bar counts as a move."""
    return max(i for i in range(len(levels)) if i == 0 or levels[i] != levels[i - 1])


def session_rows(market, as_of="close"):
    """Return the rows of complete sessions, as of 17:00 or, with `as_of` "open", the next session's first RTH print."""
    sessions = market.sessions()
    rows = [
        session_row(market, sessions, t, as_of)
        for t in range(len(sessions))
        if sessions[t].complete and has_row(market, sessions, t)
    ]
    return [row for row in rows if row is not None]


def following(market, sessions, t):
    """Return the next session of the calendar, if it has RTH bars and no roll comes before it."""
    if t + 1 == len(sessions) or not sessions[t + 1].rth:
        return None
    after = sessions[t + 1]
    if after.date != next_session(sessions[t].date, market.calendar):
        return None
    return None if market.roll_between(sessions[t].date, after.date) else after


def session_row(market, sessions, t, as_of):
    today, past = sessions[t], Past(market, sessions, t)
    after = following(market, sessions, t)
    if as_of == "open" and after is None:
        return None
    high, low, close = today.high, today.low, today.rth[-1].close
    today_profile = market.profile(today)
    vpoc, area = vp.vpoc(today_profile), vp.value_area(today_profile, market.value_area)
    moved = last_move(vp.developing_vpocs(today.rth, market.placement))
    prior = past.k_th(1)
    usual = past.usual_volume(today.close - OPEN)
    last_20 = [*past.complete[-19:], today]
    contract = [*past.same_contract, today]
    if usual is None or len(last_20) < 20:
        return None
    adr20 = Fraction(sum(session.high - session.low for session in last_20), 20)
    naked = past.naked(today.rth)
    price, vix = close, past.vix_close(today)
    if as_of == "open":
        price = after.rth[0].open
        naked = [(level, age) for level, age in naked if level != price]
        vix = [bar for bar in market.bars if market.end(bar) <= utc(after.date, OPEN)][-1].vix
    of_index = of_vix(vix, past.vix_close(prior), [past.vix_close(s) for s in last_20], high - low, close)
    if of_index is None:
        return None
    row = {
        "trade_date": today.date,
        **of_profile(market, today.rth, price),
        **of_prior(vpoc, area, past),
        "prior_vpoc_hit": int(low <= past.vpoc(prior) <= high),
        "comp5_dist": price - past.composite_vpoc(contract[-5:]),
        "comp20_dist": price - past.composite_vpoc(contract[-20:]),
        **of_naked(naked, price, adr20),
        "dvpoc_age": Fraction(utc(today.date, today.close) - market.end(today.rth[moved]), 60),
        "log_vol_rel": log_relative(total(today.rth), usual),
        **of_index,
        "adr20": adr20,
        "ret1": math.log(Fraction(close, prior.rth[-1].close)),
    }
    if as_of == "open":
        row["open_vs_prior_va"] = versus(price, area)
        row["gap"] = price - close
        row["on_vol_share"] = ratio(total(after.overnight), total(after.overnight) + total(today.rth))
        row["on_range_frac"] = ratio(spread(after.overnight), high - low)
    else:
        row["open_vs_prior_va"] = versus(today.rth[0].open, past.area(prior))
        row["gap"] = today.rth[0].open - prior.rth[-1].close
        night = total(today.overnight)
        row["on_vol_share"] = ratio(night, night + total(today.rth) + total(today.post))
        row["on_range_frac"] = ratio(spread(today.overnight), high - low)
    known = after is not None and after.complete
    row["next_up"] = int(after.rth[-1].close > after.rth[0].open) if known else None
    row["next_vpoc_touched"] = int(after.low <= vpoc <= after.high) if known else None
    row["next_vpoc_move"] = past.vpoc(after) - (price if as_of == "open" else close) if known else None
    # The VIX of a session is published after regular hours; a file without bars at that time does not have it.
    night = after.overnight if as_of == "open" else today.overnight
    known_now = night if as_of == "open" else today.post
    if not night:
        row["on_range_frac"] = None
    if not night or not known_now:
        row["on_vol_share"] = None
    if not known_now:
        row |= dict.fromkeys(("vix", "range_to_expected_move"))
    if not known_now or not prior.post:
        row["vix_chg"] = None
    if not known_now or not all(session.post for session in last_20):
        row["vix_z20"] = None
    return row


def bar_rows(market, only=None):
    """Return rows of RTH bars of complete sessions and of an unfinished last one; `only`: the dates wanted, or None."""
    sessions = market.sessions()
    rows = []
    for t, session in enumerate(sessions):
        wanted = session.rth and (only is None or session.date in only)
        if wanted and (session.complete or not session.over) and has_row(market, sessions, t):
            rows += rows_of_session(market, sessions, t)
    return rows


def rows_of_session(market, sessions, t):
    today, past = sessions[t], Past(market, sessions, t)
    rth, prior = today.rth, past.k_th(1)
    last_20 = past.complete[-20:]
    if len(last_20) < 20:
        return []
    # The facts of earlier sessions are the same for all bars of this session.
    adr20 = Fraction(sum(session.high - session.low for session in last_20), 20)
    comp5 = past.composite_vpoc(past.same_contract[-5:])
    comp20 = past.composite_vpoc(past.same_contract[-20:])
    closes = [past.vix_close(session) for session in last_20]
    prior_vpoc, prior_area = past.vpoc(prior), past.area(prior)
    alive = past.naked([rth[0]])
    developing = vp.developing_vpocs(rth, market.placement)
    labelled = [i for i in range(len(rth)) if i + 30 < len(rth)]
    rows = []
    for i, bar in enumerate(rth):
        so_far = rth[: i + 1]
        high, low, close = max(b.high for b in so_far), min(b.low for b in so_far), bar.close
        profile = vp.profile(so_far, market.placement)
        # A trade is compared with the volume up to the end of its minute.
        usual = past.usual_volume((bar.ts + (market.bar_seconds or 60) - utc(today.date, OPEN)) // 60)
        of_index = of_vix(bar.vix, closes[-1], closes, high - low, close)
        if usual is None or of_index is None:
            continue
        naked = [(level, age) for level, age in alive if vp.is_naked(level, [(low, high)])]
        night = total(today.overnight)
        touches = [b.low <= prior_vpoc <= b.high for b in rth]
        if any(touches[: i + 1]):
            touched = None
        elif any(touches):
            touched = 1
        else:
            touched = 0 if today.over else None
        rows.append(
            {
                "trade_date": today.date,
                "ts": bar.ts,
                **of_profile(market, so_far, close),
                **of_prior(vp.vpoc(profile), vp.value_area(profile, market.value_area), past),
                "open_vs_prior_va": versus(rth[0].open, prior_area),
                "gap": rth[0].open - prior.rth[-1].close,
                "prior_vpoc_hit": int(low <= prior_vpoc <= high),
                "comp5_dist": close - comp5,
                "comp20_dist": close - comp20,
                **of_naked(naked, close, adr20),
                "dvpoc_age": Fraction(bar.ts - rth[last_move(developing[: i + 1])].ts, 60),
                "log_vol_rel": log_relative(total(so_far), usual),
                "on_vol_share": ratio(night, night + total(so_far)),
                "on_range_frac": ratio(spread(today.overnight), high - low),
                **of_index,
                "adr20": adr20,
                "ret1": math.log(Fraction(close, prior.rth[-1].close)),
                "up_30": int(rth[i + 30].close > close) if i in labelled else None,
                "move_30": rth[i + 30].close - close if i in labelled else None,
                "prior_vpoc_touched": touched,
                "label_weight": uniqueness(i, labelled) if i in labelled else None,
            }
        )
    absent = () if today.overnight else ("on_vol_share", "on_range_frac")
    absent += () if prior.post else ("vix_chg",)
    absent += () if all(session.post for session in last_20) else ("vix_z20",)
    return [row | dict.fromkeys(absent) for row in rows]
