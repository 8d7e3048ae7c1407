"""Pseudo-random integers that are the same on every machine and in every version of every library."""

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]


def words(seed: int, stream: int, count: int) -> Words:
    """Return `count` 64-bit words of splitmix64 (Steele, Lea, Flood 2014), for this `seed` and `stream`."""
    start = (seed * 0x9E3779B97F4A7C15 + stream * 0xD1342543DE82EF95) % 2**64
    counter = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + _mix(
        np.array([start], np.uint64)
    )
    return _mix(counter)


def _mix(value: Words) -> Words:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Words = value ^ (value >> np.uint64(31))
    return mixed
