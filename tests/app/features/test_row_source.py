from dataclasses import replace

import polars as pl
import pytest

from vpoc.data.load import load_bars
from vpoc.errors import Interrupted, UserError
from vpoc.features import row_source as blocks
from vpoc.features.build import build_features
from vpoc.features.feature_options import FeatureOptions
from vpoc.features.row_source import block_rows, stored_rows
from vpoc.features.store import write_features
from vpoc.progress import Progress

OPTIONS = FeatureOptions(rows="bar", lookback=20, chunk_size=4)
QUIET = Progress(None)


def joined(rows):
    """Return all blocks of rows as one FeatureSet."""
    return replace(rows.features, frame=pl.concat(rows.frames(QUIET)))


def assert_same(found, wanted):
    assert found.frame.equals(wanted.frame)
    assert vars(found) | {"frame": None} == vars(wanted) | {"frame": None}


def without_vix(path, lines):
    """Return the text of the file with the vix of these lines emptied; line 1 is the header."""
    header, *rows = path.read_text().splitlines(keepends=True)
    place = header.strip().split(",").index("vix")
    for number in lines:
        cells = rows[number - 1].rstrip("\n").split(",")
        cells[place] = ""
        rows[number - 1] = ",".join(cells) + "\n"
    return header + "".join(rows)


@pytest.mark.slow
@pytest.mark.parametrize("size", [*(pytest.param(s, marks=pytest.mark.long) for s in (997, 20_011)), 9001, 1 << 20])
@pytest.mark.parametrize("data", ["merged", "summer"])
def test_rows_of_blocks_cut_anywhere_are_those_of_the_whole(request, data, size, monkeypatch):
    path = request.getfixturevalue(data)
    whole = build_features(load_bars(path), OPTIONS)
    monkeypatch.setattr(blocks, "ROW_BLOCK_BYTES", size)
    rows = block_rows(path, OPTIONS, QUIET)
    assert rows.features.frame.is_empty()
    assert rows.count == whole.frame.height
    assert (len(rows.blocks) > 2) == (size < 1 << 20)
    assert_same(joined(rows), whole)


@pytest.mark.parametrize("chosen", [{"data_fraction": 0.5}, {"placement": "typical", "value_area": "one_row"}])
def test_options_mean_the_same(merged, chosen, monkeypatch):
    options = replace(OPTIONS, **chosen)
    monkeypatch.setattr(blocks, "ROW_BLOCK_BYTES", 9001)
    assert_same(joined(block_rows(merged, options, QUIET)), build_features(load_bars(merged), options))


def test_rows_without_vix_are_counted_before_there_are_rows(merged, tmp_path, monkeypatch):
    path = tmp_path / "m.csv"
    # These are all regular hours of session 22 and the first bars of session 24.
    path.write_text(without_vix(merged, [*range(22 * 138 + 90, 22 * 138 + 133), *range(24 * 138 + 90, 24 * 138 + 99)]))
    whole = build_features(load_bars(path), OPTIONS)
    assert whole.left_out["rows_without_vix"] > 5
    monkeypatch.setattr(blocks, "ROW_BLOCK_BYTES", 9001)
    rows = block_rows(path, OPTIONS, QUIET)
    assert rows.count == whole.frame.height
    assert_same(joined(rows), whole)


@pytest.mark.slow
@pytest.mark.parametrize("end", [50, *(pytest.param(end, marks=pytest.mark.long) for end in (95, 110)), 131])
def test_a_file_that_ends_within_a_session(merged, tmp_path, end, monkeypatch):
    path = tmp_path / "m.csv"
    path.write_text("".join(merged.read_text().splitlines(keepends=True)[: 1 + 25 * 138 + end]))
    monkeypatch.setattr(blocks, "ROW_BLOCK_BYTES", 977)
    assert_same(joined(block_rows(path, OPTIONS, QUIET)), build_features(load_bars(path), OPTIONS))


def test_each_frame_is_of_a_few_whole_sessions(merged, monkeypatch):
    monkeypatch.setattr(blocks, "ROW_BLOCK_BYTES", 20_011)
    dates = [frame["trade_date"].unique().to_list() for frame in block_rows(merged, OPTIONS, QUIET).frames(QUIET)]
    assert len(dates) > 1
    assert sum(map(len, dates)) == len(set().union(*dates)) == 6


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text + text.splitlines(keepends=True)[-1].replace("T", "T", 1),
        lambda text: text[: len(text) // 2].rpartition("\n")[0] + "\n",
        lambda text: text.replace(",1", ",2", 1),
    ],
)
def test_a_file_that_changes_between_the_passes_is_refused(merged, tmp_path, change, monkeypatch):
    path = tmp_path / "m.csv"
    path.write_text(merged.read_text())
    monkeypatch.setattr(blocks, "ROW_BLOCK_BYTES", 9001)
    rows = block_rows(path, OPTIONS, QUIET)
    path.write_text(change(merged.read_text()))
    with pytest.raises(UserError, match=r"m\.csv"):
        joined(rows)


def test_what_is_wrong_with_a_file_is_reported_in_one_line(merged, tmp_path):
    path = tmp_path / "m.csv"
    header, *lines = merged.read_text().splitlines(keepends=True)
    path.write_text(header + "".join(lines[: 10 * 138]))
    with pytest.raises(UserError, match="23 complete sessions are needed"):
        block_rows(path, OPTIONS, QUIET)
    path.write_text(header + "".join(lines[:50]))
    with pytest.raises(UserError, match="no bars in regular hours"):
        block_rows(path, OPTIONS, QUIET)


def test_the_second_pass_can_be_interrupted(merged):
    progress = Progress(None)
    frames = block_rows(merged, OPTIONS, progress).frames(progress)
    next(frames)
    progress.interrupt(2)
    with pytest.raises(Interrupted):
        list(frames)


@pytest.mark.parametrize(
    ("size", "heights"), [(10, [39] * 6), (39, [39] * 4 + [78]), (50, [39] * 3 + [78, 39]), (1000, [234])]
)
def test_rows_of_a_feature_file_in_parts(merged, tmp_path, size, heights, monkeypatch):
    whole = build_features(load_bars(merged), OPTIONS)
    write_features(tmp_path / "f.parquet", whole)
    monkeypatch.setattr(blocks, "SLICE_ROWS", size)
    rows = stored_rows(tmp_path / "f.parquet")
    assert rows.count == whole.frame.height
    assert_same(joined(rows), whole)
    dates = [frame["trade_date"].unique().to_list() for frame in rows.frames(QUIET)]
    assert sum(map(len, dates)) == len(set().union(*dates)) == 6
    assert [frame.height for frame in rows.frames(QUIET)] == heights


@pytest.mark.parametrize("place", [4, 1000, -400, -8])
def test_a_feature_file_with_another_byte_is_refused(merged, tmp_path, place):
    path = tmp_path / "f.parquet"
    write_features(path, build_features(load_bars(merged), OPTIONS))
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="not a file that `vpoc features` wrote, or changed since"):
        stored_rows(path)
    with pytest.raises(UserError, match="no such file"):
        stored_rows(tmp_path / "none.parquet")
