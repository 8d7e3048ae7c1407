"""Tests of reading a merged CSV: the fast reader, the careful one and the one in blocks give the same bars."""

import dataclasses
import threading

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vpoc import files
from vpoc.data import merged_csv
from vpoc.data.bars import COLUMNS, Bars
from vpoc.data.exchange.sessions import session_dates
from vpoc.data.load import load_bars, stream_bars
from vpoc.data.merged_csv import read_rows
from vpoc.data.merged_head import Head, find_head, require_merged
from vpoc.data.readers import read_vendor
from vpoc.errors import UserError
from vpoc.features.build import build_features, stream_features
from vpoc.features.feature_options import FeatureOptions
from vpoc.files import sha256_file

BLOCKS = (pytest.param(1009, marks=pytest.mark.long), 4096, 65_537)
HEADER = "ts,open,high,low,close,volume,vix\n"


def assert_same(found: Bars, wanted: Bars, *, but: tuple[str, ...] = ()) -> None:
    for field in dataclasses.fields(Bars):
        if field.name in but:
            continue
        one, other = getattr(found, field.name), getattr(wanted, field.name)
        if field.name in COLUMNS:
            assert one.dtype == other.dtype, field.name
            assert np.array_equal(one, other, equal_nan=field.name == "vix"), field.name
        else:
            assert one == other, field.name


def with_symbols(path, symbol_of):
    """Return the text of the file with a column `symbol`, which `symbol_of` gives for the date of each line."""
    header, *lines = path.read_text().splitlines()
    return "\n".join([f"{header},symbol", *(f"{line},{symbol_of(line[:10])}" for line in lines)]) + "\n"


def read_both_ways(path, text, monkeypatch):
    """Return the rows of `text` as the reader returns them, and as the careful reader does, cell by cell."""
    header, _, rows = text.partition("\n")
    head = Head(path, tuple(header.rstrip("\r").split(",")), f"{header}\n".encode())
    found = read_rows(rows.encode(), 2, rows.count("\n"), head)
    with monkeypatch.context() as careful:
        careful.setattr(merged_csv, "_sound_rows", lambda *_: None)
        return found, read_rows(rows.encode(), 2, rows.count("\n"), head)


def assert_same_rows(found, wanted):
    for name in ("line", "ts", "volume", "vix"):
        one, other = getattr(found, name), getattr(wanted, name)
        assert one.dtype == other.dtype, name
        assert np.array_equal(one, other, equal_nan=name == "vix"), name
    assert found.prices.keys() == wanted.prices.keys()
    for name, values in found.prices.items():
        assert np.array_equal(values, wanted.prices[name]), name
    assert (found.symbol is None) == (wanted.symbol is None)
    assert found.symbol is None or found.symbol.to_list() == wanted.symbol.to_list()
    assert found.unreadable.equals(wanted.unreadable)


@pytest.mark.parametrize("data", ["merged", "summer"])
def test_sound_rows_are_read_as_they_are_cell_by_cell(request, data, monkeypatch):
    path = request.getfixturevalue(data)
    quick = []
    honest = merged_csv._sound_rows
    monkeypatch.setattr(merged_csv, "_sound_rows", lambda *given: quick.append(honest(*given)) or quick[-1])
    for text in (
        path.read_text(),
        path.read_text().replace("\n", "\r\n"),
        with_symbols(path, lambda day: "ESM8"),
        with_symbols(path, lambda day: "ESM8" if day < "2018-06-12" else "ESU8"),
        "\n".join(",".join(line.split(",")[::-1]) for line in path.read_text().splitlines()) + "\n",
    ):
        found, wanted = read_both_ways(path, text, monkeypatch)
        assert quick.pop() is found, "read as numbers at once"
        assert_same_rows(found, wanted)


PRICES = [
    "4000.25",
    "4000",
    "4000.250",
    "+4000.25",
    " 4000.25",
    "4000.25 ",
    '"4000.25"',
    "4e3",
    "4000.",
    ".5",
    "4000.3",
]
PRICES += ["", "NaN", "inf", "-inf", "1e300", "-4000", "0", "-0", "0x10", "4,000", "4_000", "4000,25", "\uff14"]
VOLUMES = ["10", "10.0", "+10", "1e1", "010", "-0", "0", "-1", "1.5", "", "1e15", "99999999999999999999", " 10", "NaN"]
VIXES = ["15.00", "", " ", "NaN", "inf", "-1", "0", "15", '""', "null", "N/A"]
STAMPS = [
    "2024-01-02T14:30:00Z",
    "2024-01-02T14:30:60Z",
    "2024-1-2T14:30:00Z",
    "2024-01-02 14:30:00",
    "",
    "1979-12-31T23:59:59Z",
]
STAMPS += [
    "1980-01-01T00:00:00Z",
    "2100-12-31T23:59:59Z",
    "2101-01-01T00:00:00Z",
    "2024-02-30T14:30:00Z",
    "2024-01-02T24:00:00Z",
]
SYMBOLS = ["ESH4", "ESM4", "", " ESH4", " ", "ES H4", '"ESH4"', "null"]
GOOD = ["2024-01-02T14:30:00Z", "4000.00", "4001.00", "3999.00", "4000.25", "10", "15.00"]


@st.composite
def odd_text(draw):
    """Return a file of a few rows, in which up to two cells are odd."""
    named = draw(st.booleans())
    rows = [[*GOOD, "ESH4"] if named else list(GOOD) for _ in range(draw(st.integers(1, 4)))]
    for _ in range(draw(st.integers(0, 2))):
        row, column = draw(st.sampled_from(rows)), draw(st.integers(0, 7 if named else 6))
        cells = [STAMPS, *[PRICES] * 4, VOLUMES, VIXES, SYMBOLS][column]
        row[column] = draw(st.sampled_from(cells))
    end = draw(st.sampled_from(["\n", "\r\n"]))
    header = HEADER[:-1] + (",symbol" if named else "")
    lines = [header, *(",".join(row) for row in rows)]
    return end.join(lines) + draw(st.sampled_from([end, end, "", end * 2]))


@pytest.mark.slow
@settings(max_examples=6 * settings.default.max_examples)
@given(odd_text())
@example(HEADER + ",".join(GOOD) + "\n")
@example(HEADER[:-1] + ",symbol\n" + ",".join(GOOD) + ", ESH4\n")
@example(HEADER[:-1] + ",symbol\n" + ",".join(GOOD) + ",\n")
def test_odd_cells_are_read_alike_both_ways(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "odd.csv"
    with pytest.MonkeyPatch.context() as patch:
        assert_same_rows(*read_both_ways(path, text, patch))


def joined(blocks):
    """Join the bars of all blocks; facts about the whole file come from the last block."""
    columns = {name: np.concatenate([getattr(block, name) for block in blocks]) for name in COLUMNS}
    return dataclasses.replace(blocks[-1], **columns)


@pytest.mark.slow
@pytest.mark.parametrize("size", BLOCKS)
@pytest.mark.parametrize("data", ["merged", "summer"])
def test_blocks_cut_anywhere_are_the_whole(request, data, size, monkeypatch):
    path = request.getfixturevalue(data)
    monkeypatch.setattr(merged_csv, "BLOCK_BYTES", size)
    blocks = list(stream_bars(path))
    assert len(blocks) > 3
    assert_same(joined(blocks), load_bars(path))
    dates = [set(session_dates(block.ts).tolist()) for block in blocks]
    assert sum(map(len, dates)) == len(set.union(*dates)) == 26, "a session is in one block"


@pytest.mark.slow
@pytest.mark.parametrize("as_of", ["close", "open"])
@pytest.mark.parametrize("size", [*BLOCKS, 1 << 20])
@pytest.mark.parametrize("data", ["merged", "summer"])
def test_features_of_blocks_are_those_of_the_whole(request, data, size, as_of, monkeypatch):
    path = request.getfixturevalue(data)
    options = FeatureOptions(rows="session", as_of=as_of, lookback=20)
    whole = build_features(load_bars(path), options)
    monkeypatch.setattr(merged_csv, "BLOCK_BYTES", size)
    streamed = stream_features(stream_bars(path), options)
    assert streamed.frame.equals(whole.frame)
    assert vars(streamed) | {"frame": None} == vars(whole) | {"frame": None}


@pytest.mark.slow
@pytest.mark.parametrize("size", [pytest.param(977, marks=pytest.mark.long), 9001])
def test_a_file_that_ends_within_a_session(merged, tmp_path, size, monkeypatch):
    path = tmp_path / "m.csv"
    lines = merged.read_text().splitlines(keepends=True)
    options = FeatureOptions(rows="session", as_of="open", lookback=20)
    monkeypatch.setattr(merged_csv, "BLOCK_BYTES", size)
    # The file ends at night, after the first or second bar of regular hours, or one bar before their end.
    for end in (50, 94, 95, 131) if size == 9001 else (94,):
        path.write_text("".join(lines[: 1 + 25 * 138 + end]))
        whole, streamed = build_features(load_bars(path), options), stream_features(stream_bars(path), options)
        assert streamed.frame.equals(whole.frame)
        assert streamed.left_out == whole.left_out


def test_a_session_without_its_last_bar_is_complete_in_blocks_too(merged, tmp_path, monkeypatch):
    """A session of 38 of 39 bars counts as unfinished only when it is the last thing in the file."""
    path = tmp_path / "m.csv"
    header, *lines = merged.read_text().splitlines(keepends=True)
    path.write_text(header + "".join(line for place, line in enumerate(lines) if place % 138 < 131))
    options = FeatureOptions(rows="session", lookback=20)
    whole = build_features(load_bars(path), options)
    assert (whole.sessions_used, whole.left_out["incomplete"]) == (5, 1)
    monkeypatch.setattr(merged_csv, "BLOCK_BYTES", 8000)
    streamed = stream_features(stream_bars(path), options)
    assert streamed.frame.equals(whole.frame)
    assert streamed.left_out == whole.left_out


def test_what_a_block_says_of_the_file(merged, monkeypatch):
    content = merged.read_bytes()
    monkeypatch.setattr(merged_csv, "BLOCK_BYTES", 10_000)
    blocks = list(stream_bars(merged))
    assert blocks[-1].sha256 == sha256_file(merged) == load_bars(merged).sha256
    assert blocks[-1].rows_in_file == content.count(b"\n") - 1 == 26 * 138


def changed(line, name, value):
    cells = line.rstrip("\n").split(",")
    cells[HEADER.strip().split(",").index(name)] = value
    return ",".join(cells) + "\n"


DAMAGE = {
    "text price": (lambda line, above: changed(line, "close", "n/a"), "close is 'n/a', not a number"),
    "outside": (lambda line, above: changed(line, "high", "1"), "open or close is outside low..high (1 rows)"),
    "stamp": (lambda line, above: changed(line, "ts", "2018-01-09 15:00"), "ts is '2018-01-09 15:00', not like"),
    "backwards": (lambda line, above: changed(line, "ts", "2018-01-02T00:00:00Z"), "the stamp is before that"),
    "conflict": (lambda line, above: changed(above, "volume", "123456"), "the same stamp with other values (1 rows)"),
    "vix": (lambda line, above: changed(line, "vix", "0.00"), "vix is not above zero (1 rows)"),
    "no text": (lambda line, above: changed(line, "vix", "\udcff"), "not UTF-8 text"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize(
    ("row", "size"),
    [
        pytest.param(400, 3001, marks=pytest.mark.long),
        (2999, 3001),
        pytest.param(2999, 50_000, marks=pytest.mark.long),
        (26 * 138 - 1, 50_000),
    ],
)
def test_errors_name_the_line_in_blocks_too(merged, tmp_path, monkeypatch, kind, row, size):
    damage, said = DAMAGE[kind]
    lines = merged.read_text().splitlines(keepends=True)
    lines[1 + row] = damage(lines[1 + row], lines[row])
    path = tmp_path / "m.csv"
    path.write_bytes("".join(lines).encode("utf-8", "surrogateescape"))
    assert said in refused(lambda: load_bars(path), path, row + 2)
    monkeypatch.setattr(merged_csv, "BLOCK_BYTES", size)
    assert said in refused(lambda: list(stream_bars(path)), path, row + 2)


def refused(read, path, line):
    with pytest.raises(UserError) as caught:
        read()
    message = str(caught.value)
    assert message.startswith(f"{path}, line {line}: ")
    assert "\n" not in message
    return message


@pytest.mark.slow
def test_lines_are_counted_from_the_file_although_duplicates_were_dropped(merged, tmp_path, monkeypatch):
    lines = merged.read_text().splitlines(keepends=True)
    path = tmp_path / "m.csv"
    twice = [lines[0], *(line for line in lines[1:] for _ in range(2))]
    path.write_text("".join(twice))
    monkeypatch.setattr(merged_csv, "BLOCK_BYTES", 3001)
    found = joined(list(stream_bars(path)))
    assert_same(found, load_bars(path))
    assert (len(found), found.rows_in_file) == (26 * 138, 2 * 26 * 138)
    for copy in (5001, 5002):
        twice[copy] = changed(twice[copy], "high", "1")
    path.write_text("".join(twice))
    for read in (load_bars, lambda path: list(stream_bars(path))):
        assert "outside low..high (2 rows)" in refused(lambda read=read: read(path), path, 5002)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["\n\n\n", "\r\n\r\n", "\n" * 3000])
def test_blank_lines_at_the_end_are_no_rows_in_blocks_either(merged, tmp_path, monkeypatch, end):
    path = tmp_path / "m.csv"
    content = merged.read_bytes()
    path.write_bytes(content + end.encode())
    # Blocks that end with the last row, blocks that end in the middle of it, and blocks of some other size.
    for size in (len(content), len(content) - 20, 1009):
        monkeypatch.setattr(merged_csv, "BLOCK_BYTES", size)
        assert_same(joined(list(stream_bars(path))), load_bars(path), but=("rows_in_file",))


@pytest.mark.parametrize(("read", "end"), [(load_bars, "9"), (load_bars, "\0"), (load_bars, "\n"), (read_vendor, "9")])
def test_what_has_no_rows_is_not_read_to_its_end(tmp_path, monkeypatch, read, end):
    path = tmp_path / "m.csv"
    path.write_text(f"{HEADER}2018-01-01T23:00:00Z,4000,4001,3999,4000,9,\n{end * 20_000}")
    for module in (files, merged_csv):
        monkeypatch.setattr(module, "LONGEST_LINE", 5000)
    monkeypatch.setattr(merged_csv, "BLOCK_BYTES", 1000)
    monkeypatch.setattr("vpoc.data.readers.text.CHUNK", 1000)
    with pytest.raises(UserError, match=r"m\.csv: has more than 5,000 bytes without a row; give a CSV file of bars"):
        read(path)


@pytest.mark.parametrize("content", ["", HEADER, HEADER[:-1], "\n\n", "ts,open\n1,2\n"])
def test_files_without_bars_are_refused_alike(tmp_path, content):
    path = tmp_path / "m.csv"
    path.write_text(content)
    messages = []
    for read in (load_bars, lambda path: list(stream_bars(path))):
        with pytest.raises(UserError) as caught:
            read(path)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "\n" not in messages[0]


def test_a_file_that_was_cut_short_is_refused_alike(merged, tmp_path, monkeypatch):
    path = tmp_path / "m.csv"
    path.write_bytes(merged.read_bytes()[:-3])
    monkeypatch.setattr(merged_csv, "BLOCK_BYTES", 3001)
    for read in (load_bars, lambda path: list(stream_bars(path))):
        with pytest.raises(UserError, match=rf"line {26 * 138 + 1}: the file does not end with a newline"):
            read(path)


def test_a_file_that_is_replaced_after_its_header_was_read_is_refused(merged, tmp_path, monkeypatch):
    path = tmp_path / "m.csv"
    content = merged.read_text()

    def found_then_replaced(path):
        path.write_text(content)
        head = find_head(path)
        path.write_text(content.replace("open,high,low,close", "close,high,low,open"))
        return head

    monkeypatch.setattr("vpoc.data.load.find_head", found_then_replaced)
    for read in (load_bars, lambda path: list(stream_bars(path))):
        with pytest.raises(UserError, match=r"m\.csv: was changed while it was read"):
            read(path)


def test_blocks_of_what_is_not_there(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        list(stream_bars(tmp_path / "none.csv"))
    with pytest.raises(UserError, match="this is a folder"):
        list(stream_bars(tmp_path))


def contract_of(day):
    return "ESZ7" if day < "2018-01-09" else "ESH8" if day < "2018-01-22" else "ESM8"


@pytest.mark.slow
@pytest.mark.parametrize("size", [1 << 20, *BLOCKS])
def test_several_symbols_along_the_file(merged, tmp_path, monkeypatch, size):
    path = tmp_path / "m.csv"
    path.write_text(with_symbols(merged, contract_of))
    whole = load_bars(path)
    assert whole.symbols == ("ESZ7", "ESH8", "ESM8")
    day = whole.ts // 86_400 * 86_400
    jan_9, jan_22 = (int(np.datetime64(stamp, "s").astype(int)) for stamp in ("2018-01-09", "2018-01-22"))
    assert whole.contract.tolist() == ((day >= jan_9).astype(int) + (day >= jan_22)).tolist()
    monkeypatch.setattr(merged_csv, "BLOCK_BYTES", size)
    assert_same(joined(list(stream_bars(path))), whole)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1 << 20, *BLOCKS])
def test_a_symbol_that_comes_back_has_its_number(merged, tmp_path, monkeypatch, size):
    path = tmp_path / "m.csv"
    path.write_text(with_symbols(merged, lambda day: "ESH8" if "2018-01-09" <= day < "2018-01-22" else "ESZ7"))
    whole = load_bars(path)
    assert (whole.symbols, int(whole.contract[0]), int(whole.contract[-1])) == (("ESZ7", "ESH8"), 0, 0)
    monkeypatch.setattr(merged_csv, "BLOCK_BYTES", size)
    assert_same(joined(list(stream_bars(path))), whole)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1 << 20, *BLOCKS])
def test_a_symbol_that_is_missing_in_a_part_is_refused(merged, tmp_path, monkeypatch, size):
    for empty in (lambda day: day < "2018-01-12", lambda day: day >= "2018-01-12"):
        path = tmp_path / "m.csv"
        path.write_text(with_symbols(merged, lambda day, empty=empty: "" if empty(day) else "ESH8"))
        monkeypatch.setattr(merged_csv, "BLOCK_BYTES", size)
        for read in (load_bars, lambda path: list(stream_bars(path))):
            with pytest.raises(UserError, match="the symbol is empty, but not in every row"):
                read(path)


def trades(tmp_path):
    """Write a file with a row per trade, many of which equal the row before."""
    first = int(np.datetime64("2018-01-03T14:30:00", "s").astype(int))
    rows = []
    for number in range(2000):
        stamp = np.datetime64(first + number // 4 + 86_400 * (number // 1000), "s")
        rows.append(f"{stamp}Z,{','.join([f'{2700 + number // 100 * 0.25:.2f}'] * 4)},1,11.00\n")
    path = tmp_path / "trades.csv"
    path.write_text(HEADER + "".join(rows))
    return path


@pytest.mark.parametrize("size", [1 << 20, *BLOCKS])
def test_trades_that_are_alike_are_all_kept(tmp_path, monkeypatch, size):
    path = trades(tmp_path)
    whole = load_bars(path)
    assert (whole.bar_seconds, len(whole), int(whole.volume.sum())) == (0, 2000, 2000)
    monkeypatch.setattr(merged_csv, "BLOCK_BYTES", size)
    assert_same(joined(list(stream_bars(path))), whole)


def test_few_prices_off_the_grid_are_rounded_in_blocks_too(merged, tmp_path, monkeypatch):
    """3 of 3588 bars, all of them in one block, are less than 0.1 % of the file."""
    lines = merged.read_text().splitlines(keepends=True)
    for row in (1501, 1502, 1503):
        close = float(lines[row].split(",")[4])
        lines[row] = changed(lines[row], "close", f"{close + (0.05 if lines[row].split(',')[3] != close else 0):.2f}")
        lines[row] = changed(lines[row], "high", f"{close + 5:.2f}")
    path = tmp_path / "m.csv"
    path.write_text("".join(lines))
    whole = load_bars(path)
    assert whole.off_grid.sum() == 3
    monkeypatch.setattr(merged_csv, "BLOCK_BYTES", 3001)
    assert_same(joined(list(stream_bars(path))), whole)


def test_a_file_without_the_header_of_a_merged_csv_is_told_apart(tmp_path):
    path = tmp_path / "bars.csv"
    path.write_text("ts,open,high,low,close,volume\n")
    with pytest.raises(
        UserError, match=r"bars.csv: not a merged CSV: no column vix; there are: ts, .*; `vpoc merge` makes"
    ):
        require_merged(path)
    path.write_text("ts,open,high,low,close,volume,vix\n", "utf-16")
    with pytest.raises(UserError, match=r"bars.csv: this is UTF-16 text; save the file as UTF-8 CSV"):
        require_merged(path)
    path.write_text('"TS",open,high,low,close,volume, VIX ,symbol\r\n')
    require_merged(path)


@pytest.mark.slow
def test_a_file_of_many_parts_is_loaded_and_judged_as_one(merged, tmp_path, monkeypatch):
    wanted = load_bars(merged)
    path = tmp_path / "m.csv"
    header, *lines = merged.read_text().splitlines(keepends=True)
    wrong = (2000, 3000)
    path.write_text(header + "".join(changed(x, "close", "1.0") if n in wrong else x for n, x in enumerate(lines)))
    monkeypatch.setattr(merged_csv, "BLOCK_BYTES", 1009)
    assert_same(load_bars(merged), wanted)
    with pytest.raises(UserError, match=r"line 2002: open or close is outside low..high \(2 rows\)"):
        load_bars(path)


def test_what_is_left_unread_is_not_waited_for(merged, monkeypatch):
    """The garbage collector may close the generator in one of its own threads, which would then wait for itself."""
    release, honest, done = threading.Event(), merged_csv.read_rows, []

    def slow(content, line, *rest):
        if line != 2:
            release.wait(5)
        done.append(line)
        return honest(content, line, *rest)

    monkeypatch.setattr(merged_csv, "read_rows", slow)
    parts = merged_csv.read_parts(Head(merged, tuple(HEADER.strip().split(",")), HEADER.encode()), 1009)
    next(parts)
    parts.close()
    assert done == [2]
    release.set()
