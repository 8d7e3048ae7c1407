"""The data-quality table of a file of bars: what would stop training, and what the user should know before."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vpoc.data.checks.findings import Findings
from vpoc.data.checks.plausibility_gate import judged
from vpoc.data.checks.plausibility_rules import Implausible, stamp_text_of
from vpoc.data.checks.session_blocks import merged_blocks, vendor_blocks
from vpoc.data.checks.session_quality import inspect_sessions
from vpoc.data.columns import TICK
from vpoc.data.exchange.selection import SHORTEST_LOOKBACK
from vpoc.data.merged_head import find_head
from vpoc.data.readers import read_vendor
from vpoc.data.readers.contracts import one_contract
from vpoc.data.rules import MAX_OFF_GRID_SHARE, OFF_GRID, ROW_ADVICE, RULES, SYMBOL_MISSING
from vpoc.errors import UserError

MERGED = "merged"
SHOWN_TALLIES = (
    *("not_positive", "exact_duplicates", "conflicting_duplicates", "ohlc_violations", "off_grid"),
    *("zero_volume", "invented_fills", "flat_repeats", "outside_trading_hours"),
)
SUSPECT_SHARE = 0.03
"""Suspicious share of bars outside known hours; a clock that is an hour off puts 4 % of the bars in the daily break."""


@dataclass(frozen=True)
class Quality:
    """The quality of a file.

    `facts`: the table, by name, in order; a table inside it is a list of mappings.
    `errors`, `warnings`: one line for each; an error stops training.
    """

    facts: dict[str, Any]
    errors: list[str]
    warnings: list[str]


def inspect(
    path: Path,
    lookback: int = SHORTEST_LOOKBACK,
    rows: str = "bar",
    accepted: Collection[str] = (),
    **reading: Any,
) -> Quality:
    """Examine everything in a merged CSV for training with these `rows`, after `lookback` sessions.

    `accepted`: rules of `PLAUSIBILITY_RULES` that cause only a warning when they are broken. Any other file that
    `read_vendor` reads is examined, too; `reading` is passed on to it. For such a file, too few sessions are only a
    warning, since it may be one of several. UserError only when the file cannot be read as a table of bars.
    """
    head = find_head(path)
    found = Findings()
    smaller_kept: tuple[str, ...] = ()
    if head is not None and any(reading.values()):
        raise UserError(
            f"{path}: a merged CSV is read in one way only; leave out --zone, --stamps, --dates, --column, --symbol"
        )
    if head is not None:
        source: dict[str, Any] = {"format": MERGED, "zone": "UTC", "stamp_side": "start"}
        counts: dict[str, int] = {}
        with_vix = True
        for block in merged_blocks(head):
            found.add(block)
    else:
        vendor = read_vendor(path, **reading)
        source = {"format": vendor.format, "zone": vendor.zone, "stamp_side": vendor.stamp_side}
        counts = dict(vendor.counts)
        with_vix = "vix" in vendor.frame.columns
        one = one_contract(vendor)
        smaller_kept = one.smaller_kept
        for block in vendor_blocks(one.bars):
            found.add(block)
    if found.rows == found.tallies["unreadable"].rows:
        first = found.tallies["unreadable"].first_line
        told = f", line {first}: {found.unreadable_reason}" if first else ": there is a header but no rows"
        raise UserError(f"{path}{told}; give a file with bars")
    # A file with VIX can be trained on directly, whatever its column names.
    merged = with_vix
    errors = _row_errors(path, found, merged=merged, in_order=head is not None)
    warnings = [f"{count} {name.replace('_', ' ')} on reading" for name, count in counts.items() if count]
    warnings += _row_warnings(found, in_order=head is not None)
    implausible = found.plausibility.found()
    refused, doubtful = judged(implausible, accepted)
    errors += [one.at(path) for one in refused]
    warnings += [one.warning() for one in doubtful]
    sessions = inspect_sessions(path, found, rows, lookback)
    facts = {**source, **_facts(found, merged=merged), **sessions.facts}
    facts["implausible"] = [_shown(one, refused=one in refused) for one in implausible]
    warnings += [*sessions.warnings, *smaller_kept]
    if found.halt:
        errors.append(found.halt)
    elif sessions.too_few and (head is None or not found.tallies["late"].rows):
        # Sessions of lines in a wrong order would be miscounted.
        (errors if merged else warnings).append(sessions.too_few)
    return Quality(facts, errors, warnings)


def _shown(one: Implausible, *, refused: bool) -> dict[str, Any]:
    return {
        "rule": one.rule.name,
        "count": one.count,
        "first": stamp_text_of(one.ts),
        "line": one.line or None,
        "shown": one.shown,
        "refused": refused,
    }


def _facts(found: Findings, *, merged: bool) -> dict[str, Any]:
    of_vix = ("null_vix", "stale_vix", "vix_not_positive")
    return {
        "rows": found.rows,
        "first": stamp_text_of(found.first),
        "last": stamp_text_of(found.last),
        "symbols": [symbol for symbol in found.symbols if symbol],
        "bar_seconds": found.bar_seconds,
        "unreadable": found.tallies["unreadable"].rows,
        "out_of_order": found.tallies["late"].rows,
        **{name: found.tallies[name].rows for name in SHOWN_TALLIES},
        **{name: found.tallies[name].rows if merged else None for name in of_vix},
    }


def _row_errors(path: Path, found: Findings, *, merged: bool, in_order: bool) -> list[str]:
    errors = []
    unreadable = found.tallies["unreadable"]
    if unreadable.rows:
        reason, line = found.unreadable_reason, unreadable.first_line
        errors.append(f"{path}, line {line}: {reason} ({unreadable.rows} rows cannot be read); {ROW_ADVICE}")
    for rule in RULES:
        tally = found.tallies[rule.name]
        few = rule.name == OFF_GRID and tally.rows <= MAX_OFF_GRID_SHARE * found.rows
        # `vpoc merge` sorts a vendor's rows.
        if rule.advice and tally.rows and not few and (in_order or rule.name != "late"):
            errors.append(f"{path}, line {tally.first_line}: {rule.problem} ({tally.rows} rows); {rule.advice}")
    if merged and found.tallies["null_vix"].rows + unreadable.rows >= found.rows:
        errors.append(f"{path}: no row has a VIX value; make the file again with `vpoc merge --vix`")
    if merged and 0 < found.nameless < found.rows:
        errors.append(f"{path}: {SYMBOL_MISSING}")
    return errors


def _row_warnings(found: Findings, *, in_order: bool) -> list[str]:
    warnings = []
    for rule in RULES:
        tally = found.tallies[rule.name]
        if tally.rows and not rule.advice:
            warnings.append(f"line {tally.first_line}: {tally.rows} {rule.problem}")
    grid = found.tallies[OFF_GRID]
    if 0 < grid.rows <= MAX_OFF_GRID_SHARE * found.rows:
        warnings.append(
            f"line {grid.first_line}: {grid.rows} bars have a price off the grid of {TICK}; loading rounds it"
        )
    if found.tallies["late"].rows and not in_order:
        warnings.append(f"line {found.tallies['late'].first_line}: the rows are not sorted by time; reading sorts them")
    gaps = found.tallies["vix_gaps"]
    if gaps.rows:
        warnings.append(f"line {gaps.first_line}: {gaps.rows} rows have no VIX, although rows above have one")
    if found.tallies["outside_trading_hours"].rows > SUSPECT_SHARE * found.rows:
        warnings.append("so many bars outside known hours mean that the time zone of the stamps is probably wrong")
    return warnings
