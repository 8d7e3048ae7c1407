"""The lines of the kernel log that were written while a run lasted. Pure."""

import re
from collections.abc import Iterable, Iterator
from datetime import datetime

from harness.registry.share.shared_files import OF_GPUS_AND_MEMORY
from harness.report.model import KernelEvent

# Most events shown; more marks cannot be told apart.
MOST = 40
LONGEST = 300
# The line formats of `journalctl --output=short-iso-precise` and of `dmesg`.
JOURNAL = re.compile(r"^(\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:?\d\d)) (?:\S+ )?kernel: (.*)$")
STAMPED = re.compile(r"^\[ *(\d+\.\d+)\] (.*)$")


def kernel_events(lines: Iterable[str], started: float, ended: float, clock: float | None) -> tuple[KernelEvent, ...]:
    """Return the first lines about a GPU, memory or a stuck task between `started` and `ended`, in seconds since 1970.

    `clock`: when the kernel's clock was zero, in seconds since 1970; if None, lines with stamps of that clock are
    skipped.
    """
    found: list[KernelEvent] = []
    for wall, text in _told(lines, clock):
        if started <= wall <= ended and OF_GPUS_AND_MEMORY.search(text):
            found.append(KernelEvent(seconds=round(wall - started, 2), text=text[:LONGEST]))
        if len(found) == MOST:
            break
    return tuple(found)


def _told(lines: Iterable[str], clock: float | None) -> Iterator[tuple[float, str]]:
    for line in lines:
        if of_journal := JOURNAL.match(line):
            try:
                yield datetime.fromisoformat(of_journal[1]).timestamp(), of_journal[2]
            except ValueError:
                continue
        elif clock is not None and (stamped := STAMPED.match(line)):
            yield clock + float(stamped[1]), stamped[2]
