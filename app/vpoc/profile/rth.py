"""All facts of RTH profiles, computed by the compiled kernel if there is one, else with numpy."""

from dataclasses import dataclass

import numpy as np

from vpoc.arrays import Floats, Ints
from vpoc.data.bars import Bars
from vpoc.data.exchange.sessions import Sessions
from vpoc.profile import kernel_profiles as compiled
from vpoc.profile.facts import ProfileFacts, entropy, logs_of
from vpoc.profile.flow import Flow, developing_flow, session_flow
from vpoc.profile.kernel_profiles import Spans
from vpoc.profile.levels import Levels
from vpoc.profile.moves import last_moves
from vpoc.profile.session_profiles import RthBars, developing_profiles, session_profiles
from vpoc.profile.tpo import TimeFacts

_LEVELS = ("vpoc_volume", "area_volume", "volume")
_TIMES = ("single", "tail_hi", "tail_lo")
_SIDES = ("lower", "upper", "hvn", "lvn")


@dataclass(frozen=True)
class RthFacts:
    """Facts of RTH profiles; every array is [profiles].

    `moved`: the bar, counted from the first of its session, at which the developing VPOC last moved.
    """

    profile: ProfileFacts
    flow: Flow
    moved: Ints


def session_rth_facts(
    bars: Bars, sessions: Sessions, rth: RthBars, placement: str, method: str
) -> tuple[RthFacts, Ints]:
    """Return the facts of every session, and their histograms [sessions, columns] from each session's base on.

    `rth` are the bars of `sessions` with this `placement`; `method`: of the value area.
    """
    if not compiled.present():
        profile, histogram = session_profiles(rth, method)
        vpoc = profile.levels.vpoc
        return RthFacts(profile, session_flow(bars, rth, vpoc), last_moves(rth, histogram, vpoc - rth.base)), histogram
    facts, histogram = compiled.describe_profiles(bars, _spans(sessions, rth), placement, method)
    begin = np.arange(len(rth.base)) * histogram.shape[1]
    logs = logs_of(histogram.reshape(-1), begin, begin + rth.width)
    return _facts(facts, rth.base, logs), histogram


def developing_facts(bars: Bars, sessions: Sessions, rth: RthBars, placement: str, method: str) -> RthFacts:
    """Return the facts of the bars of each session up to and including each bar, one profile per bar.

    See `session_rth_facts`.
    """
    if compiled.present():
        touched = rth.placed.high - rth.placed.low + 1
        facts, logs = compiled.develop_profiles(bars, _spans(sessions, rth), touched, placement, method)
        return _facts(facts, np.repeat(rth.base, rth.sizes), logs)
    profile = developing_profiles(rth, method)
    vpoc = profile.levels.vpoc
    return RthFacts(profile, developing_flow(bars, rth, vpoc), _last_move(vpoc, rth))


def _spans(sessions: Sessions, rth: RthBars) -> Spans:
    return Spans(sessions.start, rth.sizes, rth.base, rth.width, sessions.open_utc)


def _facts(facts: dict[str, Ints], base: Ints, logs: Floats) -> RthFacts:
    price = {name: base + facts[name] for name in ("low", "high", "vpoc", "vah", "val", "tpoc")}
    levels = Levels(price["vpoc"], price["vah"], price["val"], **{name: facts[name] for name in _LEVELS})
    time = TimeFacts(
        tpoc=price["tpoc"],
        poor_hi=facts["poor_hi"] != 0,
        poor_lo=facts["poor_lo"] != 0,
        **{name: facts[name] for name in _TIMES},
    )
    profile = ProfileFacts(
        low=price["low"],
        high=price["high"],
        levels=levels,
        entropy=entropy(logs, price["high"] - price["low"] + 1, levels.volume),
        time=time,
        **{name: facts[name] for name in _SIDES},
    )
    return RthFacts(profile, Flow(facts["signed"], facts["signed_at"], facts["volume_at"]), facts["moved"])


def _last_move(vpoc: Ints, rth: RthBars) -> Ints:
    """Return the last bar, up to each bar [bars], at which the developing VPOC moved; a session's first bar counts."""
    place = np.arange(len(vpoc))
    moved = np.ones(len(vpoc), dtype=np.bool_)
    moved[1:] = vpoc[1:] != vpoc[:-1]
    moved[rth.starts] = True
    latest: Ints = np.maximum.accumulate(np.where(moved, place, 0))
    return latest - np.repeat(rth.starts, rth.sizes)
