"""Draws the marks of one session: bars, profile and levels.

They have identifiers such as `vpoc-2026-03-10`, which appear in an SVG file.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vpoc.arrays import Floats
from vpoc.data.columns import TICK
from vpoc.data.exchange.sessions import day
from vpoc.plots.layout import Slot
from vpoc.plots.study import BALANCE_MINUTES, Prices, Study
from vpoc.plots.style import (
    AREA_COLOUR,
    BALANCE_COLOUR,
    CLOSES_COLOUR,
    DEVELOPING_COLOUR,
    DOWN_COLOUR,
    INSIDE_COLOUR,
    NIGHT_COLOUR,
    NODE_COLOUR,
    NODE_MARK,
    OUTSIDE_COLOUR,
    POINTS_PER_INCH,
    SMALL_TEXT,
    UP_COLOUR,
    VPOC_COLOUR,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Look:
    """The level of detail that there is room for.

    `inch`: the width of an inch in minutes.
    `closes`: a line joins the closes, because each bar's open and close have no room.
    `fine`: whether initial balance and nodes are drawn.
    `node`: size of a node's mark, in points.
    """

    inch: float
    closes: bool
    fine: bool
    node: float


def draw_session(axes: "Axes", shown: Study, slot: Slot, look: Look) -> None:
    """Draw `shown` into its slot."""
    from matplotlib.patches import Rectangle  # noqa: PLC0415

    date = day(shown.date)
    val, vah = shown.value_area
    # A row of the profile extends half a tick beyond its prices on both sides.
    bottom, top = (val - 0.5) * TICK, (vah + shown.profile.row_ticks - 0.5) * TICK
    area = Rectangle(
        (slot.zero, bottom), slot.end - slot.zero, top - bottom, color=AREA_COLOUR, linewidth=0, zorder=0.5
    )
    area.set_gid(f"value-area-{date}")
    axes.add_patch(area)
    _draw_profile(axes, shown, slot)
    for name, tick, colour, width in (
        ("vah", vah, INSIDE_COLOUR, 0.9),
        ("val", val, INSIDE_COLOUR, 0.9),
        ("vpoc", shown.vpoc, VPOC_COLOUR, 1.6),
    ):
        line(axes, (slot.zero, slot.end), (tick * TICK, tick * TICK), f"{name}-{date}", color=colour, lw=width)
    if look.fine:
        _draw_balance(axes, shown, slot)
        _draw_nodes(axes, shown, slot, look.node)
    for name, prices in (("night", shown.before), ("evening", shown.after), ("rth", shown.rth)):
        _draw_prices(axes, prices, slot, look, f"{name}-{date}")
    line(
        axes,
        slot.zero + shown.rth.end,
        shown.developing * TICK,
        f"developing-{date}",
        color=DEVELOPING_COLOUR,
        lw=1.4,
        drawstyle="steps-post",
        zorder=4,
    )


def _draw_profile(axes: "Axes", shown: Study, slot: Slot) -> None:
    profile = shown.profile
    reach, edges = _reach(shown, slot)
    row = np.arange(len(reach))
    val, vah = ((tick - profile.base) // profile.row_ticks for tick in shown.value_area)
    inside = (row >= val) & (row <= vah)
    peak = row == (shown.vpoc - profile.base) // profile.row_ticks
    parts = (
        ("outside", ~inside, OUTSIDE_COLOUR),
        ("inside", inside & ~peak, INSIDE_COLOUR),
        ("peak", peak, VPOC_COLOUR),
    )
    for name, rows, colour in parts:
        values = np.where(rows, reach, slot.strip)
        style: dict[str, Any] = {"orientation": "horizontal", "fill": True, "color": colour, "linewidth": 0}
        patch = axes.stairs(values, edges, baseline=slot.strip, **style)
        patch.set_gid(f"profile-{name}-{day(shown.date)}")


def _draw_nodes(axes: "Axes", shown: Study, slot: Slot, size: float) -> None:
    reach, edges = _reach(shown, slot)
    middle = (edges[:-1] + edges[1:]) / 2
    offset = 0.015 * (slot.end - slot.strip)
    for name, nodes, fill in (("hvn", shown.hvn, NODE_COLOUR), ("lvn", shown.lvn, "white")):
        rows = np.array(nodes, dtype=np.int64)
        style = {**NODE_MARK, "ms": size, "mfc": fill, "zorder": 4}
        line(axes, reach[rows] + offset, middle[rows], f"{name}-{day(shown.date)}", **style)


def _reach(shown: Study, slot: Slot) -> tuple[Floats, Floats]:
    """Return the end of each row of the profile [rows], and the prices between the rows [rows + 1]."""
    profile = shown.profile
    share = profile.volume / max(int(profile.volume.max()), 1)
    edges = profile.base - 0.5 + profile.row_ticks * np.arange(len(share) + 1, dtype=np.float64)
    return slot.strip + share * (slot.end - slot.strip), edges * TICK


def _draw_balance(axes: "Axes", shown: Study, slot: Slot) -> None:
    if shown.balance is None:
        return
    low, high = (tick * TICK for tick in shown.balance)
    end, hour = slot.zero + float(shown.rth.end[-1]), slot.zero + BALANCE_MINUTES
    for name, x, y in (
        ("ibl", (slot.zero, end), (low, low)),
        ("ibh", (slot.zero, end), (high, high)),
        ("ib", (hour, hour), (low, high)),
    ):
        line(axes, x, y, f"{name}-{day(shown.date)}", color=BALANCE_COLOUR, lw=1.0, ls=":")


def _draw_prices(axes: "Axes", prices: Prices, slot: Slot, look: Look, gid: str) -> None:
    """Draw bars from low to high, with open and close as ticks at their sides, or the closes as a line."""
    from matplotlib.collections import LineCollection  # noqa: PLC0415

    if not len(prices):
        return
    regular = gid.startswith("rth")
    middle = slot.zero + (prices.start + prices.end) / 2
    side = (prices.end - prices.start) * 0.36
    lines = [(middle, prices.low, middle, prices.high)]
    if not look.closes:
        lines += [
            (middle - side, prices.open, middle, prices.open),
            (middle, prices.close, middle + side, prices.close),
        ]
    colours = (
        np.where(prices.close >= prices.open, UP_COLOUR, DOWN_COLOUR) if regular else np.full(len(prices), NIGHT_COLOUR)
    )
    thickness = min(max(float(np.median(side)) / look.inch * POINTS_PER_INCH * 0.6, 0.5), 1.5)
    segments = np.concatenate([_segments(*corners) for corners in lines])
    bars = LineCollection(list(segments), colors=np.tile(colours, len(lines)).tolist(), linewidths=thickness, zorder=3)
    bars.set_gid(gid)
    axes.add_collection(bars, autolim=False)
    if look.closes:
        style = {"color": CLOSES_COLOUR if regular else NIGHT_COLOUR, "lw": 0.8, "zorder": 3.5}
        line(axes, middle, prices.close * TICK, f"closes-{gid}", **style)


def _segments(x0: Floats, y0: Any, x1: Floats, y1: Any) -> Floats:
    """Return the lines [bars, 2, 2] from (x0, y0) to (x1, y1), y in ticks."""
    ends = np.stack([np.stack([x0, y0 * TICK], axis=1), np.stack([x1, y1 * TICK], axis=1)], axis=1)
    return np.asarray(ends, dtype=np.float64)


def line(axes: "Axes", x: Any, y: Any, gid: str, **style: Any) -> None:
    """Add a line without changing the limits of the axes."""
    from matplotlib.lines import Line2D  # noqa: PLC0415

    axes.add_line(Line2D(np.asarray(x), np.asarray(y), gid=gid, **{"zorder": 2.5, **style}))


def text(axes: "Axes", words: str, where: tuple[float, float], colour: str, **style: Any) -> None:
    """Add small text with a white rim, so that it is readable on any background."""
    from matplotlib.patheffects import withStroke  # noqa: PLC0415

    rim = [withStroke(linewidth=2.5, foreground="white")]
    axes.annotate(
        words, where, color=colour, fontsize=SMALL_TEXT, path_effects=rim, zorder=6, annotation_clip=False, **style
    )
