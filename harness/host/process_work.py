"""The work that a process and all below it have done, as the kernel counts it."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.host.processes import stat_of
from harness.host.tcp_received import received_by_socket, sockets_of

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class ProcessWork:
    """Bytes read from and written to files, and seconds of CPU time, since each began.

    `received` are bytes by TCP connection, of which the other counts nothing. `waits_for_disk`: a thread is in an
    uninterruptible wait now.
    """

    bytes: int
    received: Mapping[int, int]
    cpu_seconds: float
    waits_for_disk: bool


def work_below(pid: int) -> ProcessWork | None:
    """Return the work of a process, of what it started and of what of that has ended; None where it is not told."""
    size, ticks, waits = 0, 0, False
    sockets = set[int]()
    try:
        for one in _with_children(pid):
            fields = stat_of(one)
            # Those of children that have ended, too: fields 14 to 17. The kernel adds their bytes as well.
            ticks += sum(map(int, fields[11:15]))
            size += _bytes(one)
            sockets.update(sockets_of(one))
            waits = waits or _waits_for_disk(one)
        received = received_by_socket() if sockets else {}
    except (OSError, ValueError):
        return None
    return ProcessWork(size, {one: received[one] for one in sockets & received.keys()}, ticks / TICKS, waits)


def _with_children(pid: int) -> Iterator[int]:
    yield pid
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for child in (thread / "children").read_text(encoding="ascii").split():
            yield from _with_children(int(child))


def _bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines()
    counted = dict(line.split(": ") for line in lines)
    return int(counted["rchar"]) + int(counted["wchar"])


def _waits_for_disk(pid: int) -> bool:
    return any(
        (thread / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0] == "D"
        for thread in Path(f"/proc/{pid}/task").iterdir()
    )
