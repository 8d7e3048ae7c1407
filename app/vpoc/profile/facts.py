"""All facts of profiles, computed for many profiles at once."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar, cast

import numpy as np

from vpoc.arrays import Floats, Ints, SmallInts
from vpoc.profile.levels import PADDING, Levels, LevelSearch, find_vpoc, value_area_gains, within
from vpoc.profile.nodes import count_nodes
from vpoc.profile.tpo import TimeFacts, time_facts

_T = TypeVar("_T")
SMALL_VOLUME = 2**28
"""Profiles with less volume fit into 32-bit integers, five times over."""


@dataclass(frozen=True)
class ProfileFacts:
    """Facts of profiles; every array is [profiles], prices in ticks.

    `low`, `high`: lowest and highest price.
    `lower`, `upper`: volume in the lower and upper third of the rows.
    `entropy`: of the shares of the rows, 1 when all are equal, 0 for one row or no volume.
    `hvn`, `lvn`: the numbers of these nodes.
    `time`: facts of the TPO profile, prices in ticks.
    """

    low: Ints
    high: Ints
    levels: Levels
    lower: Ints
    upper: Ints
    entropy: Floats
    hvn: Ints
    lvn: Ints
    time: TimeFacts


@dataclass(frozen=True)
class Histograms:
    """Profiles of one width: `padded` [profiles, columns + 8], with 4 columns of zeros on each side.

    Column 4 is the price `base` [profiles], in ticks; the columns `first`..`last` [profiles], counted from there,
    exist. `tpo` [profiles, columns + 8] are the TPO profiles of the same bars.
    """

    padded: SmallInts
    first: Ints
    last: Ints
    base: Ints
    tpo: SmallInts


def zero_histograms(rows: int, columns: int, volume: int) -> SmallInts:
    """Return the zeroed histograms [rows, columns], of the smallest type that can hold `volume` in each."""
    return np.zeros((rows, columns), dtype=np.int32 if volume < SMALL_VOLUME else np.int64)


def profile_facts(parts: Sequence[Histograms], method: str) -> ProfileFacts:
    """Return the facts of the profiles of all `parts`. `method`: of the value area."""
    searches, others = zip(*(_but_levels(part, method) for part in parts), strict=True)
    # Value areas grow step by step: many at a time cost little more than a few.
    search = concatenated(searches)
    return ProfileFacts(
        low=search.origin + search.first,
        high=search.origin + search.last,
        levels=search.levels(method),
        **{name: concatenated([each[name] for each in others]) for name in others[0]},
    )


def concatenated(parts: Sequence[_T]) -> _T:
    """Return a dataclass of arrays in which each field is the concatenation of that field in `parts`."""
    kind: Any = type(parts[0])
    if kind is np.ndarray:
        return cast("_T", np.concatenate(cast("Any", parts)))
    return cast("_T", kind(**{f.name: concatenated([getattr(part, f.name) for part in parts]) for f in fields(kind)}))


def _but_levels(part: Histograms, method: str) -> tuple[LevelSearch, dict[str, Any]]:
    """Return what the value areas are found from, where columns count with the padding, and the other facts."""
    count, width = part.padded.shape
    flat = part.padded.reshape(-1)
    starts = np.arange(count) * width
    first, last = part.first + PADDING, part.last + PADDING
    exists = within(first, last, width)
    # Centres of rows, (k + 1/2) / rows, against 1/3 and 2/3.
    third = (2 * (last - first + 1) + 3) // 6
    edges = starts[:, None] + np.stack([first, first + third, last + 1 - third, last + 1], axis=1)
    lower, middle, upper = _segments(flat, edges)
    volume = lower + middle + upper
    vpoc = find_vpoc(part.padded, first, last)
    hvn, lvn = count_nodes(flat, starts + first, starts + last, exists.reshape(-1), width)
    search = LevelSearch(
        vpoc=vpoc,
        at_vpoc=flat[starts + vpoc].astype(np.int64),
        volume=volume,
        first=first,
        last=last,
        origin=part.base - PADDING,
        widths=np.full(count, width),
        gains=value_area_gains(flat, exists.reshape(-1), method),
    )
    time = time_facts(part.tpo, first, last, exists)
    return search, {
        "lower": lower,
        "upper": upper,
        "entropy": entropy(logs_of(flat, edges[:, 0], edges[:, 3]), last + 1 - first, volume),
        "hvn": hvn,
        "lvn": lvn,
        "time": replace(time, tpoc=search.origin + time.tpoc),
    }


def _segments(flat: SmallInts, edges: Ints) -> tuple[Ints, Ints, Ints]:
    """Return sums of `flat` between the four `edges` [profiles, 4]."""
    # reduceat gives one element, not 0, for an empty segment.
    sums = np.add.reduceat(flat, edges.reshape(-1)).reshape(edges.shape)[:, :3].astype(np.int64)
    sums[edges[:, 1:] == edges[:, :-1]] = 0
    return sums[:, 0], sums[:, 1], sums[:, 2]


def logs_of(flat: SmallInts, start: Ints, stop: Ints) -> Floats:
    """Return sums of volume times its logarithm [profiles], over `flat[start:stop]`; `stop` is within `flat`."""
    volumes = np.maximum(flat, 1).astype(np.float64)
    volumes *= np.log(volumes)
    edges = np.stack([start, stop], axis=1).reshape(-1)
    # Sum exactly the rows of each profile, so that the length of the padding does not change the last bit.
    sums: Floats = np.add.reduceat(volumes, edges)[::2]
    return sums


def entropy(logs: Floats, rows: Ints, volume: Ints) -> Floats:
    """Return the entropy [profiles] of the shares of `rows`, from the sums of `logs_of`; 0 for one row or no volume."""
    some = (volume > 0) & (rows > 1)
    whole = np.where(some, volume, 2).astype(np.float64)
    return np.where(some, (np.log(whole) - logs / whole) / np.log(np.where(some, rows.astype(np.float64), 2.0)), 0.0)
