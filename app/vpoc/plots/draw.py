"""Draws the picture: sessions side by side over New York time, each with its profile to its right."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from vpoc.data.columns import TICK
from vpoc.data.exchange.sessions import RTH_OPEN, day
from vpoc.plots.layout import PictureLayout, Slot, lay_out, spread_labels
from vpoc.plots.marks import Look, draw_session, line, text
from vpoc.plots.study import NakedLine, Study
from vpoc.plots.style import (
    BALANCE_COLOUR,
    CLOSES_COLOUR,
    DEVELOPING_COLOUR,
    DOTS_PER_INCH,
    DOWN_COLOUR,
    GRID_COLOUR,
    INK_COLOUR,
    INSIDE_COLOUR,
    NAKED_COLOUR,
    NODE_COLOUR,
    NODE_MARK,
    POINTS_PER_INCH,
    SMALL_TEXT,
    UP_COLOUR,
    VPOC_COLOUR,
)
from vpoc.plots.words import beyond, clock, points, weekday

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAKED_LINE: dict[str, Any] = {"color": NAKED_COLOUR, "lw": 1.1, "ls": (0, (5, 3)), "zorder": 2}
HEIGHT, TALLER = 7.2, 8.4
"""Inches; the second for several sessions, which cover a wider range of prices."""
WIDTH, WIDTH_EACH, WIDEST = 12.2, 0.9, 24.0
"""Inches: for one session, for each further one, and the maximum."""
LINE_SPACING = 1.45
"""Distance of neighbouring labels, in multiples of their font size."""
MOST_WITH_OPEN = 200
"""Above this number of bars there is no room for each one's open and close: a line joins the closes instead."""
MOST_WITH_HOURS = 4
HOUR_INCHES = 0.45
"""Room for a time of day on the axis, in inches."""
MOST_FINE = 12
"""Above this number of sessions there is no room for the finest marks and for the prices."""


def draw_sessions(
    studies: Sequence[Study], naked: Sequence[NakedLine], heading: str, description: Sequence[str]
) -> "Figure":
    """Return the picture of `studies`, at least one, with the `naked` levels across them."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    width = min(WIDTH + WIDTH_EACH * (len(studies) - 1), WIDEST)
    height = HEIGHT if len(studies) == 1 else TALLER
    figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH)
    left, right, bottom, top = 0.9 / width, 1 - 0.1 / width, 1.0 / height, 1 - 0.95 / height
    layout = lay_out(studies, naked, width * (right - left))
    axes = figure.add_axes((left, bottom, right - left, top - bottom))
    axes.set_xlim(*layout.x)
    axes.set_ylim(*layout.y)
    gap = SMALL_TEXT * LINE_SPACING * (layout.y[1] - layout.y[0]) / (height * (top - bottom) * POINTS_PER_INCH)
    look = Look(
        inch=layout.inch,
        closes=sum(len(s.rth) + len(s.before) + len(s.after) for s in studies) > MOST_WITH_OPEN,
        fine=len(studies) <= MOST_FINE,
        node=5 if len(studies) <= MOST_WITH_HOURS else 3,
    )
    for shown, slot in zip(studies, layout.slots, strict=True):
        draw_session(axes, shown, slot, look)
        if 1 < len(studies) <= MOST_FINE:
            where = {"xytext": (0, -4), "textcoords": "offset points", "ha": "center", "va": "top"}
            text(
                axes, points(shown.vpoc), ((slot.strip + slot.end) / 2, shown.profile.base * TICK), VPOC_COLOUR, **where
            )
    _draw_naked(axes, studies, layout, gap)
    _label_levels(axes, studies[-1], layout, gap, fine=look.fine)
    _time_axis(axes, studies, layout)
    axes.set_ylabel("index points", color=INK_COLOUR)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.2f}")
    axes.grid(axis="y", color=GRID_COLOUR, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.text(
        left, 1 - 0.3 / height, heading, fontsize=14, fontweight="bold", color=INK_COLOUR, va="center", gid="heading"
    )
    for number, words in enumerate(description):
        figure.text(left, 1 - (0.58 + 0.21 * number) / height, words, fontsize=9, color=INK_COLOUR, va="center")
    figure.text(
        left,
        0.12 / height,
        beyond(layout.far, studies),
        fontsize=SMALL_TEXT,
        color=NAKED_COLOUR,
        va="bottom",
        gid="beyond",
    )
    _legend(figure, left, height, look)
    return figure


def _draw_naked(axes: "Axes", studies: Sequence[Study], layout: PictureLayout, gap: float) -> None:
    older = [level for level in layout.near if level.born is None]
    places = spread_labels([level.price * TICK for level in older], gap)
    for level, place in zip(older, places, strict=True):
        at = layout.x[0] + 0.08 * layout.inch
        text(axes, f"{day(level.date)[5:]}  {points(level.price)}", (at, place), NAKED_COLOUR, va="bottom")
    for level in layout.near:
        start = layout.x[0] if level.born is None else layout.slots[level.born].end
        slot, shown = layout.slots[level.last], studies[level.last]
        end = slot.end if level.bar is None else slot.zero + float(shown.rth.start[level.bar])
        line(axes, (start, end), (level.price * TICK, level.price * TICK), f"naked-{day(level.date)}", **NAKED_LINE)


def _label_levels(axes: "Axes", shown: Study, layout: PictureLayout, gap: float, *, fine: bool) -> None:
    """Name the levels of the last session in the right margin."""
    val, vah = shown.value_area
    low, high = (shown.balance if fine else None) or (None, None)
    levels = [
        ("VPOC", shown.vpoc, VPOC_COLOUR),
        ("VAH", vah, NODE_COLOUR),
        ("VAL", val, NODE_COLOUR),
        ("IBH", high, BALANCE_COLOUR),
        ("IBL", low, BALANCE_COLOUR),
    ]
    known = [(name, tick * TICK, colour) for name, tick, colour in levels if tick is not None]
    end, step = layout.slots[-1].end, 0.12 * layout.inch
    for (name, price, colour), place in zip(known, spread_labels([price for _, price, _ in known], gap), strict=True):
        line(axes, (end, end + step), (price, place), f"leader-{name}", color=colour, lw=0.6)
        text(axes, f"{name} {price:.2f}", (end + step * 1.2, place), colour, va="center", fontweight="bold")


def _time_axis(axes: "Axes", studies: Sequence[Study], layout: PictureLayout) -> None:
    ticks: list[tuple[float, str]] = []
    for shown, slot in zip(studies, layout.slots, strict=True):
        if len(studies) > MOST_WITH_HOURS:
            ticks.append(((slot.zero + slot.right) / 2, f"{weekday(shown.date)}\n{day(shown.date)[5:]}"))
            continue
        ticks += [(slot.zero + minute, clock(minute)) for minute in _hours(slot, layout.inch)]
        if len(studies) > 1:
            middle = ((slot.zero + slot.right) / 2, -0.045)
            words = f"{weekday(shown.date)} {day(shown.date)}"
            text(axes, words, middle, INK_COLOUR, ha="center", va="top", xycoords=("data", "axes fraction"))
    axes.set_xticks([x for x, _ in ticks], [words for _, words in ticks])
    axes.tick_params(labelsize=SMALL_TEXT, color=INK_COLOUR, labelcolor=INK_COLOUR)
    for before, after in pairwise(layout.slots):
        axes.axvline((before.end + after.left) / 2, color=GRID_COLOUR, lw=0.8, zorder=0.4)


def _hours(slot: Slot, inch: float) -> list[float]:
    """Return minutes after 09:30 to label on the axis: 09:30 itself, and whole hours with enough room between them."""
    room = HOUR_INCHES * inch
    step = next((hours for hours in (1, 2, 3, 6) if hours * 60 >= room), 12)
    whole = [60 * hour - RTH_OPEN for hour in range(-24, 24) if hour % step == 0]
    first, last = slot.left - slot.zero, slot.right - slot.zero
    return [0.0, *(float(minute) for minute in whole if first <= minute <= last and abs(minute) >= room)]


def _legend(figure: "Figure", left: float, height: float, look: Look) -> None:
    from matplotlib.lines import Line2D  # noqa: PLC0415
    from matplotlib.patches import Patch  # noqa: PLC0415

    handles: list[Any] = [
        Line2D([], [], color=UP_COLOUR, lw=1.2, label="bar up"),
        Line2D([], [], color=DOWN_COLOUR, lw=1.2, label="bar down"),
        *([Line2D([], [], color=CLOSES_COLOUR, lw=0.8, label="close")] if look.closes else []),
        Line2D([], [], color=VPOC_COLOUR, lw=1.6, label="VPOC"),
        Line2D([], [], color=DEVELOPING_COLOUR, lw=1.4, label="developing VPOC"),
        Patch(color=INSIDE_COLOUR, label="value area"),
        Line2D([], [], **NAKED_LINE, label="naked VPOC of an earlier session"),
    ]
    if look.fine:
        handles += [
            Line2D([], [], color=BALANCE_COLOUR, lw=1.0, ls=":", label="initial balance"),
            Line2D([], [], mfc=NODE_COLOUR, ms=5, label="HVN", **NODE_MARK),
            Line2D([], [], mfc="white", ms=5, label="LVN", **NODE_MARK),
        ]
    where: dict[str, Any] = {
        "loc": "lower left",
        "bbox_to_anchor": (left, 0.3 / height),
        "borderaxespad": 0,
        "borderpad": 0,
        "columnspacing": 1.5,
    }
    figure.legend(
        handles=handles, ncols=len(handles), fontsize=SMALL_TEXT, frameon=False, labelcolor=INK_COLOUR, **where
    )
