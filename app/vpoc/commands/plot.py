"""`vpoc plot`."""

from datetime import datetime
from pathlib import Path

import click

from vpoc.commands.shared_options import DATA_OPTION, FORCE_OPTION, IN_FILE, PLACEMENT_OPTION, VALUE_AREA_OPTION
from vpoc.files import require_output, require_writable

_EPOCH = datetime(1970, 1, 1)
_DAY = click.DateTime(["%Y-%m-%d"])


@click.command("plot")
@DATA_OPTION
@click.option("--output", type=IN_FILE, required=True, metavar="FILE.png|.svg", help="Picture to write.")
@click.option(
    "--date", type=_DAY, metavar="YYYY-MM-DD", help="Trade date to draw.  [default: the last complete session]"
)
@click.option("--from", "first", type=_DAY, metavar="YYYY-MM-DD", help="First trade date of a range, with --to.")
@click.option("--to", "last", type=_DAY, metavar="YYYY-MM-DD", help="Last trade date of a range, with --from.")
@PLACEMENT_OPTION
@VALUE_AREA_OPTION
@click.option(
    "--row-ticks", type=click.IntRange(1, 400), default=1, help="Height of a row of the profile, in ticks of 0.25."
)
@click.option(
    "--overnight", is_flag=True, help="Draw the bars from 18:00 to 17:00; the profile stays that of regular hours."
)
@FORCE_OPTION
def plot_command(
    data: Path,
    output: Path,
    date: datetime | None,
    first: datetime | None,
    last: datetime | None,
    placement: str,
    value_area: str,
    row_ticks: int,
    overnight: bool,
    force: bool,
) -> None:
    """Draw a session, or a range of them, with its volume profile.

    \b
      vpoc plot --data merged.csv --output last.png
      vpoc plot --data merged.csv --output day.svg --date 2026-03-10 --overnight
      vpoc plot --data merged.csv --output weeks.png --from 2026-03-02 --to 2026-03-13

    The picture shows, over New York time: the bars; the profile of the regular hours, with the value area in a darker
    tone; the VPOC, and in steps where it was after each bar; the initial balance (the first hour's range); HVN and LVN
    (peaks and valleys of the smoothed profile); and, dashed, VPOCs of earlier sessions that no bar of regular hours had
    touched, up to the bar that does. The same data gives the same bytes.
    """  # noqa: D301 - click needs the character itself
    if (first is None) != (last is None):
        raise click.UsageError("--from and --to go together; for one session use --date")
    if date is not None and first is not None:
        raise click.UsageError("--date is for one session, --from and --to are for a range; give one of the two")

    from vpoc.data.load import load_bars  # noqa: PLC0415
    from vpoc.data.own_output import require_replaceable, write_own  # noqa: PLC0415
    from vpoc.plots.picture import make_picture  # noqa: PLC0415
    from vpoc.plots.render import matplotlib_of_its_own, picture_format, to_bytes  # noqa: PLC0415
    from vpoc.plots.study import Method  # noqa: PLC0415

    kind = picture_format(output)
    require_output(output, data)
    require_replaceable(output, "plot", force=force)
    require_writable(output.parent)
    begin, end = first or date, last or date
    dates = ((begin - _EPOCH).days, (end - _EPOCH).days) if begin and end else None
    picture = make_picture(load_bars(data), dates, Method(placement, value_area, row_ticks, overnight))
    with matplotlib_of_its_own(output.parent):
        write_own(output, "plot", to_bytes(picture.figure(), kind, picture.heading))
    click.echo(f"{output}: {picture.heading}")
