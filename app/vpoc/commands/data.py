"""`vpoc synth`, `vpoc merge` and `vpoc check`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from vpoc.commands.shared_options import (
    ACCEPT_OPTION,
    FORCE_OPTION,
    IN_FILE,
    JSON_OPTION,
    ROWS_OPTION,
    in_file_option,
    together,
)
from vpoc.errors import UserError, printable

READING_OPTIONS = together(
    [
        click.option(
            "--zone", help="Time zone of stamps without an offset, such as America/New_York.  [default: detected]"
        ),
        click.option(
            "--stamps",
            type=click.Choice(["start", "end"]),
            help="What the stamps of the bars mark.  [default: detected]",
        ),
        click.option(
            "--dates",
            type=click.Choice(["month-first", "day-first"]),
            help="How to read dates such as 03/04/2024.  [default: detected]",
        ),
        click.option(
            "--column",
            "columns",
            multiple=True,
            metavar="NAME=COLUMN",
            help="Your name of a column, such as es_close=close; stamp, date, time, open, high, low, close, volume, "
            "symbol or vix. Can be given several times.",
        ),
        click.option("--symbol", help="Keep this contract of a file that has several.  [default: the front one]"),
    ]
)
SHOWN_LINES = 20
# Names to show for keys that do not explain themselves.
SHOWN_AS = {
    "symbol_changes": "new symbol",
    "calendar": "roll by CME's calendar",
    "jump_points": "jump in points",
}


@click.command("synth")
@click.option("--output", type=IN_FILE, required=True, help="CSV file to write.")
@click.option("--sessions", type=click.IntRange(1, 11_000), default=1014, help="Trading days, from 2018-01-02 on.")
@click.option("--seed", type=click.IntRange(min=0), default=7, help="Another seed gives other prices.")
@FORCE_OPTION
def synth_command(output: Path, sessions: int, seed: int, force: bool) -> None:
    """Make synthetic ES and VIX minutes in the merged format.

    The same seed gives the same bytes on every machine. The prices are a fair walk: there is nothing to learn in them.
    """
    from vpoc.data.own_output import require_replaceable, write_own  # noqa: PLC0415
    from vpoc.data.synth import BARS, synthetic_csv  # noqa: PLC0415
    from vpoc.files import sha256  # noqa: PLC0415

    require_replaceable(output, "synth", force=force)
    content = synthetic_csv(sessions, seed)
    write_own(output, "synth", content)
    click.echo(f"{output}: {sessions * BARS} rows, {sessions} sessions, sha256 {sha256(content)}")


@click.command("merge")
@in_file_option("--bars", required=True, help="File of ES bars, of any format that docs/data.md lists.")
@in_file_option(
    "--vix",
    help="CSV of VIX values: a date and a close, or bars with a stamp.  [default: the column vix of the bars]",
)
@click.option(
    "--vix-zone", help="Time zone of the stamps of VIX bars without an offset; --zone is of the bars of ES alone."
)
@click.option("--output", type=IN_FILE, required=True, help="Merged CSV to write.")
@ACCEPT_OPTION
@READING_OPTIONS
@FORCE_OPTION
@JSON_OPTION
def merge_command(
    bars: Path,
    vix: Path | None,
    vix_zone: str | None,
    output: Path,
    accepted: tuple[str, ...],
    force: bool,
    as_json: bool,
    **how: Any,
) -> None:
    """Join ES bars and VIX into a merged CSV.

    The merged CSV is the only format that training reads.
    Formats are recognised by a file's content, columns by their names. A bar gets the last VIX value published by its
    end: the close of a day from 16:15 New York on, the close of an intraday bar from its end on.
    Of several contracts at a time, calendar spreads are dropped, and the one that trades most in a session is kept.
    Impossible data is refused, and so is data that is not plausible, unless you accept it.
    """
    from vpoc.data.merge import merge as join  # noqa: PLC0415
    from vpoc.data.own_output import require_replaceable, write_own  # noqa: PLC0415
    from vpoc.files import require_output  # noqa: PLC0415

    require_output(output, bars, vix)
    require_replaceable(output, "merge", force=force)
    merged = join(bars, vix, vix_zone=vix_zone, accepted=accepted, **_reading(**how))
    write_own(output, "merge", merged.csv)
    if as_json:
        click.echo(json.dumps({"schema": 2, "output": str(output), **merged.facts()}, indent=2))
    else:
        click.echo(printable(f"{output}: {merged.summary()}"))
        for line in _warning_lines([*merged.warnings, *merged.smaller_kept]):
            click.echo(printable(line))


def _reading(
    zone: str | None, stamps: str | None, dates: str | None, columns: tuple[str, ...], symbol: str | None
) -> dict[str, Any]:
    """Return the arguments of `read_vendor` from the options of a command."""
    return {
        "zone": zone,
        "stamp_side": stamps,
        "dates": dates,
        "columns": _own_names(columns) or None,
        "symbol": symbol,
    }


def _own_names(columns: tuple[str, ...]) -> dict[str, str]:
    """Return our column name for each of the user's names, from options such as `es_close=close`."""
    pairs = [given.rpartition("=") for given in columns]
    for given, (name, _, column) in zip(columns, pairs, strict=True):
        if not name or not column:
            raise UserError(f"--column {given}: not of the form NAME=COLUMN, such as es_close=close")
    return {name: column for name, _, column in pairs}


@click.command("check")
@click.argument("file", type=IN_FILE)
@click.option(
    "--lookback",
    type=click.IntRange(min=20),
    default=60,
    help="Complete sessions that training will use up before its first row.",
)
@ROWS_OPTION
@click.option("--fix", "output", type=IN_FILE, help="Write a cleaned copy of FILE here.")
@click.option(
    "--changes",
    type=IN_FILE,
    help="CSV that lists every row that --fix dropped or changed, and why.  [default: beside the copy]",
)
@click.option("--merged", is_flag=True, help="Refuse any file but a merged CSV, which is what training reads.")
@ACCEPT_OPTION
@READING_OPTIONS
@JSON_OPTION
def check_command(
    file: Path,
    lookback: int,
    rows: str,
    output: Path | None,
    changes: Path | None,
    merged: bool,
    accepted: tuple[str, ...],
    as_json: bool,
    **how: Any,
) -> None:
    """Show the quality of a merged CSV, or of a vendor's file of bars.

    Exit status 1 if something in FILE would stop training; with --fix, if something in the cleaned copy would.
    """
    from vpoc.data.checks.fix import fix, reading_of_copy  # noqa: PLC0415
    from vpoc.data.checks.quality import inspect  # noqa: PLC0415
    from vpoc.data.merged_head import require_merged  # noqa: PLC0415
    from vpoc.data.own_output import note_own, require_replaceable  # noqa: PLC0415
    from vpoc.data.readers.delimited import has_vix_column  # noqa: PLC0415

    if changes is not None and output is None:
        raise UserError("--changes: there are no changes without --fix OUTPUT; give both or neither")
    if merged and not has_vix_column(file):
        require_merged(file)
    if output is not None:
        listed = changes or output.with_name(f"{output.stem}.changes.csv")
        require_replaceable(output, "check", force=False, give="another OUTPUT to --fix")
        require_replaceable(listed, "check", force=False, give="another --changes")
    reading = _reading(**how)
    quality = inspect(file, lookback, rows, accepted, **reading)
    document = {"schema": 2, "file": str(file), **quality.facts, "errors": quality.errors, "warnings": quality.warnings}
    told = _table(quality.facts, quality.warnings)
    errors = quality.errors
    if output is not None:
        fixed = fix(file, quality, output, listed, **reading)
        note_own(output, "check")
        note_own(listed, "check")
        errors = inspect(output, lookback, rows, accepted, **reading_of_copy(quality, reading)).errors
        done = {"output": str(output), "changes": str(listed), **asdict(fixed), "errors": errors}
        document["fix"] = done
        told += [f"error: {error}" for error in quality.errors]
        told += [
            f"{output}: {fixed.dropped} rows dropped, {fixed.changed} changed, {fixed.moved} moved; {listed} lists them"
        ]
    if as_json:
        click.echo(json.dumps(document, indent=2))
    else:
        click.echo("\n".join(map(printable, told)))
        for error in errors:
            click.echo(f"vpoc: {printable(error)}", err=True)
    if errors:
        click.get_current_context().exit(1)


def _table(facts: Mapping[str, Any], warnings: list[str]) -> list[str]:
    """Return the facts and warnings as lines; long lists are cut."""
    lines = []
    for key, value in facts.items():
        name = f"{_named(key):<24}"
        if not isinstance(value, list):
            lines.append(f"{name} {'-' if value is None else value}")
        elif not value or isinstance(value[0], str):
            more = f" and {len(value) - SHOWN_LINES} more" if len(value) > SHOWN_LINES else ""
            lines.append(f"{name} {', '.join(value[:SHOWN_LINES]) or '-'}{more}")
        else:
            lines.append(f"{name} {len(value)}")
            lines += [f"  {_row(row)}" for row in value[:SHOWN_LINES]]
            if len(value) > SHOWN_LINES:
                lines.append(f"  and {len(value) - SHOWN_LINES} more; --json lists them all")
    return [*lines, *_warning_lines(warnings)]


def _warning_lines(warnings: Sequence[str]) -> list[str]:
    """Return the warnings as lines; if there are too many, the last line says how many are left out."""
    lines = [f"warning: {warning}" for warning in warnings[:SHOWN_LINES]]
    more = len(warnings) - SHOWN_LINES
    return [*lines, f"warning: and {more} more; --json lists them all"] if more > 0 else lines


def _row(row: Mapping[str, Any]) -> str:
    told = {key: ("no", "yes")[value] if isinstance(value, bool) else value for key, value in row.items()}
    return ", ".join(f"{_named(key)} {value}" for key, value in told.items() if value is not None)


def _named(key: str) -> str:
    return SHOWN_AS.get(key, key.replace("_", " "))
