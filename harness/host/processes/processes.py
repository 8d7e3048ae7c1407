"""Processes of this host, named so that a later process can recognise them."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# What a run sets comes first.
ENVIRONMENT_BYTES = 1 << 17
COMMAND_BYTES = 1 << 14
STAT_BYTES = 1 << 12
# While a process takes up another program, which is short but for one on a slow or busy disk.
BEGINNING_SECONDS = 5.0


def boot_id() -> str:
    """The identity of this boot; pids and start times mean nothing across boots."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


@dataclass(frozen=True)
class ProcessId:
    """A process, told apart from a later one with the same pid. `started` is in clock ticks since boot.

    Not psutil's `create_time`: that is seconds since 1970, and moves when the clock is set.
    """

    pid: int
    started: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> "ProcessId":
        """The identity of a process; raises `ProcessLookupError` where there is none."""
        started = _start_ticks(pid)
        if started is None:
            raise ProcessLookupError(pid)
        return cls(pid, started, boot_id())

    @classmethod
    def mine(cls) -> "ProcessId":
        """The identity of this process."""
        return cls.of(os.getpid())

    @classmethod
    def parse(cls, told: Any) -> "ProcessId":
        """The identity that somebody wrote down; raises `ValueError` where it is none."""
        match told:
            case {"pid": int(pid), "started": int(started), "boot": str(boot), **others} if pid > 0 and not others:
                return cls(pid, started, boot)
        raise ValueError("names no process")

    def alive(self) -> bool:
        """Return whether this very process still runs (a zombie does not)."""
        return self.boot == boot_id() and _start_ticks(self.pid) == self.started


def _start_ticks(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat; None where no such process runs."""
    try:
        fields = stat_of(pid)
    except OSError:
        return None
    return None if _has_ended(fields) else int(fields[19])


def _has_ended(fields: Sequence[str]) -> bool:
    """Return whether a process holds nothing any more, by its fields from the third on: also 20, its threads.

    Of one whose first thread has ended the others may go on, as where one waits for a driver and cannot be killed.
    """
    return fields[0] in ("Z", "X") and int(fields[17]) <= 1


def runs(pid: int) -> bool:
    """Return whether a process with this number runs (a zombie does not)."""
    return _start_ticks(pid) is not None


def _begins_program(pid: int) -> bool:
    """Return whether a process is taking up a program, and has memory for it but no variables yet: fields 23 and 51."""
    fields = stat_of(pid)
    return fields[20] != "0" and fields[48] == "0" and fields[0] not in ("Z", "X")


def stat_of(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on; raises OSError."""
    # The second field, the program's name, may hold blanks, brackets and what is no text.
    return _beginning(f"/proc/{pid}/stat", STAT_BYTES).rpartition(b")")[2].decode().split()


def variable_of(pid: int, name: str) -> str | None:
    """A variable that a process was started with, as far as the beginning of them tells; None where it has none.

    It may have a hundred thousand, and so may each of thousands: nothing is made of the others. Raises OSError. A
    process may lay the end of that file anywhere in its memory; while it takes up a program the file is empty.
    """
    until = time.monotonic() + BEGINNING_SECONDS
    while not (told := _environ(pid)) and _begins_program(pid) and time.monotonic() < until:
        time.sleep(0.001)
    # It may have begun between the two looks.
    text = b"\0" + (told or _environ(pid))
    _, found, rest = text.partition(f"\0{name}=".encode())
    return rest.partition(b"\0")[0].decode(errors="surrogateescape") if found else None


def command_of(pid: int) -> str:
    """The beginning of the command of a process, in a line; raises OSError. It, too, may be laid over all memory."""
    told = _beginning(f"/proc/{pid}/cmdline", COMMAND_BYTES)
    if not told and (thread := _other_thread(pid)):
        told = _beginning(f"{thread}/cmdline", COMMAND_BYTES)
    return told.replace(b"\0", b" ").decode(errors="replace")


def _environ(pid: int) -> bytes:
    try:
        return _beginning(f"/proc/{pid}/environ", ENVIRONMENT_BYTES)
    except ProcessLookupError:
        if thread := _other_thread(pid):
            return _beginning(f"{thread}/environ", ENVIRONMENT_BYTES)
        raise


def _other_thread(pid: int) -> Path | None:
    """Return a thread that goes on where the first one has ended, which has no memory to read from any more."""
    threads = Path(f"/proc/{pid}/task").iterdir() if stat_of(pid)[0] == "Z" else ()
    return next((thread for thread in threads if thread.name != str(pid)), None)


def _beginning(file: str, most: int) -> bytes:
    # Of every process of the host, many times in a run: a `Path` and a stream take twice as long.
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, most)
    finally:
        os.close(descriptor)
