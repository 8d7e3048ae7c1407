import struct

import numpy as np

SCID_EPOCH = 2_209_161_600


def scid_bytes(seconds, prices, trades, volume):
    """Return the bars as a Sierra Chart .scid file; `prices` maps open, high, low and close to their values."""
    records = np.zeros(len(seconds), dtype="<i8,<f4,<f4,<f4,<f4,<u4,<u4,<u4,<u4")
    records["f0"] = (np.asarray(seconds) + SCID_EPOCH) * 1_000_000
    for place, name in enumerate(("open", "high", "low", "close")):
        records[f"f{place + 1}"] = prices[name]
    records["f5"], records["f6"] = trades, volume
    return struct.pack("<4sIIHHI36s", b"SCID", 56, 40, 1, 0, 0, b"") + records.tobytes()
