"""The plain rows of a CSV as the compiled part reads them: a right answer or none."""

from itertools import pairwise

import numpy as np
import pytest

from vpoc import kernel
from vpoc.data import compiled
from vpoc.data.bars import COLUMNS, problems
from vpoc.data.compiled import read_plain
from vpoc.data.load import _regular

pytestmark = pytest.mark.skipif(kernel.library() is None, reason="there is no compiled part here, or it is off")

HEADER = "ts,open,high,low,close,volume,vix"
ROWS = [f"2024-01-02T14:{minute}:00Z,4000.00,4001.00,3999.00,4000.25,10,15.5" for minute in range(30, 40)]


def read(rows, header=HEADER, end="\n"):
    return read_plain("made-up", "\n".join([header, *rows, ""])[:-1].encode() + end.encode(), header.split(","))


def changed(column, value, row=4):
    cells = ROWS[row].split(",")
    cells[column] = value
    return [*ROWS[:row], ",".join(cells), *ROWS[row + 1 :]]


def test_what_is_plain_and_sound():
    found = read(ROWS)
    assert found.sound
    assert not problems(found.bars)
    assert (found.bars.bar_seconds, found.bars.symbols, found.bars.rows_in_file) == (60, (), 10)
    assert found.bars.ts[0] == np.datetime64("2024-01-02T14:30:00", "s").astype(int)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_parts_of_a_file(merged, monkeypatch, threads):
    monkeypatch.setattr(compiled, "FEW", 100)
    monkeypatch.setattr(compiled, "cores", lambda: threads)
    content = merged.read_bytes()
    header = content.decode().partition("\n")[0].split(",")
    found, wanted = read_plain(merged, content, header), _regular(merged, content, header)
    assert found.sound
    for name in COLUMNS:
        one, other = getattr(found.bars, name), getattr(wanted, name)
        assert (one.dtype, one.tobytes()) == (other.dtype, other.tobytes()), name


UNSOUND = [
    (0, "2024-01-02T14:33:00Z"),
    (0, "2024-01-02T14:32:00Z"),
    (1, "4001.25"),
    (4, "3998.75"),
    (2, "4000.00"),
    (3, "4000.50"),
    (1, "4000.10"),
    (6, "0"),
    (6, "0.00"),
]


@pytest.mark.parametrize("threads", [1, 10])
@pytest.mark.parametrize(("column", "value"), UNSOUND)
def test_a_broken_rule_is_seen(monkeypatch, column, value, threads):
    monkeypatch.setattr(compiled, "FEW", 50)
    monkeypatch.setattr(compiled, "cores", lambda: threads)
    assert not read(changed(column, value)).sound


def test_a_price_of_zero_is_seen():
    assert not read([row.replace("3999.00", "0") for row in ROWS]).sound


ODD = [
    *((0, stamp) for stamp in ("2024-01-02T14:34:00", "2024-01-02 14:34:00Z", "2024-13-02T14:34:00Z", "")),
    *((0, stamp) for stamp in ("2023-02-29T14:34:00Z", "2024-01-02T24:34:00Z", "2024-01-02T14:34:60Z", "Z" * 20)),
    *((0, stamp) for stamp in ("1979-12-31T23:59:59Z", "2101-01-01T00:00:00Z", "2024-01-00T14:34:00Z")),
    *((1, price) for price in ("", " 4000", "+4000", "-4000", "4e3", "4000.", ".5", "4.0.0", '"4000"', "4000x", "NaN")),
    *((1, price) for price in ("4000.0000000000000", "600000000")),
    *((5, volume) for volume in ("", "1.0", "-1", "1000000000001", "99999999999999999999")),
    *((6, vix) for vix in ("NaN", "-1", " ", "inf", "15\r")),
]


@pytest.mark.parametrize(("column", "value"), ODD)
def test_what_is_not_plain_is_left_alone(column, value):
    assert read(changed(column, value)) is None


@pytest.mark.parametrize("rows", [["", *ROWS], [*ROWS, ""], [*ROWS, "2024"], [*ROWS, ROWS[0] + ",1"], ["2024"], []])
def test_rows_of_another_shape_are_left_alone(rows):
    assert read(rows) is None


def test_no_vix_and_other_orders_of_the_columns():
    assert np.isnan(read(changed(6, "")).bars.vix[4])
    rows = [",".join(row.split(",")[::-1]) for row in changed(6, "")]
    found = read(rows, ",".join(HEADER.split(",")[::-1]))
    assert np.isnan(found.bars.vix[4])
    assert found.bars.volume.tolist() == [10] * 10


def test_one_symbol_and_several():
    header = f"{HEADER},symbol"
    assert read([f"{row},ESH4" for row in ROWS], header).bars.symbols == ("ESH4",)
    for rows in ([*ROWS[:-1], f"{ROWS[-1]}"], [f"{row}," for row in ROWS], [f"{row}, ESH4" for row in ROWS]):
        assert read(rows, header) is None
    for last in ("ESM4", "ESH5", "ESH", "ESH40", "E"):
        assert read([*(f"{row},ESH4" for row in ROWS), f"{ROWS[-1]},{last}"], header) is None


def test_every_day_of_the_calendar():
    days = np.arange("1980-01-01", "2101-01-01", dtype="datetime64[D]")
    ts = read([f"{day}T00:00:01Z,1,1,1,1,1,1" for day in days]).bars.ts
    assert ts.tolist() == (days.astype(np.int64) * 86_400 + 1).tolist()


def test_numbers_are_those_of_python():
    texts = [f"{whole}.{rest}" for whole in (0, 7, 12, 900, 31_415) for rest in ("1", "07", "333", "9999999", "25")]
    rows = [f"2024-01-02T14:{place:02}:00Z,1,1,1,1,1,{text}" for place, text in enumerate(texts)]
    assert read(rows).bars.vix.tolist() == [float(text) for text in texts]


def test_borders_between_parts_are_ends_of_lines(monkeypatch):
    borders = []
    honest = compiled.in_threads

    def seen(work, at):
        borders.append(at)
        return honest(work, at)

    monkeypatch.setattr(compiled, "in_threads", seen)
    monkeypatch.setattr(compiled, "FEW", 1)
    monkeypatch.setattr(compiled, "cores", lambda: 1000)
    assert read(ROWS).bars.rows_in_file == 10
    assert all(len(at) == 11 and all(a < b for a, b in pairwise(at)) for at in borders)
