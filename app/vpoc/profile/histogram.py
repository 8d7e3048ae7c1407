"""Volume at price, `uniform` placement, as exact int64 histograms.

A bar of V contracts on the n ticks low..high gives q = V // n to every tick; the r = V % n contracts left over go one
each to a run of r ticks that starts at clamp(close - r // 2, low, high - r + 1). Nothing is lost and no float is used.
"""

import numpy as np

from vpoc.data.bars import Ints


def differences(low: Ints, high: Ints, close: Ints, volume: Ints, row: Ints, shape: tuple[int, int]) -> Ints:
    """First differences along the ticks of the histogram of every bar, added up per `row`.

    `low`, `high`, `close` [bars] are columns of the matrix (ticks above its lowest price), `row` [bars] says into which
    row each bar goes, `shape` is (rows, ticks). The result is [rows, ticks + 1]; its cumulative sum along axis 1 is the
    histogram, and 0 in the last column.
    """
    ticks = high - low + 1
    share, left = np.divmod(volume, ticks)
    run = np.clip(close - left // 2, low, high - left + 1)
    width = shape[1] + 1
    flat = np.zeros(shape[0] * width, dtype=np.int64)
    origin = row * width
    np.add.at(flat, origin + low, share)
    np.subtract.at(flat, origin + high + 1, share)
    some = left > 0
    np.add.at(flat, (origin + run)[some], 1)
    np.subtract.at(flat, (origin + run + left)[some], 1)
    return flat.reshape(shape[0], width)
