"""The cleaned copy of a file of bars: what is done to which row, and why.

No value is invented, and suspicious rows stay. A row is dropped when it cannot be a bar of the ES contract, when
nothing shows which of two bars is right, or when it is a bad print.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from vpoc.arrays import Flags, Ints
from vpoc.data.bars import Bars, exact_duplicates
from vpoc.data.checks.bad_prints import bad_prints
from vpoc.data.checks.copying import ACTIONS, copy_in_order, copy_lines, copy_rows
from vpoc.data.checks.plausibility import vix_out_of_range
from vpoc.data.checks.plausibility_rules import PLAUSIBILITY_RULE
from vpoc.data.checks.quality import Quality
from vpoc.data.checks.session_blocks import Block, joined, merged_blocks, vendor_blocks
from vpoc.data.columns import PRICES, STAMP_FORMAT
from vpoc.data.merged_csv import UNENDED
from vpoc.data.merged_head import Head, find_head
from vpoc.data.readers import read_vendor
from vpoc.data.readers.contracts import one_contract
from vpoc.data.readers.vendor import VendorBars
from vpoc.data.rules import CHANGED, DROPPED, MOVED, OFF_GRID, RULES, broken_rules
from vpoc.errors import UserError
from vpoc.files import open_atomic, require_output

MAX_OFF_GRID_TO_DROP = 0.01
"""With a greater share the whole series is off the grid, and dropping rows would leave a random part of it."""
NO_TEXT = ("lean", "sierra-scid", "parquet")
"""Formats that have no lines of text to copy."""
OUT_OF_ORDER = "out of order"


@dataclass(frozen=True)
class Fixed:
    """The number of rows that were dropped, changed and moved, and their number by kind of reason."""

    dropped: int
    changed: int
    moved: int
    reasons: dict[str, int]


def fix(path: Path, quality: Quality, output: Path, changes: Path, **reading: Any) -> Fixed:
    """Write a cleaned copy of `path` to `output`, and what was done to which line to `changes`.

    `quality`: the result of `inspect` for `path`. `reading` is passed on to `read_vendor`. A merged CSV, and a vendor's
    text file, are copied line by line, so that the same reader reads the copy; rows of other formats are written as a
    CSV with stamps in UTC, which `vpoc merge` reads. The rules:

    - A row that cannot be read (of a merged CSV; a vendor's file must be readable), a price that is not above zero, an
      open or close outside low..high, an unterminated last line: dropped.
    - A price off the grid is no price of this contract: dropped, unless more than 1 % of the rows have one.
    - Rows with the same stamp: of equal rows the first stays. If they differ all are dropped, because a missing bar is
      counted, but a wrong one is never noticed. Single trades may share their stamp.
    - A VIX that is not above zero, or outside its possible range: the cell is emptied.
    - A bad print: dropped.
    - Rows of a merged CSV that are out of order: moved to their place. `vpoc merge` sorts a vendor's rows.

    `changes` is a CSV of line (in `path`; the number of the record if there are no lines), action (dropped, changed,
    moved), reason, was, now. UserError when the file cannot be read or an output cannot be written.
    """
    require_output(output, path)
    require_output(changes, path)
    if output.resolve() == changes.resolve():
        raise UserError(f"{changes}: the copy and the list of changes are one file; choose another --changes")
    head = find_head(path)
    if head is not None and quality.facts["out_of_order"]:
        whole = joined(list(merged_blocks(head)))
        actions = _decided([whole])
        left = ~np.isin(whole.line, actions.filter(pl.col("action") == DROPPED)["line"].to_numpy())
        actions = _with_moves(actions, whole.bars.ts[left], whole.line[left])
        with open_atomic(output) as copy, open_atomic(changes) as told:
            copy_in_order(head, whole.line[left], actions, copy, told)
        return _counted(actions)
    if head is not None:
        return _copied(path, head, _decided(merged_blocks(head)), output, changes)
    vendor = read_vendor(path, **reading)
    if vendor.format not in NO_TEXT:
        # The position of the VIX in a line is known only for a merged CSV.
        actions = _decided(vendor_blocks(one_contract(vendor).bars)).filter(pl.col("action") != CHANGED)
        return _copied(path, None, actions, output, changes)
    numbered = replace(vendor, frame=vendor.frame.with_columns(line=pl.int_range(1, pl.len() + 1, dtype=pl.Int64)))
    actions = _decided(vendor_blocks(one_contract(numbered).bars))
    with open_atomic(output) as copy, open_atomic(changes) as told:
        copy_rows(_generic(numbered), actions, copy, told)
    return _counted(actions)


def reading_of_copy(quality: Quality, reading: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for reading the copy of a file that `inspect` described and that was read with `reading`."""
    if quality.facts["format"] in NO_TEXT:
        return {"stamp_side": "start", "symbol": reading.get("symbol")}
    return dict(reading)


def _copied(path: Path, head: Head | None, actions: pl.DataFrame, output: Path, changes: Path) -> Fixed:
    with open_atomic(output) as copy, open_atomic(changes) as told:
        unended = copy_lines(path, actions, head, copy, told)
    fixed = _counted(actions)
    if not unended:
        return fixed
    return replace(fixed, dropped=fixed.dropped + 1, reasons={**fixed.reasons, UNENDED: 1})


def _decided(blocks: Iterable[Block]) -> pl.DataFrame:
    """Return the action on each line that has one, sorted by line."""
    keeping: list[pl.DataFrame] = []
    dropping: list[pl.DataFrame] = []
    rows = off_grid = 0
    for block in blocks:
        parts, left = _of_block(block, drop_off_grid=False)
        wrong = int(block.bars.off_grid[left].sum())
        # The share refers to the rows that are left, so that it is the same when the copy is fixed again.
        rows, off_grid = rows + int(left.sum()), off_grid + wrong
        keeping += parts
        dropping += _of_block(block, drop_off_grid=True)[0] if block.bars.off_grid.any() else parts
    chosen = dropping if off_grid <= MAX_OFF_GRID_TO_DROP * rows else keeping
    return pl.concat([pl.DataFrame(schema=ACTIONS), *chosen]).sort("line")


def _of_block(block: Block, *, drop_off_grid: bool) -> tuple[list[pl.DataFrame], Flags]:
    """Return the action on each line that has one, and flags [rows] of the bars that stay."""
    bars, line = block.bars, block.line
    parts = [block.unreadable.select("line", pl.lit(DROPPED).alias("action"), "reason")]
    left = np.ones(len(bars), dtype=np.bool_)
    if not len(bars):
        return parts, left
    flags = broken_rules(bars)
    for rule in RULES:
        if rule.fix == DROPPED and (drop_off_grid or rule.name != OFF_GRID):
            wrong = flags[rule.name]
            parts.append(_actions(line[wrong & left], DROPPED, rule.problem))
            left &= ~wrong
    if bars.bar_seconds:
        duplicates, unique = _of_duplicates(bars.take(left), line[left])
        parts += duplicates
        left[left] = unique
    parts.append(_prints_dropped(bars, line, left))
    changed = [rule for rule in RULES if rule.fix == CHANGED]
    parts += [_actions(line[left & flags[rule.name]], CHANGED, rule.problem) for rule in changed]
    no_vix = left & vix_out_of_range(bars.vix)
    return [*parts, _actions(line[no_vix], CHANGED, PLAUSIBILITY_RULE["vix_range"].problem)], left


def _prints_dropped(bars: Bars, line: Ints, left: Flags) -> pl.DataFrame:
    """Return the actions that drop bad prints which training refuses.

    Updates `left` [rows], and repeats until none is found.
    """
    parts = [_actions(line[:0], DROPPED, "")]
    while True:
        rows = np.flatnonzero(left)
        wrong = rows[[one.row for one in bad_prints(bars.take(left), line[left]) if one.gross]]
        if not len(wrong):
            return pl.concat(parts)
        parts.append(_actions(line[wrong], DROPPED, PLAUSIBILITY_RULE["bad_print"].problem))
        left[wrong] = False


def _of_duplicates(bars: Bars, line: Ints) -> tuple[list[pl.DataFrame], Flags]:
    """Return the action on each of the rows of one stamp that has one, and which bars [rows] stay."""
    fresh = np.ones(len(bars), dtype=np.bool_)
    fresh[1:] = bars.ts[1:] != bars.ts[:-1]
    # The number of the stamp of each bar, and which stamps have bars that differ.
    group, repeats = np.cumsum(fresh) - 1, exact_duplicates(bars)
    differs = np.zeros(int(fresh.sum()), dtype=np.bool_)
    differs[group[~fresh & ~repeats]] = True
    conflict = differs[group]
    unique = ~repeats & ~conflict
    first = line[np.searchsorted(group, group)]
    size = np.bincount(group)[group] if len(group) else group
    repeats &= ~conflict
    same = pl.DataFrame({"line": line[repeats], "first": first[repeats]}).select(
        "line", pl.lit(DROPPED).alias("action"), pl.format("repeats line {}", "first").alias("reason")
    )
    last = line[np.searchsorted(group, group, side="right") - 1]
    other = np.where(first == line, last, first)
    clash = pl.DataFrame({"line": line[conflict], "other": other[conflict], "size": size[conflict]}).select(
        "line",
        pl.lit(DROPPED).alias("action"),
        pl.format("the same stamp as line {} with other values ({} rows in all)", "other", "size").alias("reason"),
    )
    return [same, clash], unique


def _with_moves(actions: pl.DataFrame, ts: Ints, line: Ints) -> pl.DataFrame:
    """Return `actions` and the moves: as few as possible of the remaining rows, which have `ts` and `line` [rows]."""
    by_line = np.argsort(line)
    line, ts = line[by_line], ts[by_line]
    late = ts < np.maximum.accumulate(ts)
    early = ts > np.minimum.accumulate(ts[::-1])[::-1]
    # All other rows are in order relative to every row.
    unsure = np.flatnonzero(late | early)
    moved = _actions(line[unsure[~_longest_in_order(ts[unsure])]], MOVED, OUT_OF_ORDER)
    return pl.concat([actions, moved.join(actions, on="line", how="anti")]).sort("line")


def _longest_in_order(values: Ints) -> Flags:
    """Return the flags [n] of a longest subsequence of `values` [n] that never falls (patience sorting)."""
    ends: list[int] = []
    places: list[int] = []
    before = np.full(len(values), -1)
    for place, value in enumerate(values.tolist()):
        at = bisect_right(ends, value)
        before[place] = places[at - 1] if at else -1
        ends[at : at + 1], places[at : at + 1] = [value], [place]
    chosen = np.zeros(len(values), dtype=np.bool_)
    place = places[-1] if places else -1
    while place >= 0:
        chosen[place] = True
        place = int(before[place])
    return chosen


def _generic(vendor: VendorBars) -> pl.DataFrame:
    columns: list[Any] = ["line", pl.from_epoch("ts", time_unit="s").dt.to_string(STAMP_FORMAT), *PRICES, "volume"]
    named = vendor.frame["symbol"].null_count() < vendor.frame.height
    return vendor.frame.select(*columns, *(["symbol"] if named else []))


def _actions(lines: Ints, action: str, reason: str) -> pl.DataFrame:
    return pl.DataFrame({"line": lines}, schema={"line": pl.Int64}).with_columns(
        action=pl.lit(action), reason=pl.lit(reason)
    )


def _counted(actions: pl.DataFrame) -> Fixed:
    count = dict(actions.group_by("action").len().iter_rows())
    kinds = actions.select(kind=pl.col("reason").str.replace(r"line \d+", "another line").str.replace(r" \(.*", ""))
    by_kind = kinds.group_by("kind", maintain_order=True).len()
    return Fixed(count.get(DROPPED, 0), count.get(CHANGED, 0), count.get(MOVED, 0), dict(by_kind.iter_rows()))
