"""Identifies processes of this host so that a later process can recognise them."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Bytes that are read of a process's variables; the variables that a run sets come first.
ENVIRONMENT_BYTES = 1 << 17
COMMAND_BYTES = 1 << 14
STAT_BYTES = 1 << 12
# Longest wait while a process starts another program, in seconds; this is short except on a slow or busy disk.
BEGINNING_SECONDS = 5.0


def boot_id() -> str:
    """Return the identity of this boot, because pids and start times mean nothing across boots."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


@dataclass(frozen=True)
class ProcessId:
    """The identity of a process, which differs from that of a later one with the same pid.

    `started`: in clock ticks since boot. psutil's `create_time` is in seconds since 1970, and changes when the clock is
        set.
    """

    pid: int
    started: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> "ProcessId":
        """Return the identity of a process; raises `ProcessLookupError` where there is none."""
        started = _start_ticks(pid)
        if started is None:
            raise ProcessLookupError(pid)
        return cls(pid, started, boot_id())

    @classmethod
    def mine(cls) -> "ProcessId":
        """Return the identity of this process."""
        return cls.of(os.getpid())

    @classmethod
    def parse(cls, told: Any) -> "ProcessId":
        """Return an identity that was written to a file; raises `ValueError` where it is damaged."""
        match told:
            case {"pid": int(pid), "started": int(started), "boot": str(boot), **others} if pid > 0 and not others:
                return cls(pid, started, boot)
        raise ValueError("names no process")

    def alive(self) -> bool:
        """Return whether this very process still runs (a zombie does not)."""
        return self.boot == boot_id() and _start_ticks(self.pid) == self.started


def _start_ticks(pid: int) -> int | None:
    """Return field 22 of /proc/PID/stat; None where no such process runs."""
    try:
        fields = stat_of(pid)
    except OSError:
        return None
    return None if _has_ended(fields) else int(fields[19])


def _has_ended(fields: Sequence[str]) -> bool:
    """Return whether a process holds nothing any more, from its fields from the third on; field 20 counts its threads.

    After the end of its first thread, the other threads of a process may go on, as when one waits for a driver and
    cannot be killed.
    """
    return fields[0] in ("Z", "X") and int(fields[17]) <= 1


def runs(pid: int) -> bool:
    """Return whether a process with this number runs (a zombie does not)."""
    return _start_ticks(pid) is not None


def _begins_program(pid: int) -> bool:
    """Return whether a process is just starting a program: it has memory, but no variables yet (fields 23 and 51)."""
    fields = stat_of(pid)
    return fields[20] != "0" and fields[48] == "0" and fields[0] not in ("Z", "X")


def stat_of(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on; raises OSError."""
    # The second field, the program's name, may contain blanks, brackets and bytes that are not text.
    return _beginning(f"/proc/{pid}/stat", STAT_BYTES).rpartition(b")")[2].decode().split()


def variable_of(pid: int, name: str) -> str | None:
    """Return a variable with which a process was started; None where it is not among the first ENVIRONMENT_BYTES.

    A process may have a hundred thousand variables, and so may thousands of processes: the others are not parsed. A
    process may make that file end anywhere in its memory; while it starts a program the file is empty. Raises OSError.
    """
    until = time.monotonic() + BEGINNING_SECONDS
    while not (told := _environ(pid)) and _begins_program(pid) and time.monotonic() < until:
        time.sleep(0.001)
    # The program may have started between the two reads.
    text = b"\0" + (told or _environ(pid))
    _, found, rest = text.partition(f"\0{name}=".encode())
    return rest.partition(b"\0")[0].decode(errors="surrogateescape") if found else None


def command_of(pid: int) -> str:
    """Return the beginning of the command of a process, in one line; a process may make it endless. Raises OSError."""
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
    """Return a thread that runs on after the end of the first one, which has no memory to read from any more."""
    threads = Path(f"/proc/{pid}/task").iterdir() if stat_of(pid)[0] == "Z" else ()
    return next((thread for thread in threads if thread.name != str(pid)), None)


def _beginning(file: str, most: int) -> bytes:
    # This is called for every process of the host, many times in a run; a `Path` and a stream would take twice as long.
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, most)
    finally:
        os.close(descriptor)
