"""`vpoc synth`, `vpoc merge` and `vpoc check`."""

import json
from pathlib import Path

import click

from vpoc.commands.options import IN_FILE, JSON, ROWS


@click.command()
@click.option("--output", type=IN_FILE, required=True, help="CSV file to write.")
@click.option("--sessions", type=click.IntRange(1, 20_000), default=1014, help="Trading days, from 2018-01-02 on.")
@click.option("--seed", type=click.IntRange(min=0), default=7, help="Another seed gives other prices.")
def synth(output: Path, sessions: int, seed: int) -> None:
    """Make synthetic ES and VIX minutes in the merged format.

    The same seed gives the same bytes on every machine. The prices are a fair walk: there is nothing to learn in them.
    """
    from vpoc.data.synth import BARS, synthetic_csv  # noqa: PLC0415
    from vpoc.files import sha256, write_atomic  # noqa: PLC0415

    content = synthetic_csv(sessions, seed)
    write_atomic(output, content)
    click.echo(f"{output}: {sessions * BARS} rows, {sessions} sessions, sha256 {sha256(content)}")


@click.command()
@click.option("--bars", type=IN_FILE, required=True, help="CSV of ES bars: a stamp, open, high, low, close, volume.")
@click.option("--vix", type=IN_FILE, required=True, help="CSV of daily VIX values: DATE and CLOSE.")
@click.option("--output", type=IN_FILE, required=True, help="Merged CSV to write.")
@click.option("--zone", help="Time zone of stamps without an offset, such as America/New_York.  [default: found out]")
def merge(bars: Path, vix: Path, output: Path, zone: str | None) -> None:
    """Join ES bars and VIX into a merged CSV.

    The merged CSV is the one format that training reads.
    Columns are found by name: ts_event, datetime, ts or time for the START of the bar, and open, high, low, close,
    volume, symbol (if any). A bar gets the last VIX close published by its end: that of day t from 16:15 New York on.
    """
    from vpoc.data.merge import merge as join  # noqa: PLC0415
    from vpoc.files import require_output, write_atomic  # noqa: PLC0415

    require_output(output, bars, vix)
    merged = join(bars, vix, zone)
    write_atomic(output, merged.csv)
    click.echo(
        f"{output}: {merged.rows} rows; stamps read as {merged.zone}; {merged.duplicates} duplicates dropped; "
        f"{merged.off_grid} rows with a price off the grid; "
        f"{merged.without_vix} rows without VIX, {merged.stale_vix} with a VIX older than 5 days"
    )


@click.command()
@click.argument("file", type=IN_FILE)
@click.option(
    "--warm-up",
    type=click.IntRange(min=20),
    default=20,
    help="Complete sessions that training will use up before its first row.",
)
@ROWS
@JSON
def check(file: Path, warm_up: int, rows: str, as_json: bool) -> None:
    """Show the quality of a merged CSV.

    Exit status 1 when something in it would stop training.
    """
    from vpoc.data.quality import inspect  # noqa: PLC0415

    quality = inspect(file, warm_up, rows)
    if as_json:
        click.echo(json.dumps({"schema": 1, "file": str(file), **quality.facts, "errors": quality.errors}, indent=2))
    else:
        for name, value in quality.facts.items():
            click.echo(f"{name.replace('_', ' '):<24} {'-' if value is None else value}")
        for error in quality.errors:
            click.echo(f"vpoc: {error}", err=True)
    if quality.errors:
        click.get_current_context().exit(1)
