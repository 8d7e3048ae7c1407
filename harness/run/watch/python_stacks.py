"""Asks the processes of a run for their Python stacks: each that catches SIGUSR1 appends them to its rank's file.

A process that does not answer, because a call holds the interpreter's lock, is asked with SIGUSR2.
"""

import contextlib
import os
import re
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.base.files.untrusted_file import NotAFileError
from harness.evidence.app_reports.python_stacks import CallStack, Frame, parse_stacks
from harness.evidence.app_reports.step_position import Position, read_positions
from harness.evidence.files.work_folder import LARGEST, WorkFolder
from harness.host.processes.run_processes import RunProcess, catches

SIGNAL, WITHOUT_LOCK = signal.SIGUSR1, signal.SIGUSR2
# In seconds: the longest wait for the answer of one process, the pause after which an answer counts as complete, the
# longest wait for all processes, and the pause between two looks at the files.
ANSWER_SECONDS = 1.0
SETTLED_SECONDS = 0.06
SAMPLE_SECONDS = 10.0
LOOK_SECONDS = 0.01
# Most bytes of one answer and of all: the stacks of a few hundred and of a few thousand threads. Once parsed, each byte
# takes some forty.
MOST_BYTES, MOST_BYTES_OF_ALL = 1 << 18, 1 << 20
# Files in which a rank waits for others: torch's collectives, and the app's own exchange through shared memory.
COLLECTIVE = re.compile(r"/torch/distributed/|/vpoc/ranks/exchange\.py$")
AUTOGRAD_ENGINE = re.compile(r"/torch/autograd/(__init__|graph)\.py$")
STANDARD_LIBRARY = re.compile(r"/lib/python3\.\d+/(?!site-packages/|dist-packages/)|^<frozen ")
# The code with which the app writes its stacks is not where a rank stalls.
ANSWERING = re.compile(r"/vpoc/stacks\.py$")


@dataclass(frozen=True)
class ProcessStacks:
    """The stacks of one process: the `text` that it wrote, and its parsed `threads`."""

    pid: int
    rank: int
    text: str

    @property
    def threads(self) -> tuple[CallStack, ...]:
        """One stack for each thread, the main thread's last."""
        return tuple(thread.stack for thread in parse_stacks(self.text.split("\n")))

    @property
    def main(self) -> CallStack:
        """The main thread's stack; empty where the process gave none."""
        return self.threads[-1] if self.threads else ()


@dataclass(frozen=True)
class StackSample:
    """All stacks of a run at one time, with its processes and the positions of its ranks.

    `taken`: when, on the monotonic clock.
    `wall`: the same in seconds since 1970.
    """

    taken: float
    wall: float
    processes: tuple[RunProcess, ...]
    stacks: tuple[ProcessStacks, ...]
    positions: Mapping[int, Position]

    def of_rank(self, rank: int) -> tuple[ProcessStacks, ...]:
        """Return the stacks of a rank, its own process first."""
        return tuple(one for one in self.stacks if one.rank == rank)

    def fingerprint(self, rank: int) -> object:
        """Return a value that is equal in two samples if the rank has not moved; None where the rank gave no stacks."""
        told = {(one.pid, one.threads) for one in self.of_rank(rank)}
        return (frozenset(told), self.positions.get(rank)) if told else None

    @property
    def text(self) -> str:
        """The sample as text, for people and for a file."""
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.wall))
        parts = [f"{when} UTC\n"]
        parts += [f"\nrank {one.rank}, process {one.pid}:\n{one.text}" for one in self.stacks]
        return "".join([*parts, *(f"\n{line}\n" for line in self.silence)])

    @property
    def silence(self) -> tuple[str, ...]:
        """A line for each process that gave no stacks, with the likely reason."""
        told = {one.pid for one in self.stacks}
        silent = (process for process in self.processes if process.pid not in told)
        return tuple(f"process {one.pid} ({one.name}) gave no stack: {one.why_silent}" for one in silent)


def take_stacks(work: WorkFolder, processes: Sequence[RunProcess]) -> StackSample:
    """Ask each process in turn, so that a rank's file grows by the answer of one process only.

    A process that does not catch the signal is not asked, because the signal would end it. Neither is a stopped one,
    because it could not answer.
    """
    until = time.monotonic() + SAMPLE_SECONDS
    # A rank's own process is older than its workers.
    oldest_first = sorted(processes, key=lambda process: (process.started, process.pid))
    told: list[ProcessStacks] = []
    left = MOST_BYTES_OF_ALL
    for one in oldest_first:
        if one.listens and left > 0 and time.monotonic() < until and (answer := _ask(work, one, min(MOST_BYTES, left))):
            told.append(answer)
            left -= len(answer.text)
    return StackSample(time.monotonic(), time.time(), tuple(processes), tuple(told), read_positions(work))


def waits_for_others(stack: CallStack) -> bool:
    """Return whether the innermost frame outside Python's own library belongs to an exchange between ranks."""
    frame = innermost_own_frame(stack)
    return frame is not None and COLLECTIVE.search(frame.file) is not None


def may_wait_for_others(stack: CallStack) -> bool:
    """Return the same, also for torch's engine of backward passes, in which DDP and FSDP exchange gradients."""
    frame = innermost_own_frame(stack)
    return frame is not None and (waits_for_others(stack) or AUTOGRAD_ENGINE.search(frame.file) is not None)


def innermost_own_frame(stack: CallStack) -> Frame | None:
    """Return the innermost frame outside Python's own library; the innermost of all where there is no such frame."""
    own = (frame for frame in stack if not STANDARD_LIBRARY.search(frame.file) and not ANSWERING.search(frame.file))
    return next(own, stack[0] if stack else None)


def _ask(work: WorkFolder, process: RunProcess, most: int) -> ProcessStacks | None:
    before = _sizes(work, process.rank)
    for signum in (SIGNAL, WITHOUT_LOCK):
        # An interpreter that is ending no longer catches the signal, which would kill it.
        if not catches(process.pid, signum):
            continue
        with contextlib.suppress(OSError, NotAFileError):
            os.kill(process.pid, signum)
            if (rank := _grown(work, process.rank, before)) is not None:
                with work.tree.open(work.STACKS.format(rank=rank), LARGEST["stacks"]) as file:
                    told = file.read(before.get(rank, 0), most)
                return ProcessStacks(process.pid, rank, told.decode(errors="replace"))
    return None


def _grown(work: WorkFolder, rank: int | None, before: Mapping[int, int]) -> int | None:
    """Wait until the file of a rank, or of any rank, has grown and no longer changes; return that rank."""
    until = time.monotonic() + ANSWER_SECONDS
    last, since = before, time.monotonic()
    while (now := time.monotonic()) < until:
        sizes = _sizes(work, rank)
        if sizes != last:
            last, since = sizes, now
        elif sizes != before and now - since > SETTLED_SECONDS:
            break
        time.sleep(LOOK_SECONDS)
    return next((one for one, size in last.items() if size > before.get(one, 0)), None)


def _sizes(work: WorkFolder, rank: int | None) -> dict[int, int]:
    """Return the sizes of the files of stacks by rank: of `rank` only if it is known, so that no late answer counts."""
    sizes = {}
    for one, name in work.stacks().items():
        with contextlib.suppress(OSError, NotAFileError):
            if rank in (None, one):
                sizes[one] = work.tree.look(name).size
    return sizes
