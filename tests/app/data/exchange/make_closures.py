"""Write app/vpoc/data/exchange/closures.py from exchange_calendars (XNYS).

Run it with the Python of the app's tests: .cache/envs/cpu-test/bin/python tests/app/data/exchange/make_closures.py
To use a newer exchange_calendars, run `make lock` first; test_calendar.py fails while the table differs from it.
"""

from pathlib import Path

import exchange_calendars
import numpy as np

from vpoc.data.exchange.calendar import FIRST, FULL_CLOSE, LAST

HEAD = '''"""Made by tests/app/data/exchange/make_closures.py: weekdays when the NYSE did not close at 16:00."""

CLOSES = {
'''
TABLE = Path(__file__).parents[4] / "app" / "vpoc" / "data" / "exchange" / "closures.py"


def closures() -> str:
    """Return the module's text: the weekdays on which the NYSE does not close at 16:00, with the close if it opens."""
    schedule = exchange_calendars.get_calendar("XNYS", start=str(FIRST), end=str(LAST)).schedule
    local = schedule["close"].dt.tz_convert("America/New_York")
    opened = schedule.index.to_numpy().astype("datetime64[D]")
    closes = dict(zip(opened, local.dt.hour * 60 + local.dt.minute, strict=True))
    days = np.arange(FIRST, LAST + 1)
    weekdays = days[np.is_busday(days)]
    if not set(closes) <= set(weekdays):
        raise SystemExit("the NYSE opened on a weekend; calendar.py knows no such day")
    years: dict[str, list[str]] = {}
    for day in weekdays:
        year, _, date = str(day).partition("-")
        minute = closes.get(day, 0)
        if minute != FULL_CLOSE:
            years.setdefault(year, []).append(f"{date}={minute}" if minute else date)
    rows = [f'    {year}: "{" ".join(exceptions)}",\n' for year, exceptions in years.items()]
    return "".join([HEAD, *rows, "}\n"])


if __name__ == "__main__":
    TABLE.write_text(closures(), encoding="utf-8")
