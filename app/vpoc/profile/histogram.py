"""Volume at price as exact integer histograms.

Placements say where the volume V of a bar goes; nothing is ever lost and no float is used:

- `uniform`: on the n ticks low..high, V // n on every tick; the r = V % n contracts left over go one each to a run of r
  ticks that starts at clamp(close - r // 2, low, high - r + 1).
- `close`: all at the close. `typical`: all at floor((high + low + close) / 3 + 1/2), in ticks.
- `ticks`: all at the price of the row, if every row is a trade.
"""

from dataclasses import dataclass

import numpy as np

from vpoc.arrays import Ints

PLACEMENTS = ("uniform", "close", "typical", "ticks")


@dataclass(frozen=True)
class Spread:
    """Where the volume of each bar goes; every array is [bars].

    `share` contracts go to each tick of `low`..`high`, and one more to each tick of `run`..`run` + `left` - 1.
    """

    low: Ints
    high: Ints
    share: Ints
    run: Ints
    left: Ints

    def take(self, rows: slice) -> "Spread":
        """Return the bars selected by `rows`."""
        return Spread(self.low[rows], self.high[rows], self.share[rows], self.run[rows], self.left[rows])


def spread(low: Ints, high: Ints, close: Ints, volume: Ints, placement: str) -> Spread:
    """Return where `volume` [bars] goes by `placement`; prices in ticks."""
    if placement == "uniform":
        ticks = high - low + 1
        share, left = _divmod(volume, ticks)
        run = np.minimum(np.maximum(close - (left >> 1), low), high - left + 1)
        return Spread(low, high, share, run, left)
    # floor(x / 3 + 1 / 2) of a sum x.
    price = (2 * (high + low + close) + 3) // 6 if placement == "typical" else close
    return Spread(price, price, volume, price, np.zeros_like(volume))


def _divmod(volume: Ints, ticks: Ints) -> tuple[Ints, Ints]:
    if max(volume.max(initial=0), ticks.max(initial=0)) < 2**31:
        # A third of the time.
        share, left = np.divmod(volume.astype(np.int32), ticks.astype(np.int32))
        return share.astype(np.int64), left.astype(np.int64)
    return np.divmod(volume, ticks)


def histograms(placed: Spread, row: Ints, shape: tuple[int, int]) -> Ints:
    """Return the histograms [rows, ticks], the sums of the bars of each `row` [bars].

    Prices count from the matrix's first column.
    """
    # First differences along the ticks need four additions for a bar, however wide it is.
    width = shape[1] + 1
    steps = np.zeros(shape[0] * width, dtype=np.int64)
    origin = row * width
    np.add.at(steps, origin + placed.low, placed.share)
    np.subtract.at(steps, origin + placed.high + 1, placed.share)
    if placed.left.any():
        begin, one = origin + placed.run, np.minimum(placed.left, 1)
        np.add.at(steps, begin, one)
        np.subtract.at(steps, begin + placed.left, one)
    return np.cumsum(steps.reshape(shape[0], width), axis=1)[:, :-1]
