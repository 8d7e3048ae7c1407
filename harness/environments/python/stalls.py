"""Notices that a program which fetches files stalls: an index may send a byte now and then, for ever."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from harness.base.errors import NoAnswerError

# More than the five minutes after which uv says that another one has its cache locked.
STALLED_SECONDS = 360.0
# Bytes a second. Files are written in pieces of some hundred thousand; of the page of an index nothing is seen.
LEAST_SPEED = 500
# What unpacks, compiles or waits for a disk goes on though nothing comes. A byte at a time takes next to no CPU.
LEAST_BUSY = 0.05
# Looks in that time.
_LOOKS = 60


@dataclass(frozen=True)
class _Mark:
    waited: float
    bytes: int = 0
    busy: float = 0.0


@dataclass(frozen=True)
class ProcessWork:
    """Bytes read from and written to files, and seconds of CPU time, of a process and of what it started.

    `waits_for_disk`: one of them is in an uninterruptible wait now.
    """

    bytes: int
    cpu_seconds: float
    waits_for_disk: bool


def work_below(pid: int) -> ProcessWork | None:
    """Return the work of a process, of what it started and of what of that has ended; None where it is not told."""
    size, seconds, waits = 0, 0.0, False
    try:
        for one in map(psutil.Process, _with_children(pid)):
            counted, times = one.io_counters(), one.cpu_times()
            size += counted.read_chars + counted.write_chars
            seconds += times.user + times.system + times.children_user + times.children_system
            waits = waits or one.status() == psutil.STATUS_DISK_SLEEP
    except (psutil.Error, OSError, ValueError):
        return None
    return ProcessWork(size, seconds, waits)


def _with_children(pid: int) -> Iterator[int]:
    # psutil would look at every process of the host.
    yield pid
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for child in (thread / "children").read_text(encoding="ascii").split():
            yield from _with_children(int(child))


class StallWatch:
    """Watches a program and what it starts.

    Time in which nobody looked does not count: both may have been stopped, or the host asleep.
    """

    def __init__(
        self, pid: int, seconds: float = STALLED_SECONDS, work_of: Callable[[int], ProcessWork | None] = work_below
    ) -> None:
        self.look_seconds = seconds / _LOOKS
        self._pid, self._seconds, self._work_of = pid, seconds, work_of
        self._marks = deque([_Mark(0.0)])
        self._looked, self._work = time.monotonic(), work_of(pid)

    def look(self, where: str) -> None:
        """Judge by the work since the last call, every `look_seconds`.

        `where` names the program, and its index, in the error.

        Raises:
            NoAnswerError: when fewer than LEAST_SPEED bytes a second were written in the last `seconds`, and it did
                nothing.
        """
        before, looked = self._work, self._looked
        self._looked, self._work = time.monotonic(), self._work_of(self._pid)
        if before is None or self._work is None:
            return
        now = self._work
        passed = min(self._looked - looked, 2 * self.look_seconds)
        # What has ended, and was another's child by then, is missing.
        came = max(0, now.bytes - before.bytes)
        busy = passed if now.waits_for_disk else max(0.0, now.cpu_seconds - before.cpu_seconds)
        last = self._marks[-1]
        last = _Mark(last.waited + passed, last.bytes + came, last.busy + busy)
        self._marks.append(last)
        while last.waited - self._marks[1].waited >= self._seconds:
            self._marks.popleft()
        since = self._marks[0]
        waited = last.waited - since.waited
        if (
            waited >= self._seconds
            and last.bytes - since.bytes < LEAST_SPEED * waited
            and last.busy - since.busy < LEAST_BUSY * waited
        ):
            raise NoAnswerError(
                f"{where}: one page takes more than {waited:.0f} s, or a file comes with fewer than {LEAST_SPEED} "
                "bytes a second; the same command tries again"
            )
