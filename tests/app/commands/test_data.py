"""Tests of `vpoc synth` and `vpoc check`."""

import json

from tests.app.commands.in_process import vpoc
from vpoc.data.synth import BARS


def test_synth(capsys, tmp_path):
    path = tmp_path / "s.csv"
    code, out, _ = vpoc(capsys, "synth", "--output", path, "--sessions", 2)
    assert code == 0
    assert f"{2 * BARS} rows, 2 sessions, sha256 " in out
    assert path.read_text().count("\n") == 2 * BARS + 1


def test_check(capsys, merged, tmp_path):
    code, out, err = vpoc(capsys, "check", merged, "--lookback", 20)
    assert (code, err) == (0, "")
    assert "complete rth sessions    26" in out
    assert "\noutside trading hours " in out
    head, *lines = merged.read_text().splitlines()
    (rolled := tmp_path / "rolled.csv").write_text(
        "\n".join([f"{head},symbol", *(f"{line},ES{'HM'[place >= 20 * 138]}8" for place, line in enumerate(lines))])
    )
    told = vpoc(capsys, "check", rolled, "--lookback", 20)[1]
    assert ", new symbol yes, roll by CME's calendar no, from ESH8, to ESM8, jump in points " in told
    code, out, _ = vpoc(capsys, "check", merged, "--lookback", 20, "--json")
    facts = json.loads(out)
    assert (code, facts["rows"], facts["bar_seconds"], facts["errors"]) == (0, 26 * 138, 600, [])
    short = tmp_path / "short.csv"
    short.write_text("".join(merged.read_text().splitlines(keepends=True)[:500]))
    code, _, err = vpoc(capsys, "check", short)
    assert code == 1
    assert (
        "63 complete sessions are needed (60 for lookback, 3 to use), the file has 3; give more data, such as " in err
    )
    assert "newer.csv >> older.csv`), or a --lookback of 20 to 23\n" in vpoc(capsys, "check", merged)[2]
    # The sessions after a roll give no rows.
    rolled.write_text(
        "\n".join([f"{head},symbol", *(f"{line},ES{'HM'[place >= 24 * 138]}8" for place, line in enumerate(lines))])
    )
    for lookback in (22, 60):
        assert vpoc(capsys, "check", rolled, "--lookback", lookback)[2].endswith(", or a --lookback of 20 to 21\n")


def test_check_counts_for_the_rows_asked_for(capsys, merged, tmp_path):
    short = tmp_path / "short.csv"
    short.write_text("".join(merged.read_text().splitlines(keepends=True)[: 1 + 23 * 138]))
    assert vpoc(capsys, "check", short, "--lookback", 20)[0] == 0
    code, _, err = vpoc(capsys, "check", short, "--lookback", 20, "--rows", "session")
    assert code == 1
    assert "24 complete sessions are needed" in err


def test_check_tells_what_gaps_cost(capsys, merged, tmp_path):
    holed = tmp_path / "holed.csv"
    lines = merged.read_text().splitlines(keepends=True)
    del lines[1 + 17 * 138 + 100 : 1 + 18 * 138]
    holed.write_text("".join(lines))
    _, out, _ = vpoc(capsys, "check", holed, "--lookback", 20, "--json")
    facts = json.loads(out)
    assert (facts["complete_rth_sessions"], facts["sessions_after_a_gap"]) == (25, 2)
