"""Measures the disk space that a run takes: in bounded time whatever its files are, and without following links."""

import math
import os
import stat
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from harness.base.errors import NoSpaceError
from harness.base.time_limits import BackgroundCall
from harness.base.wording import size_in_words

BLOCK = 512
# Most files and folders: compilers cache some thousand files, and a limit on bytes alone would not see empty ones.
MOST_ENTRIES = 100_000
# Most nested folders: no cache is as deep, and each level takes a descriptor while it is read.
MOST_LEVELS = 100
MOST_BYTES = 50 * 10**9
# Share of the free space at the start that a run may take: the disk is not the run's alone.
SHARE_OF_FREE = 0.8
# Space to leave free, in bytes and as a share: with less, databases and logs of the host begin to fail, and records
# cannot be written.
RESERVE_BYTES = 1 << 30
RESERVE_SHARE = 0.1
# As no run begins with less than RESERVE_BYTES free, one that takes no more than this leaves room for copies of it all.
LEAVES_ROOM_BYTES = RESERVE_BYTES * 2 // 5

# Pause between two measurements, in seconds; longer if a measurement takes more than this share of the time.
LOOK_SECONDS = 2.0
LOOK_SHARE = 0.05
# Longest duration of the last measurement, after the end, in seconds.
LAST_LOOK_SECONDS = 20.0

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class DiskLimit:
    """The most that a run may take: bytes and entries of all its places, and the space to leave free on their disk."""

    bytes: int = MOST_BYTES
    entries: int = MOST_ENTRIES
    reserve: int = 0

    @classmethod
    def of(cls, place: Path) -> "DiskLimit":
        """Return the limit for a run that begins now and writes to `place`."""
        free = _free(place)
        if free is None:
            return cls()
        reserve = min(RESERVE_BYTES, int(free * RESERVE_SHARE))
        return cls(min(MOST_BYTES, int(free * SHARE_OF_FREE)), MOST_ENTRIES, reserve)


@dataclass
class DiskUse:
    """The bytes and entries that were found, up to a limit. `too_deep`: more than MOST_LEVELS folders are nested."""

    bytes: int = 0
    entries: int = 0
    too_deep: bool = False


class DiskWatch:
    """Measures now and then, in a thread of its own, what a run takes."""

    def __init__(self, places: Sequence[Path], limit: DiskLimit | None = None) -> None:
        self._places = places
        self._limit = limit
        self._look: BackgroundCall[tuple[str, float]] | None = None
        self._next = -math.inf

    @property
    def limit(self) -> DiskLimit:
        """The limit, from the space that is free at the first access; this has to be before anything is started.

        What is there by then, as an earlier attempt left it, does not count.
        """
        if self._limit is None:
            there, limit = measure(self._places, DiskLimit(bytes=sys.maxsize)), DiskLimit.of(self._places[0])
            self._limit = replace(limit, bytes=limit.bytes + there.bytes, entries=limit.entries + there.entries)
        return self._limit

    def last_excess(self) -> str:
        """Return the excess over the limit after the end of the run, which may have written most of its files last."""
        try:
            return BackgroundCall(partial(excess, self._places, self.limit)).result(LAST_LOOK_SECONDS)
        except TimeoutError:
            return f"its files cannot be counted in {LAST_LOOK_SECONDS:.0f} s"

    def excess(self, now: float) -> str:
        """Return the excess over the limit at the last complete measurement, in words; empty where there is none.

        `now`: on the monotonic clock.
        """
        if self._look is None and now >= self._next:
            self._look = BackgroundCall(partial(_timed_excess, self._places, self.limit))
        if self._look is None or not self._look.done:
            return ""
        found, seconds = self._look.result(0)
        self._look = None
        self._next = now + max(LOOK_SECONDS, seconds / LOOK_SHARE)
        return found


def _timed_excess(places: Sequence[Path], limit: DiskLimit) -> tuple[str, float]:
    began = time.monotonic()
    return excess(places, limit), time.monotonic() - began


def excess(places: Sequence[Path], limit: DiskLimit) -> str:
    """Return by what a run exceeds its limit, in words; empty where it does not.

    Files that cannot be read are not counted.
    """
    use = measure(places, limit)
    if use.bytes > limit.bytes:
        return f"its files take more than {size_in_words(limit.bytes)} of disk"
    if use.entries > limit.entries:
        return f"it made more than {limit.entries:,} files and folders"
    if use.too_deep:
        return f"its folders are more than {MOST_LEVELS} levels deep"
    free = _free(places[0])
    if free is not None and free < limit.reserve:
        left, taken = size_in_words(free), size_in_words(use.bytes)
        return f"only {left} are left on the disk of its folder, its own files take {taken}"
    return ""


def measure(places: Sequence[Path], limit: DiskLimit) -> DiskUse:
    """Add up files and folders, until there are more than the limit allows."""
    use = DiskUse()
    for place in places:
        try:
            found = place.lstat()
            use.bytes += found.st_blocks * BLOCK
            if stat.S_ISDIR(found.st_mode):
                _measure_folder(os.open(place, FOLDER), use, limit, 1)
        except OSError:
            continue
    return use


def _measure_folder(folder: int, use: DiskUse, limit: DiskLimit, level: int) -> None:
    """Measure an open folder, and close it."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                use.entries += 1
                if use.entries > limit.entries or use.bytes > limit.bytes or use.too_deep:
                    return
                try:
                    found = entry.stat(follow_symlinks=False)
                    use.bytes += found.st_blocks * BLOCK
                    if not stat.S_ISDIR(found.st_mode):
                        continue
                    if level == MOST_LEVELS:
                        use.too_deep = True
                        return
                    inner = os.open(entry.name, FOLDER, dir_fd=folder)
                except OSError:
                    # The entry has disappeared, or become something else, meanwhile.
                    continue
                _measure_folder(inner, use, limit, level + 1)
    finally:
        os.close(folder)


def took_the_room(place: Path) -> bool:
    """Return whether a run that wrote to `place` took so much that it is why there is no room for copies or records."""
    return measure((place,), DiskLimit()).bytes > LEAVES_ROOM_BYTES


def require_room(place: Path) -> None:
    """Refuse to begin a run that writes to `place` if the disk is nearly full: a failure would count against its cell.

    Raises:
        NoSpaceError: when there is too little space, saying how much is free.
    """
    free = _free(place)
    if free is not None and free < RESERVE_BYTES:
        raise NoSpaceError(
            f"{place}: no run begins with less than {size_in_words(RESERVE_BYTES)} free, and {size_in_words(free)} "
            "are; free some, or give another --results"
        )


def has_room(most: int) -> bool:
    """Return whether a run begins that may take `most` bytes, a share of what is free."""
    return most >= int(RESERVE_BYTES * SHARE_OF_FREE)


def limits_in_words(most: int, pids: int | None = None) -> str:
    """Return what each run may take, in words: `most` bytes, so many processes; or that there is no room for one."""
    if not has_room(most):
        least = size_in_words(RESERVE_BYTES)
        return (
            f"none begins with less than {least} free on the disk of its folder: free some, or give another --results"
        )
    processes = "" if pids is None else f", {pids:,} processes and threads"
    return f"at most {size_in_words(most)} and {MOST_ENTRIES:,} files in its folder{processes}"


def _free(place: Path) -> int | None:
    """Return the free bytes on the disk of an existing or future file or folder; None where they are unknown."""
    try:
        found = os.statvfs(next(one for one in (place, *place.parents) if one.exists()))
    except OSError:
        return None
    return found.f_bavail * found.f_frsize
