"""Limits the log of a process: the beginning and the end are kept, and the bytes in the middle are counted."""

import contextlib
import ctypes
import errno
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

from harness.base.errors import UserError
from harness.base.files.storage import write_durably

HEAD_BYTES = TAIL_BYTES = 8 << 20
# Seconds between two looks at a log; meanwhile a process may print some 100 MB.
LOOK_SECONDS = 0.1
# Fewest bytes of the middle that are worth a call.
SLACK_BYTES = 4 << 20
BLOCK = 1 << 12
KEEP_SIZE, PUNCH_HOLE = 1, 2
# A container that prints without a pause while dockerd 20.10 restarts lost 13,000 to 107,000 lines in the engine's own
# log, five times of five; one that prints 50 lines a second lost none, ten times of ten. The note is the last line of
# such a log.
MAY_LACK_SOME = "... the Docker engine was restarted meanwhile, and may not have kept all output ..."

_libc = ctypes.CDLL(None, use_errno=True)


class BoundedLog:
    """The output of one process, in its log from byte `begins` on.

    The process itself appends to the file, so its output outlives this process. While it runs, the disk blocks of the
    middle are freed (a hole: the file only seems large). After it has ended, the middle is cut out.
    """

    def __init__(self, log: Path, begins: int, head: int = HEAD_BYTES, tail: int = TAIL_BYTES) -> None:
        self._log = log
        self._begins = begins
        self._head = head
        self._tail = tail
        self._punched = 0

    @property
    def head_ends(self) -> int:
        """The byte of the file where the beginning that is kept ends."""
        return self._begins + self._head

    def trim(self) -> None:
        """Free the disk blocks of the middle, if the file system can do that."""
        with contextlib.suppress(OSError), _opened(self._log, os.O_RDWR) as log:
            start = -(-max(self.head_ends, self._punched) // BLOCK) * BLOCK
            end = (os.fstat(log).st_size - self._tail) // BLOCK * BLOCK
            if end - start >= min(SLACK_BYTES, self._tail):
                _punch(log, start, end - start)
                self._punched = end

    def finish(self) -> None:
        """Cut out the middle after the process has ended, and write how many bytes it had.

        On a full disk the file stays as it is, with its hole.
        """
        with contextlib.suppress(OSError, UserError), _opened(self._log, os.O_RDONLY) as log:
            size = os.fstat(log).st_size
            if size - self._begins > self._head + self._tail:
                count = size - self.head_ends - self._tail
                self._write(log, self.head_ends, f"{count:,} bytes left out")

    def finish_after_gap(self, seam: int, total: int) -> None:
        """Finish a log that lacks output at byte `seam` of the file; the process printed at least `total` bytes."""
        with contextlib.suppress(OSError, UserError), _opened(self._log, os.O_RDONLY) as log:
            head_ends = min(seam, self.head_ends)
            tail = min(os.fstat(log).st_size - head_ends, self._tail)
            count = max(total - (head_ends - self._begins) - tail, 0)
            known = f"at least {count:,}" if count else "an unknown number of"
            self._write(log, head_ends, f"{known} bytes left out, which the engine did not keep")

    def _write(self, log: int, head_ends: int, words: str) -> None:
        head = os.pread(log, head_ends, 0)
        tail = os.pread(log, self._tail, max(head_ends, os.fstat(log).st_size - self._tail))
        newline = "" if head.endswith(b"\n") or not head else "\n"
        write_durably(self._log, b"".join((head, f"{newline}... {words} ...\n".encode(), tail)))


class Trimming:
    """Trims a log repeatedly in a thread, until it is ended."""

    def __init__(self, bounded: BoundedLog) -> None:
        self._bounded = bounded
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop trimming and cut out the middle; calls after the first do nothing."""
        if not self._over.is_set():
            self._over.set()
            self._thread.join()
            self._bounded.finish()

    def _run(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            self._bounded.trim()


@contextlib.contextmanager
def _opened(file: Path, flags: int) -> Iterator[int]:
    """Open a regular file, and refuse anything else that a run has put in its place."""
    descriptor = os.open(file, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(file))
        yield descriptor
    finally:
        os.close(descriptor)


def _punch(descriptor: int, start: int, length: int) -> None:
    mode = KEEP_SIZE | PUNCH_HOLE
    if _libc.fallocate(descriptor, mode, ctypes.c_int64(start), ctypes.c_int64(length)):
        raise OSError(ctypes.get_errno(), "fallocate")
