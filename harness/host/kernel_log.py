"""Reads the kernel's messages as an ordinary user may: from the journal, or else from /dev/kmsg.

Not by dmesg: where dmesg calls syslog(), the text after a line end in the name of a process becomes a line of its own.
"""

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

COMMAND_SECONDS = 10
# Tolerance in seconds: the kernel's own clock and the wall clock drift apart, and a message may have come just before
# the start of a run was recorded.
SLACK_SECONDS = 2.0
RECORD_BYTES = 8192
# Most bytes that are read: a kernel may keep a large log, and the file of a simulated host may be endless.
LARGEST_LOG = 32 << 20
# Index of the flags among the fields of a record, after priority, number and time.
FLAGS = 3
MICROSECONDS = re.compile(r"[0-9]{1,20}")
# journalctl's words, with exit code 0, where it cannot show the kernel's messages or has none.
JOURNAL_REFUSES = re.compile(r"insufficient permissions|not seeing messages|No journal files", re.IGNORECASE)
REMEDY = "add this user to group adm"
# A process chooses its own name, of 15 characters, and that of the file in which it crashes, of 255. The driver writes
# two names in a line: the process and its thread.
_NOT_TWO_NAMES = r"(?:(?! ?pid \d+ thread ).)"
OF_PROCESS = re.compile(
    rf"\[\d+\](?:: segfault at| (?:{_NOT_TWO_NAMES}{{1,60}} )?ip:)|/\d+ took a \w+ trap|\bComm: "
    r"|invoked oom-killer: |oom-kill:|[Kk]ill(?:ed)? process \d|INFO: task |: page allocation failure"
    rf"|ptrace \w+ of \"|task:{_NOT_TWO_NAMES}{{1,15}} state:|\[ *\d+\](?: +\d+){{4}}|reaped process \d"
    r"|^(?:.{1,100}? kernel: )?(?:\[[^\]]*\] ?)*process '"
    # As newer kernels word it; the driver's own warnings are left to the rules.
    r"|\bWARNING: (?!drivers/gpu/drm/amd/)\S{1,200} at .{1,200}, CPU#\d+: "
    # Warnings that any process can have printed, without rights, also from a container.
    r"|futex_wake_op: |sock_set_timeout: |netlink: (?:'|\d+ bytes left)|__vm_enough_memory: |warning: (?:process )?`"
    r"|calls setitimer\(\)|/oom_adj is deprecated|\(\d+\) uses deprecated |\(\d+\): (?:VmData|Using mlock) "
    r"|uses obsolete \(PF_INET|attempted to duplicate a private mapping|\bLOCK_MAND\b|pids controller in /"
    r"|: Unknown parameter '|: Bad value for '"
    r"|memfd_create\(\)|\): Uhuuh, elf segment|vmalloc error: |unexpected fatal signal|reached RLIMIT_SIGPENDING"
)
NAMED = re.compile(r"(?<=rocess |thread ).{1,15}(?= pid \d)|(?<= comm ).{1,15}(?=:)|(?<=s! \[).{1,15}(?=:\d)")


@dataclass(frozen=True)
class KernelLog:
    """Lines of the kernel log, the oldest first. `missing`: why the log cannot be read; None where it was read."""

    lines: tuple[str, ...]
    missing: str | None


class _Refused(Exception):  # noqa: N818
    """Raised where a way to read the log does not work on this host; the text says why."""


def is_of_process(line: str) -> bool:
    """Return whether a line is about a process, which may have chosen its words; no such line is the driver's.

    Text that is only a part of a name in a line of the driver does not count.
    """
    found = OF_PROCESS.search(line)
    names = [name.span() for name in NAMED.finditer(line)] if found else []
    # The end of a name, with the space or colon after it.
    while found and any(begins <= found.start() and found.end() <= ends + 1 for begins, ends in names):
        found = OF_PROCESS.search(line, found.start() + 1)
    return found is not None


def names_as_words(line: str) -> str:
    """Return a line in which each name of a process in the driver's text is one word without spaces.

    The longest possible name is taken, as a part of a name may read like the text that follows names.
    """
    return NAMED.sub(lambda name: name[0].replace(" ", "_"), line)


def read_kernel_log(since: float, root: Path = Path("/"), now: float | None = None) -> KernelLog:
    """Read the kernel log from `since` (seconds since 1970) on. For another `root` only its dev/kmsg is read.

    `now`: the present by the clock as it was at `since`, where the clock may have been set in between.
    """
    elapsed = (time.time() if now is None else now) - since
    uptime = time.monotonic() - elapsed - SLACK_SECONDS
    # A line of the journal has the time of the clock as it was then: after a step forward, all earlier lines look old.
    stamped = min(since, time.time() - elapsed)
    ways: dict[str, Callable[[], tuple[str, ...]]] = {}
    if root == Path("/"):
        ways["journalctl"] = lambda: _journal(stamped)
    ways["/dev/kmsg"] = lambda: _kmsg(root / "dev/kmsg", uptime)
    refused = []
    for name, read in ways.items():
        try:
            return KernelLog(read(), None)
        except _Refused as why:
            refused.append(f"{name}: {why}")
    return KernelLog((), f"kernel log: {'; '.join(refused)}; {REMEDY}")


def _journal(since: float) -> tuple[str, ...]:
    stamp = f"@{since - SLACK_SECONDS:.0f}"
    out, err = _run("journalctl", "--dmesg", "--no-pager", "--output=short-iso-precise", f"--since={stamp}")
    if refusal := JOURNAL_REFUSES.search(err):
        raise _Refused(refusal[0])
    # A name may contain a line end, also one that only Unicode knows; journalctl indents what follows.
    return tuple(line for line in re.sub(r"\n +", " ", out).split("\n") if line and not line.startswith("-- "))


def _run(*command: str) -> tuple[str, str]:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=COMMAND_SECONDS,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except FileNotFoundError:
        raise _Refused("there is no such command") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _Refused(str(error)) from None
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise _Refused(said[-1].removeprefix(f"{command[0]}: ") if said else f"exit {done.returncode}")
    return done.stdout, done.stderr


def _kmsg(file: Path, uptime: float) -> tuple[str, ...]:
    """Read /dev/kmsg, one record a read: `priority,number,microseconds,flags;text` (kernel, ABI/testing/dev-kmsg)."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise _Refused(error.strerror) from None
    try:
        return tuple(_records(b"".join(_reads(descriptor)).decode(errors="replace"), uptime))
    except OSError as error:
        raise _Refused(error.strerror) from None
    finally:
        os.close(descriptor)


def _reads(descriptor: int) -> Iterator[bytes]:
    left = LARGEST_LOG
    while left > 0:
        # EPIPE: the next record was overwritten meanwhile, and the following read continues behind it.
        with contextlib.suppress(BrokenPipeError):
            try:
                record = os.read(descriptor, RECORD_BYTES)
            except BlockingIOError:
                return
            if not record:
                return
            left -= len(record)
            yield record


def _records(text: str, uptime: float) -> Iterator[str]:
    for line in text.splitlines():
        head, _, message = line.partition(";")
        fields = head.split(",")
        if len(fields) > FLAGS and MICROSECONDS.fullmatch(fields[2]) and int(fields[2]) / 1e6 >= uptime:
            yield f"[{int(fields[2]) / 1e6:12.6f}] {message}"
