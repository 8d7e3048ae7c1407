import datetime as dt
import os
import struct
import subprocess
import sys
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpoc.cli import run
from vpoc.commands import plot as command
from vpoc.data.load import load_bars
from vpoc.data.merge import merge
from vpoc.plots.layout import lay_out, spread_labels
from vpoc.plots.picture import make_picture
from vpoc.plots.render import matplotlib_of_its_own
from vpoc.plots.study import Method
from vpoc.profile.histogram import PLACEMENTS
from vpoc.profile.levels import METHODS
from vpoc.profile.nodes import nodes_of
from vpoc.profile.profile import levels_of, profile_of

NEW_YORK = ZoneInfo("America/New_York")
HEADER = "ts,open,high,low,close,volume,vix,symbol\n"
TICK = 0.25


def vpoc(capsys, *arguments):
    code = run(["plot", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def days(text):
    return (dt.date.fromisoformat(text) - dt.date(1970, 1, 1)).days


def bar(day, clock, low, high, volume=1000, symbol=""):
    """Return a line of a merged CSV; `clock`: New York time; prices in ticks; the bar opens at its low, closes high."""
    stamp = dt.datetime.fromisoformat(f"{day}T{clock}").replace(tzinfo=NEW_YORK).astimezone(dt.UTC)
    prices = [f"{tick * TICK:.2f}" for tick in (low, high, low, high)]
    return f"{stamp:%Y-%m-%dT%H:%M:%SZ},{','.join(prices)},{volume},15.00,{symbol}\n"


def session(day, low, high, volume=1000, symbol="", close="16:00"):
    """Return half-hour bars of regular hours, all with the same range."""
    minutes = range(570, int(close[:2]) * 60 + int(close[3:]), 30)
    return "".join(bar(day, f"{m // 60:02}:{m % 60:02}", low, high, volume, symbol) for m in minutes)


@pytest.fixture
def csv(tmp_path):
    def write(*lines, name="made.csv"):
        path = tmp_path / name
        path.write_text(HEADER + "".join(lines))
        return path

    return write


@pytest.fixture
def marks(tmp_path):
    """Return a function that draws a picture and returns its marks by identifier."""

    def draw(path, first=None, last=None, **method):
        dates = (days(first), days(last or first)) if first else None
        picture = make_picture(load_bars(path), dates, Method(**method))
        with matplotlib_of_its_own(tmp_path):
            figure = picture.figure()
        (axes,) = figure.axes
        artists = [*axes.lines, *axes.patches, *axes.collections, *figure.texts]
        found = {artist.get_gid(): artist for artist in artists if artist.get_gid()}
        words = [text.get_text() for text in (*axes.texts, *figure.texts)]
        return found, words, axes

    return draw


def heights(line):
    return (np.asarray(line.get_ydata()) / TICK).tolist()


def rth(path, date):
    """Return ticks and volumes of the regular hours of a full day, computed without the app."""
    start = pl.col("ts").str.to_datetime("%Y-%m-%dT%H:%M:%SZ", time_zone="UTC").dt.convert_time_zone("America/New_York")
    frame = pl.read_csv(path).filter(
        start.dt.date() == dt.date.fromisoformat(date), start.dt.time().is_between(dt.time(9, 30), dt.time(16), "left")
    )
    prices = {name: (frame[name].to_numpy() * 4).astype(np.int64) for name in ("open", "high", "low", "close")}
    return {**prices, "volume": frame["volume"].to_numpy()}


@pytest.mark.parametrize(
    "method",
    [
        {},
        {"placement": "close"},
        {"placement": "typical", "value_area": "one_row"},
        {"row_ticks": 3},
        {"row_ticks": 7, "placement": "close"},
        {"overnight": True},
    ],
)
def test_the_marks_are_where_the_numbers_are(merged, marks, method):
    date = "2018-02-06"
    found, words, axes = marks(merged, date, **method)
    bars = rth(merged, date)
    placed = method.get("placement", "uniform"), method.get("row_ticks", 1)
    area = method.get("value_area", "two_row")
    profile = profile_of(bars["low"], bars["high"], bars["close"], bars["volume"], *placed)
    levels = levels_of(profile, area)
    assert placed[1] == 1 or bars["low"].min() % placed[1]
    for name in ("vpoc", "vah", "val"):
        assert heights(found[f"{name}-{date}"]) == [getattr(levels, name)[0]] * 2
        assert f"{name.upper()} {getattr(levels, name)[0] * TICK:.2f}" in words
    shaded = found[f"value-area-{date}"]
    assert shaded.get_y() / TICK == levels.val[0] - 0.5
    assert (shaded.get_y() + shaded.get_height()) / TICK == levels.vah[0] + placed[1] - 0.5

    developing = [
        levels_of(profile_of(*(bars[name][:stop] for name in ("low", "high", "close", "volume")), *placed), area).vpoc[
            0
        ]
        for stop in range(1, 40)
    ]
    step = found[f"developing-{date}"]
    assert heights(step) == developing
    assert step.get_drawstyle() == "steps-post"
    zero = found[f"vpoc-{date}"].get_xdata()[0]
    assert (np.asarray(step.get_xdata()) - zero).tolist() == [10 * bar for bar in range(1, 40)]

    assert heights(found[f"ibl-{date}"]) == [bars["low"][:6].min()] * 2
    assert heights(found[f"ibh-{date}"]) == [bars["high"][:6].max()] * 2
    assert (np.asarray(found[f"ib-{date}"].get_xdata()) - zero).tolist() == [60, 60]

    for name, nodes in zip(("hvn", "lvn"), nodes_of(profile.volume), strict=True):
        middles = [profile.base + row * placed[1] + (placed[1] - 1) / 2 for row in nodes]
        assert heights(found[f"{name}-{date}"]) == middles
    assert found[f"hvn-{date}"].get_markerfacecolor() != found[f"lvn-{date}"].get_markerfacecolor()

    values = np.zeros(len(profile.volume))
    for part in ("outside", "inside", "peak"):
        reach, edges, left = found[f"profile-{part}-{date}"].get_data()
        assert edges[0] / TICK == profile.base - 0.5
        values += reach - left
        rows = np.flatnonzero(reach > left) * placed[1] + profile.base
        if part == "peak":
            assert rows.tolist() == [levels.vpoc[0]]
        elif len(rows):
            assert ((rows >= levels.val[0]) & (rows <= levels.vah[0])).all() == (part == "inside")
    assert np.allclose(values / values.max(), profile.volume / profile.volume.max())

    drawn = found[f"rth-{date}"].get_segments()
    for index in (0, 17, 38):
        low, high = drawn[index][:, 1] / TICK
        assert (low, high) == (bars["low"][index], bars["high"][index])
        assert drawn[index][0, 0] - zero == 10 * index + 5
    assert (f"night-{date}" in found) == method.get("overnight", False)
    bottom, top = axes.get_ylim()
    assert bottom < bars["low"].min() * TICK < bars["high"].max() * TICK < top


def test_opens_and_closes_are_marked_at_the_sides_of_the_bars(merged, marks):
    found, _, _ = marks(merged, "2018-02-06")
    bars = rth(merged, "2018-02-06")
    segments = np.array(found["rth-2018-02-06"].get_segments())
    ranges, opens, closes = np.split(segments, 3)
    assert (opens[:, :, 1] / TICK == bars["open"][:, None]).all()
    assert (closes[:, :, 1] / TICK == bars["close"][:, None]).all()
    assert (opens[:, 1, 0] == ranges[:, 0, 0]).all()
    assert (closes[:, 0, 0] == ranges[:, 0, 0]).all()


def test_the_night_is_drawn_from_six_to_five_and_is_in_no_profile(merged, marks):
    day, night = marks(merged, "2018-02-06"), marks(merged, "2018-02-06", overnight=True)
    zero = night[0]["vpoc-2018-02-06"].get_xdata()[0]
    for name, bars, first in (("night", 93, -930), ("rth", 39, 0), ("evening", 6, 390)):
        segments = night[0][f"{name}-2018-02-06"].get_segments()
        assert len(segments) == 3 * bars
        assert segments[0][0, 0] - zero == first + 5
    assert not {"night-2018-02-06", "evening-2018-02-06"} & set(day[0])
    assert heights(day[0]["vpoc-2018-02-06"]) == heights(night[0]["vpoc-2018-02-06"])
    assert [word.get_text() for word in night[2].get_xticklabels()][:3] == ["09:30", "18:00", "20:00"]


def test_naked_levels_end_where_a_bar_touches_them(csv, marks):
    """The middle of a session's range is its VPOC; the second and fourth bar of the last day just touch two VPOCs."""
    path = csv(
        session("2024-03-04", 20000, 20010),
        session("2024-03-05", 20028, 20038),
        session("2024-03-06", 20020, 20030),
        bar("2024-03-07", "09:30", 20015, 20018),
        bar("2024-03-07", "10:00", 20025, 20027),
        bar("2024-03-07", "10:30", 20012, 20016),
        bar("2024-03-07", "11:00", 20003, 20005),
        *(bar("2024-03-07", f"{hour}:00", 20003, 20012) for hour in range(12, 16)),
    )
    found, words, axes = marks(path, "2024-03-07")
    zero = found["vpoc-2024-03-07"].get_xdata()[0]
    lines = {name: line for name, line in found.items() if name.startswith("naked")}
    assert {name: heights(line)[0] for name, line in lines.items()} == {
        "naked-2024-03-04": 20005,
        "naked-2024-03-05": 20033,
        "naked-2024-03-06": 20025,
    }
    ends = {name: line.get_xdata()[1] - zero for name, line in lines.items()}
    assert ends["naked-2024-03-06"] == 30
    assert ends["naked-2024-03-04"] == 90
    assert ends["naked-2024-03-05"] == found["vpoc-2024-03-07"].get_xdata()[1] - zero
    assert all(line.get_xdata()[0] == axes.get_xlim()[0] for line in lines.values())
    assert "03-05  5008.25" in words
    assert all(line.is_dashed() for line in lines.values())


def test_a_level_touched_before_the_sessions_drawn_is_not_drawn(csv, marks):
    path = csv(
        session("2024-03-04", 20010, 20016),
        session("2024-03-05", 20032, 20040, 900),
        bar("2024-03-06", "09:30", 20013, 20014),
        session("2024-03-07", 20020, 20030),
    )
    found, _, _ = marks(path, "2024-03-07")
    assert [name for name in found if name.startswith("naked")] == ["naked-2024-03-05"]


def test_in_a_range_the_levels_of_its_own_sessions_go_on_until_touched(csv, marks):
    path = csv(
        session("2024-03-04", 20030, 20040),
        session("2024-03-05", 20040, 20050),
        session("2024-03-06", 20060, 20070),
        session("2024-03-07", 20042, 20050),
    )
    found, words, axes = marks(path, "2024-03-05", "2024-03-07")
    ends = [found[f"vpoc-2024-03-0{day}"].get_xdata() for day in (5, 6, 7)]
    assert ends[0][1] < ends[1][0] < ends[1][1] < ends[2][0]
    assert heights(found["naked-2024-03-05"]) == heights(found["vpoc-2024-03-05"])
    assert list(found["naked-2024-03-05"].get_xdata()) == [ends[0][1], ends[2][0]]
    assert list(found["naked-2024-03-06"].get_xdata()) == [ends[1][1], ends[2][1]]
    assert list(found["naked-2024-03-04"].get_xdata()) == [axes.get_xlim()[0], ends[2][1]]
    assert "made.csv, 3 sessions, 2024-03-05 to 2024-03-07" in words


def test_no_level_outlives_a_roll(csv, marks):
    lines = [session(f"2024-03-0{day}", 20000 + 20 * day, 20010 + 20 * day, 1000, "ESH4") for day in (4, 5, 6)]
    lines += [session(f"2024-03-{day}", 20400 - 20 * day, 20410 - 20 * day, 1000, "ESM4") for day in (11, 12)]
    found, words, _ = marks(csv(*lines), "2024-03-05", "2024-03-12")
    assert "ESH4, ESM4, 4 sessions, 2024-03-05 to 2024-03-12" in words
    last = found["vpoc-2024-03-06"].get_xdata()[1]
    assert found["naked-2024-03-04"].get_xdata()[1] == found["naked-2024-03-05"].get_xdata()[1] == last
    assert "naked-2024-03-06" not in found
    assert "naked-2024-03-11" in found


def test_levels_far_away_are_reported_and_do_not_squeeze_the_picture(csv, marks):
    path = csv(
        session("2024-03-04", 22000, 22010),
        session("2024-03-05", 22100, 22110),
        session("2024-03-06", 19000, 19010),
        session("2024-03-07", 20000, 20040),
    )
    found, words, axes = marks(path, "2024-03-07")
    assert not [name for name in found if name.startswith("naked")]
    above, below = "2 above (5501.25 of 2024-03-04 is the nearest)", "1 below (4751.25 of 2024-03-06)"
    assert f"naked VPOCs outside the picture: {above}, {below}" in words
    assert axes.get_ylim()[1] < 5020


def test_a_session_with_one_bar(csv, marks):
    found, words, _ = marks(csv(bar("2024-03-04", "09:30", 20000, 20003, 7)), "2024-03-04")
    assert "made.csv, Mon 2024-03-04, session not complete" in words
    assert heights(found["developing-2024-03-04"]) == [20001]
    assert len(found["rth-2024-03-04"].get_segments()) == 3
    assert any("7 contracts" in word for word in words)


def test_a_session_without_volume_and_without_its_first_hour(csv, marks):
    found, words, _ = marks(csv(bar("2024-03-04", "12:00", 20000, 20004, 0)), "2024-03-04")
    assert heights(found["vpoc-2024-03-04"])[0] == 20002
    assert "ibl-2024-03-04" not in found
    assert not [word for word in words if word.startswith("IB")]


def test_the_initial_balance_ends_before_half_past_ten(csv, marks):
    clocks = [("09:30", 20004, 20005), ("10:00", 20002, 20006), ("10:30", 20000, 20009), ("11:00", 20001, 20003)]
    found, words, _ = marks(csv(*(bar("2024-03-04", *words) for words in clocks)), "2024-03-04")
    assert (heights(found["ibl-2024-03-04"]), heights(found["ibh-2024-03-04"])) == ([20002] * 2, [20006] * 2)
    assert {"IBL 5000.50", "IBH 5001.50"} <= set(words)


def test_a_half_day_ends_at_one(csv, marks):
    path = csv(session("2024-11-27", 20000, 20010), session("2024-11-29", 20020, 20030, close="13:00"))
    found, words, axes = marks(path)
    assert "made.csv, Fri 2024-11-29, half day" in words
    zero = found["vpoc-2024-11-29"].get_xdata()[0]
    assert found["ibl-2024-11-29"].get_xdata()[1] - zero == 210
    assert [label.get_text() for label in axes.get_xticklabels()] == ["09:30", "10:00", "11:00", "12:00", "13:00"]


def test_trades_are_drawn_as_minutes(csv, marks):
    trades = [
        ("09:30:01", 20000, 5),
        ("09:30:02", 20003, 1),
        ("09:30:59", 20001, 1),
        ("09:31:00", 20003, 9),
        ("15:59:30", 20002, 2),
    ]
    path = csv(*(bar("2024-03-04", clock, tick, tick, volume) for clock, tick, volume in trades))
    found, words, _ = marks(path, "2024-03-04", placement="ticks")
    assert any(word.startswith("trades, New York time") for word in words)
    assert heights(found["developing-2024-03-04"]) == [20000, 20003, 20003]
    segments = np.array(found["rth-2024-03-04"].get_segments())
    assert (segments[:3, :, 1] / TICK).tolist() == [[20000, 20003], [20003, 20003], [20002, 20002]]
    assert (segments[3:, 0, 1] / TICK).tolist() == [20000, 20003, 20002, 20001, 20003, 20002]


def test_the_default_is_the_last_complete_session(csv, marks, capsys, tmp_path):
    path = csv(session("2024-03-04", 20000, 20010, symbol="ESH4"), bar("2024-03-05", "09:30", 20000, 20010, 5, "ESH4"))
    found, _, _ = marks(path)
    assert "vpoc-2024-03-04" in found
    code, out, err = vpoc(capsys, "--data", path, "--output", tmp_path / "p.png")
    assert (code, out, err) == (0, f"{tmp_path / 'p.png'}: ESH4, Mon 2024-03-04\n", "")


def test_the_words_say_how_it_was_made(merged, marks):
    _, words, _ = marks(merged, "2018-02-06", placement="typical", value_area="one_row", row_ticks=2)
    (told,) = [word for word in words if word.startswith("10-minute bars")]
    for part in ("typical", "one_row", "rows of 2 ticks", "70 %", "New York time"):
        assert part in told
    assert "merged.csv, Tue 2018-02-06" in words


def test_every_placement_and_method_can_be_chosen():
    options = {option.name: option for option in command.plot_command.params}
    assert set(options["placement"].type.choices) == set(PLACEMENTS)
    assert set(options["value_area"].type.choices) == set(METHODS)


@pytest.mark.slow
def test_the_same_data_gives_the_same_bytes_wherever_it_is_run(capsys, merged, tmp_path):
    """The user's home, cache, configuration, backend and warnings as errors make no difference."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "config").mkdir()
    (elsewhere / "matplotlibrc").write_text("font.size: 30\nnonsense: 1\nsavefig.facecolor: red\n")
    environment = {
        **os.environ,
        "HOME": "/proc/nowhere",
        "TMPDIR": "/proc/nowhere",
        "MPLCONFIGDIR": str(tmp_path / "config"),
        "MPLBACKEND": "nonsense",
        "PYTHONWARNINGS": "error",
        "PYTHONHASHSEED": "1",
        "TZ": "Asia/Tokyo",
    }
    for kind, begin in ((".png", b"\x89PNG"), (".svg", b"<?xml")):
        here, there = tmp_path / f"here{kind}", tmp_path / "there" / f"there{kind}"
        arguments = ["--data", merged, "--from", "2018-02-01", "--to", "2018-02-06", "--output"]
        assert vpoc(capsys, *arguments, here)[0] == 0
        done = subprocess.run(
            [sys.executable, "-m", "vpoc", "plot", *map(str, arguments), there],
            env=environment,
            cwd=elsewhere,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        content = here.read_bytes()
        assert content.startswith(begin)
        assert content == there.read_bytes()
        # The files contain neither a version nor a date.
        assert not [word for word in (b"Matplotlib v", b"Software", b"<dc:date>", b"tIME") if word in content]
    notes = [".there.png.vpoc.json", ".there.svg.vpoc.json"]
    assert sorted(file.name for file in (tmp_path / "there").iterdir()) == [*notes, "there.png", "there.svg"]
    assert list((tmp_path / "config").iterdir()) == []
    width, height = struct.unpack(">II", (tmp_path / "here.png").read_bytes()[16:24])
    assert (width, height) == (1788, 1008)


def test_a_svg_names_its_marks_and_its_subject(capsys, merged, tmp_path):
    vpoc(capsys, "--data", merged, "--date", "2018-02-06", "--output", tmp_path / "p.svg")
    text = (tmp_path / "p.svg").read_text()
    for part in (
        'id="vpoc-2018-02-06"',
        'id="developing-2018-02-06"',
        "<dc:title>merged.csv, Tue 2018-02-06</dc:title>",
    ):
        assert part in text


def test_a_symbol_is_neither_a_formula_nor_a_command_to_a_terminal(csv, capsys, tmp_path):
    path = csv(session("2024-03-04", 20000, 20010, symbol="$ES_$\x07"))
    code, out, _ = vpoc(capsys, "--data", path, "--output", tmp_path / "p.svg")
    assert (code, out) == (0, f"{tmp_path / 'p.svg'}: $ES_$\\x07, Mon 2024-03-04\n")
    assert "<dc:title>$ES_$\\x07, Mon" in (tmp_path / "p.svg").read_text()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--date", "2018-02-03"], "no session on 2018-02-03; the nearest is that of 2018-02-02 and of 2018-02-05"),
        (["--date", "1999-01-01"], "no session on 1999-01-01; the nearest is that of 2018-01-02"),
        (
            ["--from", "2030-01-01", "--to", "2030-02-01"],
            "no session from 2030-01-01 to 2030-02-01; the nearest is that",
        ),
        (["--from", "2018-02-06", "--to", "2018-02-05"], "--from 2018-02-06 is after --to 2018-02-05; swap them"),
        (["--placement", "ticks"], "--placement ticks is for a file with a row per trade"),
    ],
)
def test_dates_that_are_not_there_are_one_line(capsys, merged, tmp_path, options, told):
    code, out, err = vpoc(capsys, "--data", merged, "--output", tmp_path / "p.png", *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert told in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [
        ["--date", "yesterday"],
        ["--date", "2018-02-06", "--from", "2018-02-05", "--to", "2018-02-06"],
        ["--from", "2018-02-05"],
        ["--to", "2018-02-05"],
        ["--row-ticks", "0"],
        ["--placement", "middle"],
    ],
)
def test_usage_errors(capsys, merged, tmp_path, options):
    code, _, err = vpoc(capsys, "--data", merged, "--output", tmp_path / "p.png", *options)
    assert code == 2
    assert "see `vpoc plot --help`" in err
    assert list(tmp_path.iterdir()) == []


def test_outputs_that_cannot_be_are_one_line(capsys, merged, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "folder.png").mkdir()
    copy = tmp_path / "data.png"
    copy.write_bytes(merged.read_bytes())
    for data, output, told in (
        (merged, "p.jpg", "the name must end in .png or .svg"),
        (merged, "p", "the name must end in .png or .svg"),
        (merged, "file/p.png", "is a file, not a folder"),
        (merged, "folder.png", "not a file but a folder"),
        (copy, "data.png", "the same file as the input"),
        (tmp_path / "none.csv", "p.png", "no such file or folder"),
    ):
        code, out, err = vpoc(capsys, "--data", data, "--output", tmp_path / output)
        assert (code, out, err.count("\n")) == (2, "", 1), output
        assert told in err or "in the way" in err
    assert copy.read_bytes() == merged.read_bytes()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["data.png", "file", "folder.png"]


def test_a_file_without_a_complete_session_or_without_regular_hours(capsys, csv, tmp_path):
    part = csv(bar("2024-03-04", "09:30", 20000, 20010), name="part.csv")
    night = csv(bar("2024-03-04", "03:00", 20000, 20010), name="night.csv")
    for path, told in (
        (part, "no session is complete; say which one to draw: --date"),
        (night, "no bar lies in regular"),
    ):
        code, _, err = vpoc(capsys, "--data", path, "--output", tmp_path / "p.png")
        assert (code, err.count("\n")) == (2, 1)
        assert told in err


def test_too_many_sessions_are_one_line(capsys, csv, tmp_path):
    dates = pl.date_range(dt.date(2024, 4, 1), dt.date(2024, 7, 31), eager=True)
    clocks = ("09:30", "10:00", "10:30")
    path = csv(*(bar(str(date), clock, 20000, 20001) for date in dates for clock in clocks))
    code, _, err = vpoc(
        capsys, "--data", path, "--output", tmp_path / "p.png", "--from", "2024-04-01", "--to", "2024-07-31"
    )
    assert (code, err.count("\n")) == (2, 1)
    assert "do not fit into a picture; draw 60 at most" in err


def test_an_interruption_leaves_the_old_picture_and_nothing_else(capsys, merged, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    output = tmp_path / "p.png"
    output.write_bytes(b"old")
    monkeypatch.setattr("vpoc.plots.render.to_bytes", interrupted)
    code, out, err = vpoc(capsys, "--data", merged, "--output", output, "--force")
    assert (code, out, err) == (130, "", "\nvpoc: interrupted\n")
    assert [file.name for file in tmp_path.iterdir()] == ["p.png"]
    assert output.read_bytes() == b"old"


def test_without_matplotlib_it_is_one_line(capsys, merged, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = vpoc(capsys, "--data", merged, "--output", tmp_path / "p.png")
    assert (code, err.count("\n")) == (2, 1)
    assert "pip install matplotlib" in err


def test_the_environment_is_left_as_it_was(capsys, merged, tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "svg")
    monkeypatch.delenv("MPLCONFIGDIR", raising=False)
    before = dict(os.environ)
    assert vpoc(capsys, "--data", merged, "--output", tmp_path / "p.png")[0] == 0
    assert dict(os.environ) == before


def test_only_the_drawing_imports_matplotlib():
    code = (
        "import sys; from vpoc.cli import run; assert run(['plot', '--help']) == 0; import vpoc.plots.picture; "
        "assert 'matplotlib' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


def test_slots_hold_bars_and_profile_and_do_not_overlap(merged):
    picture = make_picture(load_bars(merged), (days("2018-01-15"), days("2018-02-06")), Method(overnight=True))
    layout = lay_out(picture.studies, picture.naked, 20.0)
    at = layout.x[0]
    for shown, slot in zip(picture.studies, layout.slots, strict=True):
        assert at <= slot.left < slot.zero < slot.right < slot.strip < slot.end < layout.x[1]
        assert slot.left <= slot.zero + shown.before.start[0]
        assert slot.zero + shown.after.end[-1] <= slot.right
        at = slot.end
    assert set(layout.near) | set(layout.far) == set(picture.naked)


@given(st.lists(st.integers(-50, 50), max_size=12), st.integers(1, 9))
def test_labels_are_spread_no_further_than_needed(wanted, gap):
    places = spread_labels([float(place) for place in wanted], float(gap))
    order = np.argsort(wanted, kind="stable")
    placed = np.array(places)[order]
    assert (np.diff(placed) >= gap - 1e-9).all()
    if len(wanted) < 2 or np.diff(sorted(wanted)).min() >= gap:
        assert places == [float(place) for place in wanted]
    # Moving all labels together does not bring them nearer to their wanted places.
    assert np.mean(placed - np.array(wanted)[order]) == pytest.approx(0, abs=1e-9) if wanted else not places


def test_many_sessions_are_drawn_without_their_finest_marks(csv, marks):
    path = csv(*(session(f"2024-03-{day:02}", 20000, 20010) for day in range(4, 23) if day % 7 not in (2, 3)))
    few, _, _ = marks(path, "2024-03-04", "2024-03-19")
    many, _, _ = marks(path, "2024-03-04", "2024-03-20")
    fine = {"hvn-2024-03-04", "lvn-2024-03-04", "ibl-2024-03-04", "ibh-2024-03-04", "ib-2024-03-04"}
    assert set(few) >= fine
    assert not set(many) & fine
    assert {"vpoc-2024-03-04", "developing-2024-03-04", "vah-2024-03-04"} <= set(many)


@pytest.mark.slow
def test_real_sessions(capsys, real_data, tmp_path):
    merged = tmp_path / "real.csv"
    merged.write_bytes(merge(real_data("es-5min-2026.csv"), real_data("vix-daily.csv"), None).csv)
    for options in (["--date", "2026-03-10"], ["--from", "2026-03-09", "--to", "2026-03-20", "--overnight"]):
        code, _, err = vpoc(capsys, "--data", merged, "--output", tmp_path / "p.png", *options)
        assert (code, err) == (0, "")
        assert (tmp_path / "p.png").stat().st_size > 50_000
