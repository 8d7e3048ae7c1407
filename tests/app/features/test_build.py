import dataclasses
import hashlib
import math
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from vpoc.data.exchange.rolls import roll_numbers
from vpoc.data.exchange.selection import select_sessions
from vpoc.data.exchange.sessions import split_sessions
from vpoc.data.load import load_bars
from vpoc.errors import UserError
from vpoc.features.build import build_features
from vpoc.features.feature_options import FeatureOptions
from vpoc.features.look_back import FAR, Naked
from vpoc.features.table import FEATURES, FEATURES_SCHEMA, NAMES, Snapshot
from vpoc.features.targets import SIZE_TARGETS, TARGETS, label_weight, move_30, session_targets, touched_later
from vpoc.profile.facts import ProfileFacts
from vpoc.profile.flow import Flow
from vpoc.profile.levels import Levels
from vpoc.profile.tpo import TimeFacts

LOOKBACK = 20
KINDS = (("bar", "close"), ("session", "close"), ("session", "open"))


def built(bars, rows, *, fewest=None, **chosen):
    return build_features(bars, FeatureOptions(rows=rows, lookback=LOOKBACK, **chosen), fewest=fewest)


@pytest.fixture(scope="module")
def bars(merged):
    return load_bars(merged)


@pytest.mark.parametrize("rows", ["bar", "session"])
def test_columns(bars, rows):
    frame = built(bars, rows).frame
    stamps = ["trade_date", "ts"] if rows == "bar" else ["trade_date"]
    targets = {
        "bar": ["up_30", "move_30", "prior_vpoc_touched", "label_weight"],
        "session": ["next_up", "next_vpoc_touched", "next_vpoc_move"],
    }
    assert frame.columns == [*stamps, *NAMES, *targets[rows]]
    assert set(targets[rows]) == {*TARGETS[rows], *SIZE_TARGETS[rows]}
    assert frame.height == (6 * 39 if rows == "bar" else 6)
    assert frame.select(NAMES).null_count().sum_horizontal()[0] == 0
    assert frame.select(pl.all_horizontal(pl.col(NAMES).is_finite()).all()).item()


LEVELS = {"vpoc": 110, "vah": 114, "val": 104, "vpoc_volume": 30, "area_volume": 70, "volume": 100}
TIME = {"tpoc": 108, "single": 3, "tail_hi": 2, "tail_lo": 4, "poor_hi": True, "poor_lo": False}
FLOW = {"signed": 25, "signed_at": -6, "volume_at": 60}
NAKED = {"above": 1, "below": 3, "up": 12, "down": 7, "age": 9}
PROFILE = {"lower": 20, "upper": 45, "entropy": 0.9, "hvn": 2, "lvn": 1}
OTHERS = {"high": 120, "low": 100, "close": 115, "price": 115}
OTHERS |= {"vwap": 111.5, "std": 4.5, "skew": 0.25, "kurt": -1.5, "ib_range": 10, "ext_up": 6, "ext_dn": 4}
OTHERS |= {"vpoc_age": 40.0, "usual_volume": 50.0, "on_volume": 20, "on_range": 5, "day_volume": 200}
OTHERS |= {"vpoc_1": 90, "vah_1": 108, "val_1": 88, "close_1": 92, "vpoc_5": 130}
OTHERS |= {"entry": 105, "entry_vah": 108, "entry_val": 88, "entry_close": 92, "comp5": 101, "comp20": 140}
OTHERS |= {"vix": 22.0, "vix_1": 20.0, "vix_mean": 18.0, "vix_std": 2.0, "adr": 2.5}


def one(name, **values):
    """Return the feature `name` of one row; `values` replace some of the numbers above, by name."""
    known = {**LEVELS, **TIME, **FLOW, **NAKED, **PROFILE, **OTHERS}
    assert values.keys() <= known.keys()
    numbers = {key: np.array([value]) for key, value in (known | values).items()}

    def part(kind, names):
        return kind(**{key: numbers[key] for key in names})

    profile = ProfileFacts(
        low=numbers["low"],
        high=numbers["high"],
        levels=part(Levels, LEVELS),
        time=part(TimeFacts, TIME),
        **{key: numbers[key] for key in PROFILE},
    )
    others = {key: numbers[key] for key in OTHERS}
    snapshot = Snapshot(profile=profile, flow=part(Flow, FLOW), naked=part(Naked, NAKED), **others)
    return next(feature for feature in FEATURES if feature.name == name).compute(snapshot).tolist()[0]


FORMULAS = {
    "vpoc_dist": 5,
    "vah_dist": -1,
    "val_dist": 11,
    "va_width": 10,
    "va_width_frac": 0.5,
    "vpoc_pos": 0.5,
    "close_pos": 0.75,
    "close_vs_va": 1,
    "vpoc_share": 0.3,
    "va_share": 0.7,
    "vpoc_chg1": 20,
    "vpoc_chg5": -20,
    "va_overlap": 5 / 27,
    "va_relation": 1,
    "open_vs_prior_va": 0,
    "gap": 13,
    "prior_vpoc_hit": 0,
    "comp5_dist": 14,
    "comp20_dist": -25,
    "naked_n": 4,
    "naked_up": 10,
    "naked_dn": 7,
    "naked_age": 9,
    "naked_imb": -0.5,
    "vwap_dist": 3.5,
    "prof_std": 4.5,
    "prof_skew": 0.25,
    "prof_kurt": -1.5,
    "prof_entropy": 0.9,
    "shape_pb": 0.25,
    "hvn_n": 2,
    "lvn_n": 1,
    "tpoc_dist": 7,
    "vpoc_tpoc": 2,
    "single_share": 3 / 21,
    "tail_hi": 2,
    "tail_lo": 4,
    "poor_hl": 1,
    "ib_range": 10,
    "ib_frac": 0.5,
    "ext_up": 6,
    "ext_dn": 4,
    "dvpoc_age": 40,
    "log_vol_rel": math.log(2),
    "on_vol_share": 0.1,
    "delta_proxy": 0.25,
    "delta_at_vpoc": -0.1,
    "on_range_frac": 0.25,
    "vix": 22,
    "vix_chg": math.log(1.1),
    "vix_z20": 2,
    "range_to_expected_move": 20 / (115 * 0.22 / math.sqrt(252)),
    "adr20": 2.5,
    "ret1": math.log(115 / 92),
}


def test_what_is_computed_changes_with_its_schema():
    """A changed formula changes the digest in the schema, so that files and trainings of the old one are refused."""
    values = [f"{name} {float(FORMULAS[name]):.9g}" for name in NAMES]
    formulas = [f"{feature.name}: {feature.formula}" for feature in FEATURES]
    assert FEATURES_SCHEMA.partition(".")[2] == digest([*values, *formulas])


def digest(lines):
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def test_what_snapshots_and_targets_are_computed_from_changes_with_the_number_of_the_schema(bars):
    frames = [built(bars, rows, as_of=as_of).frame.select(pl.selectors.numeric()) for rows, as_of in KINDS]
    # Rounded, because releases of a library differ by far less than that, and in the sign of 0.
    values = [f"{one.name} {round(value, 6) + 0.0}" for frame in frames for one in frame for value in one.fill_null(-1)]
    assert (FEATURES_SCHEMA, digest(values)) == ("5.5670d39b1f16", "474a8684fdeb"), (
        "the same schema stands for other values"
    )


def test_each_formula():
    assert {name: one(name) for name in NAMES} == pytest.approx(FORMULAS, rel=1e-14)


MEASURED_IN = {
    "contracts": "volume vpoc_volume area_volume signed signed_at volume_at lower upper usual_volume on_volume "
    "day_volume",
    "count": "above below hvn lvn",
    "minutes": "vpoc_age",
    "points": "vix vix_1 vix_mean vix_std",
    "sessions": "age",
    "none": "skew kurt entropy poor_hi poor_lo",
}
"""The units of the numbers above; numbers not listed are in ticks."""
# A range of rows includes both of its ends, and the VIX is the expected move of a year in percent.
OF_OTHER_DEGREE = {("ticks", "va_overlap"), ("ticks", "single_share"), ("points", "range_to_expected_move")}


@pytest.mark.parametrize("unit", ["ticks", "contracts", "count", "minutes", "points", "sessions"])
def test_a_feature_is_twice_as_much_where_what_is_measured_in_its_unit_is(unit):
    known = {**LEVELS, **TIME, **FLOW, **NAKED, **PROFILE, **OTHERS}
    ticks = known.keys() - set(" ".join(MEASURED_IN.values()).split())
    doubled = {name: 2 * known[name] for name in (ticks if unit == "ticks" else MEASURED_IN[unit].split())}
    for feature in FEATURES:
        if (unit, feature.name) not in OF_OTHER_DEGREE:
            times = 2 if feature.unit == unit else 1
            hint = f"{feature.name} is not in {feature.unit}, or MEASURED_IN lacks the unit of a number it is made of"
            assert one(feature.name, **doubled) == pytest.approx(times * FORMULAS[feature.name]), hint


def test_codes_are_whole_numbers_and_ratios_are_not():
    whole = {feature.name: isinstance(one(feature.name), int) for feature in FEATURES}
    assert {whole[feature.name] for feature in FEATURES if feature.unit == "ratio"} == {False}
    assert {whole[feature.name] for feature in FEATURES if feature.unit == "code"} == {True}


def test_codes_and_zero_denominators():
    assert one("close_vs_va", close=103) == -1
    assert [one("close_vs_va", close=c) for c in (104, 109, 114)] == [0, 0, 0]
    flat = {"high": 100, "low": 100, "close": 100, "vpoc": 100, "vah": 100, "val": 100, "volume": 0}
    assert [one(name, **flat) for name in ("vpoc_pos", "close_pos")] == [0.5, 0.5]
    ratios = ("va_width_frac", "vpoc_share", "va_share", "vwap_dist", "shape_pb", "ib_frac", "log_vol_rel")
    assert [one(name, **flat) for name in (*ratios, "delta_proxy", "on_range_frac")] == [0] * 9
    assert one("delta_at_vpoc", volume_at=0) == 0
    assert one("vix_z20", vix_std=0.0) == 0
    assert one("on_vol_share", day_volume=0) == 0
    assert one("naked_imb", above=0, below=0) == 0
    assert [one("log_vol_rel", **zero) for zero in ({"volume": 0}, {"usual_volume": 0.0})] == [0, 0]
    assert [one(name, up=FAR, down=FAR) for name in ("naked_up", "naked_dn")] == [10, 10]
    nothing = dict.fromkeys({**LEVELS, **TIME, **FLOW, **NAKED, **PROFILE, **OTHERS}, 0)
    assert [name for name in NAMES if not math.isfinite(one(name, **nothing))] == []


@pytest.mark.parametrize(
    ("va", "relation", "overlap"),
    [
        ((109, 120), 2, 0),
        ((108, 120), 1, 1 / 33),
        ((90, 100), 0, 11 / 21),
        ((80, 120), 0, 21 / 41),
        ((80, 100), -1, 13 / 29),
        ((70, 87), -2, 0),
        ((88, 108), 0, 1),
        ((89, 108), 0, 20 / 21),
    ],
)
def test_the_value_area_against_the_one_before(va, relation, overlap):
    """The value area before is 88..108."""
    assert one("va_relation", val=va[0], vah=va[1]) == relation
    assert one("va_overlap", val=va[0], vah=va[1]) == pytest.approx(overlap)


LATER_BY_17 = {"comp5_dist", "comp20_dist", "on_vol_share", "adr20", "naked_up", "naked_dn", "vix_z20"}
"""Features that count a session as a previous one once it is over, or that also depend on its evening."""


def test_the_last_bar_of_a_session_has_the_levels_of_the_session(bars):
    by_bar = built(bars, "bar").frame.group_by("trade_date", maintain_order=True).last()
    by_session = built(bars, "session").frame
    columns = ["trade_date", *(name for name in NAMES if name not in LATER_BY_17)]
    assert by_bar.select(columns).equals(by_session.select(columns))
    for name in LATER_BY_17 - {"naked_up", "naked_dn"}:
        assert not by_bar[name].equals(by_session[name]), name


def test_adr20_covers_this_session_only_in_session_rows(bars):
    sessions = split_sessions(bars)
    ranges = [
        int(bars.high[a:b].max() - bars.low[a:b].min()) for a, b in zip(sessions.start, sessions.stop, strict=True)
    ]
    by_session = built(bars, "session").frame["adr20"].to_list()
    by_bar = built(bars, "bar").frame["adr20"].to_list()
    assert by_session == [sum(ranges[t - 19 : t + 1]) / 20 for t in range(20, 26)]
    assert by_bar[::39] == [sum(ranges[t - 20 : t]) / 20 for t in range(20, 26)]


@pytest.mark.parametrize(("rows", "as_of"), KINDS)
def test_any_chunk_size_gives_the_same_answer(bars, rows, as_of):
    frames = [built(bars, rows, as_of=as_of, chunk_size=n).frame for n in (1, 4, 100)]
    assert frames[0].equals(frames[1])
    assert frames[0].equals(frames[2])


def test_the_fraction_keeps_the_most_recent_sessions(bars):
    whole = built(bars, "bar")
    half = built(bars, "bar", data_fraction=0.5)
    assert half.sessions_used == 3
    assert half.frame.equals(whole.frame.tail(3 * 39))


def test_incomplete_sessions_are_left_out_and_counted(bars):
    sessions = split_sessions(bars)
    rows = np.ones(len(bars), bool)
    rows[sessions.start[10] : sessions.start[10] + 5] = False
    found = built(bars.take(rows), "session")
    assert (found.sessions_total, found.left_out["incomplete"], found.sessions_used) == (26, 1, 5)
    assert found.summary() == "5 of 26 sessions (1 incomplete, 20 lookback)"


def without(bars, session):
    """Return the bars without most of the regular hours of `session`."""
    sessions = split_sessions(bars)
    rows = np.ones(len(bars), bool)
    rows[sessions.start[session] + 5 : sessions.stop[session]] = False
    return bars.take(rows)


@pytest.mark.parametrize("as_of", ["close", "open"])
def test_what_comes_after_a_gap_is_not_next(bars, as_of):
    whole = built(bars, "session").frame
    frame = built(without(bars, 24), "session", fewest=1, as_of=as_of).frame
    assert frame["trade_date"].to_list() == whole["trade_date"].to_list()[:4]
    whole = built(bars, "session", as_of=as_of).frame
    for target in (*TARGETS["session"], *SIZE_TARGETS["session"]):
        assert whole[target].null_count() == (1 if as_of == "close" else 0)
        assert frame[target].to_list() == [*whole[target].to_list()[:3], None]


@pytest.mark.parametrize("rows", ["bar", "session"])
def test_a_row_with_a_missing_session_among_the_five_before_it_is_left_out_and_counted(bars, rows):
    found = built(without(bars, 17), rows, fewest=1)
    dates = split_sessions(bars).date
    # Session 18 is the first after the gap, and session 23 the first with five sessions before it since the gap.
    assert found.frame["trade_date"].unique().sort().to_physical().to_list() == dates[23:].tolist()
    counted = found.left_out["incomplete"], found.left_out["after_gap"], found.sessions_used
    assert counted == (1, 2, 3)
    whole = built(bars, rows).frame
    same = ["vpoc_dist", "vpoc_chg1", "vpoc_chg5", "prof_entropy", *TARGETS[rows], *SIZE_TARGETS[rows]]
    assert found.frame.select(same).equals(whole.tail(found.frame.height).select(same))


@pytest.mark.parametrize("rows", ["bar", "session"])
def test_a_row_with_a_roll_among_the_five_before_it_is_left_out_and_counted(bars, rows, tmp_path):
    dates = split_sessions(bars).date
    rolls = tmp_path / "rolls.csv"
    rolls.write_text(f"date\n{dates[18].astype('datetime64[D]')}\n")
    found = built(bars, rows, fewest=1, rolls=str(rolls))
    assert found.frame["trade_date"].unique().sort().to_physical().to_list() == dates[23:].tolist()
    counted = found.left_out["after_gap"], found.left_out["after_roll"], found.sessions_used
    assert counted == (0, 3, 3)


def test_nothing_is_compared_across_a_roll(bars, tmp_path):
    """In a file of two contracts, prices before the roll are 400 points higher."""
    sessions = split_sessions(bars)
    cut = int(sessions.first[15])
    dearer = {
        name: np.concatenate([getattr(bars, name)[:cut] + 1600, getattr(bars, name)[cut:]])
        for name in ("open", "high", "low", "close")
    }
    moved = dataclasses.replace(bars, **dearer)
    rolls = tmp_path / "rolls.csv"
    rolls.write_text(f"date\n{sessions.date[15].astype('datetime64[D]')}\n")
    for rows in ("bar", "session"):
        honest = built(moved, rows, rolls=str(rolls)).frame
        assert honest.equals(built(bars, rows, rolls=str(rolls)).frame)
        assert not honest.equals(built(moved, rows, rolls="none").frame)


def test_without_vix_there_are_no_rows_and_they_are_counted(bars):
    sessions = split_sessions(bars)
    unknown = dataclasses.replace(bars, vix=bars.vix.copy())
    unknown.vix[: sessions.end[3]] = np.nan
    found = built(unknown, "bar", fewest=1)
    # Session 24 is the first with 20 VIX closes before it.
    assert (found.left_out["without_vix"], found.sessions_used) == (4, 2)
    now = dataclasses.replace(bars, vix=bars.vix.copy())
    now.vix[sessions.start[22] : sessions.start[22] + 7] = np.nan
    found = built(now, "bar")
    assert (found.left_out["without_vix"], found.left_out["rows_without_vix"]) == (0, 7)
    assert found.frame.height == 6 * 39 - 7
    assert not found.frame["vix"].is_nan().any()


def test_gaps_that_leave_too_little_are_said(bars):
    with pytest.raises(UserError, match="after the lookback, 1 give rows and 3 must; left out are 4 after gap;"):
        built(without(bars, 19), "bar")


def test_too_few_sessions_say_how_many_are_needed(bars):
    with pytest.raises(UserError, match=r"63 complete sessions are needed .* has 26; .*--lookback"):
        build_features(bars, FeatureOptions(rows="bar", lookback=60))
    # A model has fixed its lookback, so the message does not suggest a shorter one.
    with pytest.raises(UserError, match=r"61 complete sessions are needed .* has 26; give more data, .* older.csv`\)$"):
        build_features(bars, FeatureOptions(rows="bar", lookback=60), fewest=1)
    # With 6 sessions, even the shortest lookback leaves too few.
    with pytest.raises(UserError, match=r"\(20 for lookback, 3 to use\), the file has 6; .* older.csv`\)$"):
        built(bars.take(np.arange(len(bars)) < split_sessions(bars).stop[5]), "bar")
    with pytest.raises(UserError, match=r"0.2 of 6 sessions leaves 1; give at least 0.5"):
        built(bars, "bar", data_fraction=0.2)


def test_an_open_session_has_bar_rows_but_no_session_row(bars):
    sessions = split_sessions(bars)
    unfinished = bars.take(np.arange(len(bars)) < sessions.stop[-1] - 20)
    by_bar = built(unfinished, "bar").frame
    assert by_bar.height == 5 * 39 + 19
    touched = by_bar.tail(19)["prior_vpoc_touched"].to_list()
    assert 0.0 not in touched, "an open session cannot say that a level was not touched"
    assert built(unfinished, "session").frame.height == 5


def test_the_last_row_as_of_the_open_needs_one_bar_of_the_next_session(bars):
    sessions = split_sessions(bars)
    rows = np.arange(len(bars))
    opened = built(bars.take(rows <= sessions.start[-1]), "session", as_of="open")
    assert (opened.frame.height, opened.left_out["without_next_open"]) == (5, 0)
    assert opened.frame["next_up"].to_list()[-1] is None
    night = built(bars.take(rows < sessions.start[-1]), "session", as_of="open")
    assert (night.frame.height, night.left_out["without_next_open"]) == (4, 1)


def test_session_rows_need_one_session_more(bars):
    """The last session has no label."""
    sessions = split_sessions(bars)
    fewer = bars.take(np.arange(len(bars)) < sessions.stop[22])
    assert built(fewer, "bar").sessions_used == 3
    with pytest.raises(
        UserError, match=r"24 complete sessions are needed \(20 for lookback, 4 to use\), the file has 23"
    ):
        built(fewer, "session")


def test_bars_outside_regular_hours_alone_are_refused(bars):
    sessions = split_sessions(bars)
    rows = np.zeros(len(bars), bool)
    rows[sessions.first[3] : sessions.start[3]] = True
    with pytest.raises(UserError, match="no bars in regular hours, from 09:30 New York"):
        built(bars.take(rows), "bar")


def test_a_half_day_gives_rows_until_13_and_is_no_full_session(summer):
    """3 July 2018 has 21 bars of 10 minutes; the day after it is a holiday without a session."""
    bars = load_bars(summer)
    frame = built(bars, "bar").frame.with_columns(day=pl.col("trade_date").dt.to_string("%m-%d"))
    per_day = dict(frame.group_by("day", maintain_order=True).len().iter_rows())
    assert [per_day.get(day) for day in ("07-02", "07-03", "07-04", "07-05")] == [39, 21, None, 39]
    louder = dataclasses.replace(bars, volume=bars.volume.copy())
    louder.volume[split_sessions(bars).start[21]] *= 9
    changed = frame["log_vol_rel"] != built(louder, "bar").frame["log_vol_rel"]
    assert frame.filter(changed)["day"].unique().to_list() == ["07-03"]


def test_a_calendar_roll_breaks_the_chain_unless_it_is_asked_not_to(summer):
    """11 June 2018 is the Monday of the week in which June's contract expires."""
    bars = load_bars(summer)
    few = bars.take(np.arange(len(bars)) < split_sessions(bars).first[12])
    assert split_sessions(few).date[5].astype("datetime64[D]") == np.datetime64("2018-06-11")
    for rolls, left_out in (("auto", 5), ("calendar", 5), ("none", 0)):
        assert chain_left_out(few, rolls) == left_out


def chain_left_out(bars, rolls):
    """Return how many sessions have a roll among the five sessions before them, without any lookback."""
    sessions = split_sessions(bars)
    numbers = roll_numbers(sessions, bars.symbols, rolls)
    known = np.ones(len(sessions))
    return select_sessions(sessions, numbers, known, rows="bar", lookback=0).left_out["after_roll"]


def test_move_30():
    close = np.arange(100, 140)
    close[35] = 0
    target = move_30(close)
    assert target[:10].tolist() == [30, 30, 30, 30, 30, -105, 30, 30, 30, 30]
    assert np.isnan(target[10:]).all()
    assert np.isnan(move_30(np.arange(30))).all()
    assert move_30(np.full(31, 5))[0] == 0


def test_up_30_is_a_move_above_zero(bars):
    flat = dataclasses.replace(bars, close=bars.close.copy())
    start = split_sessions(bars).start[22]
    flat.close[start + 30] = flat.close[start]
    frame = built(flat, "bar").frame
    labelled = frame.filter(pl.col("move_30").is_not_null())
    assert labelled.height == 6 * 9 == frame["up_30"].count()
    assert labelled["up_30"].equals((labelled["move_30"] > 0).cast(pl.Float64))
    assert frame[2 * 39, "move_30"] == frame[2 * 39, "up_30"] == 0, "unchanged is not up"


def test_label_weight():
    weights = label_weight(np.array([1.0] * 70 + [np.nan] * 30))
    first = sum(1 / looking for looking in range(1, 31)) / 30
    assert weights[[0, 29, 35, 40, 69]].tolist() == pytest.approx([first, 1 / 30, 1 / 30, 1 / 30, first])
    assert 1 / 30 < weights[10] < first
    assert np.isnan(weights[70:]).all()
    alone = label_weight(np.array([1.0] + [np.nan] * 30))
    assert alone[0] == pytest.approx(1)
    gap = np.ones(10)
    gap[3] = np.nan
    assert label_weight(gap)[9] == 0, "it looks at no bar"


def test_touched_later():
    low, high = np.array([10, 11, 12, 13]), np.array([11, 12, 13, 14])
    assert [None if math.isnan(x) else x for x in touched_later(low, high, 13, session_over=True)] == [1, 1, None, None]
    assert np.isnan(touched_later(low, high, 10, session_over=True)).all()
    assert touched_later(low, high, 20, session_over=True).tolist() == [0, 0, 0, 0]
    assert np.isnan(touched_later(low, high, 20, session_over=False)).all()


class FewDays(SimpleNamespace):
    def __len__(self):
        return len(self.open)


def few_days(complete=(True, True, True), number=(7, 8, 9)):
    """Return a stand-in for three days: open, close, and a range low..high that contains the VPOC."""
    columns = {"open": (10, 10, 10), "close": (10, 11, 10), "low": (5, 11, 15), "high": (12, 25, 40)}
    return FewDays(
        **{name: np.array(values) for name, values in columns.items()},
        profile=SimpleNamespace(levels=SimpleNamespace(vpoc=np.array([11, 20, 30]))),
        sessions=SimpleNamespace(number=np.array(number), complete=np.array(complete)),
    )


def as_list(values):
    return [None if math.isnan(value) else value for value in values]


@pytest.mark.parametrize("at_open", [False, True])
def test_targets_of_the_next_session(at_open):
    found = session_targets(few_days(), np.zeros(3), np.arange(3), at_open=at_open)
    assert as_list(found["next_up"]) == [1, 0, None]
    assert as_list(found["next_vpoc_touched"]) == [1, 1, None]
    assert as_list(found["next_vpoc_move"]) == ([10, 20, None] if at_open else [10, 19, None])
    untouched = few_days()
    untouched.profile.levels.vpoc[0] = 10
    found = session_targets(untouched, np.zeros(3), np.array([0]), at_open=at_open)
    assert as_list(found["next_vpoc_touched"]) == [0]


@pytest.mark.parametrize(
    ("known", "days", "rolls"),
    [
        ([False, True], few_days(number=(7, 9, 10)), [0, 0, 0]),
        ([True, False], few_days(complete=(True, True, False)), [0, 0, 0]),
        ([False, True], few_days(), [0, 1, 1]),
    ],
)
def test_a_gap_a_roll_and_an_unfinished_session_have_no_targets(known, days, rolls):
    found = session_targets(days, np.array(rolls), np.array([0, 1]), at_open=False)
    for values in found.values():
        assert (~np.isnan(values)).tolist() == known


def test_null_targets_are_null_in_the_frame(bars):
    frame = built(bars, "session").frame
    assert frame["next_up"].null_count() == 1
    assert not frame["next_up"].is_nan().any()
    assert frame["next_up"].dtype == pl.Float64


def test_a_late_bar_changes_no_earlier_session(bars):
    changed = dataclasses.replace(bars, volume=bars.volume.copy())
    changed.volume[split_sessions(bars).stop[-1] - 1] *= 50
    before = built(bars, "bar").frame
    after = built(changed, "bar").frame
    assert before.head(-1).equals(after.head(-1))
    assert not before.equals(after)
