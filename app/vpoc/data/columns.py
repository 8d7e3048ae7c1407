"""The merged CSV: the one file format that training reads.

One row per bar, sorted by `ts`, comma-separated UTF-8 with this header:

| column | meaning |
|---|---|
| `ts` | START of the bar in UTC, `YYYY-MM-DDTHH:MM:SSZ` |
| `open`, `high`, `low`, `close` | prices in index points, multiples of 0.25 |
| `volume` | contracts, a whole number |
| `vix` | last VIX value published by the END of the bar; empty until the first one |
| `symbol` | optional; the contract, in every row or in none; where it changes there is a roll |
"""

PRICES = ("open", "high", "low", "close")
REQUIRED = ("ts", *PRICES, "volume", "vix")
OPTIONAL = ("symbol",)
STAMP_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
TICK = 0.25
YEARS = (1980, 2100)
"""Years in which stamps are accepted: the contract exists since 1997, daily VIX values begin in 1990."""
