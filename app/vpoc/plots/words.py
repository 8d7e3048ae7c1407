"""The text in a picture."""

from collections.abc import Sequence

from vpoc.data.bars import Bars
from vpoc.data.columns import TICK
from vpoc.data.exchange.sessions import RTH_OPEN, day
from vpoc.errors import printable
from vpoc.plots.study import Method, NakedLine, Study

PLACED = {
    "uniform": "over each bar's range (uniform)",
    "close": "at each bar's close (close)",
    "typical": "at each bar's typical price (typical)",
    "ticks": "at the price of each trade (ticks)",
}
COMPARED = {"two_row": "two rows at a time (two_row)", "one_row": "one row at a time (one_row)"}


def points(ticks: float) -> str:
    """Return a price in index points."""
    return f"{ticks * TICK:.2f}"


def weekday(date: int) -> str:
    """Return the day of the week of a date, such as Tue."""
    return ("Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed")[date % 7]


def clock(minute: float) -> str:
    """Return a minute after 09:30 as a time of day."""
    hour, rest = divmod(int(minute) + RTH_OPEN, 60)
    return f"{hour % 24:02d}:{rest:02d}"


def symbol(bars: Bars, row: int) -> str:
    """Return the contract of a bar, or the name of the file if it names none."""
    return printable(bars.symbols[int(bars.contract[row])] if bars.symbols else bars.path.name)


def heading(name: str, studies: Sequence[Study]) -> str:
    """Return the symbol and date, or dates."""
    first, last = studies[0], studies[-1]
    incomplete = sum(not shown.complete for shown in studies)
    if len(studies) == 1:
        told = f"{name}, {weekday(first.date)} {day(first.date)}"
        return told + ", half day" * first.half_day + ", session not complete" * incomplete
    told = f"{name}, {len(studies)} sessions, {day(first.date)} to {day(last.date)}"
    return told + (f", {incomplete} not complete" if incomplete else "")


def description(bars: Bars, method: Method) -> str:
    """Return the bar size, and how the profile was made."""
    rows = f", rows of {method.row_ticks} ticks" if method.row_ticks > 1 else ""
    placed = f"volume {PLACED[method.placement]}{rows}"
    return (
        f"{bar_size(bars.bar_seconds)}, New York time; profile of regular hours: {placed}; "
        f"value area {COMPARED[method.value_area]}, 70 %"
    )


def bar_size(seconds: int) -> str:
    """Return the step between bars in words."""
    if not seconds:
        return "trades"
    return f"{seconds // 60}-minute bars" if seconds % 60 == 0 else f"{seconds}-second bars"


def session_numbers(shown: Study) -> str:
    """Return the prices and the volume of a session's regular hours."""
    rth = shown.rth
    prices = zip("OHLC", (rth.open[0], rth.high.max(), rth.low.min(), rth.close[-1]), strict=True)
    told = "  ".join(f"{letter} {points(int(price))}" for letter, price in prices)
    return f"regular hours:  {told}  {int(shown.levels.volume[0]):,} contracts"


def beyond(far: Sequence[NakedLine], studies: Sequence[Study]) -> str:
    """Return the naked VPOCs that are too far away to be drawn; empty if there are none."""
    top = max(int(shown.rth.high.max()) for shown in studies)
    told = []
    for side, levels in (
        ("above", sorted((n for n in far if n.price > top), key=lambda n: n.price)),
        ("below", sorted((n for n in far if n.price <= top), key=lambda n: -n.price)),
    ):
        if levels:
            nearest = f"{points(levels[0].price)} of {day(levels[0].date)}"
            told.append(f"{len(levels)} {side} ({nearest}{' is the nearest' if len(levels) > 1 else ''})")
    return f"naked VPOCs outside the picture: {', '.join(told)}" if told else ""
