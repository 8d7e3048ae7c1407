"""The progress of a program of the user's own: turns what it prints or writes into progress lines like the app's."""

import math
import re
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

from harness.base.files.json_bounds import json_object
from harness.base.files.untrusted_file import NotAFileError, OpenFile
from harness.base.files.untrusted_tree import ANY_SIZE, UntrustedTree
from harness.evidence.app_reports.progress import LONGEST_LINE, MOST_AT_ONCE, MOST_LINES_AT_ONCE
from harness.evidence.files.app_files import Memory, Phase, Progress
from harness.evidence.files.run_folder import RunFolder
from harness.matrix.programs import LINES, STDOUT, Program, linear_pattern

# A line ends at a line feed, or at the carriage return of a progress bar.
ENDS = re.compile(rb"[\r\n]")
MOST_STEPS = 2**53
# Most reads of a file that no longer grows, and the bytes at its end that are read after these: a hole has any size,
# and sixty million lines would take long.
MOST_LAST_LOOKS, LAST_BYTES = 32, 1 << 23
NO_MEMORY = Memory(rss_bytes=0, device_allocated_bytes=None, device_reserved_bytes=None)


class ProgramProgress:
    """Yields an advance for each new line that reports one: any non-empty line, a JSON object, or a pattern's match.

    `file`: its path in `tree`.
    `form`: `STDOUT`, `LINES` or the pattern.
    `advances`: the number of lines that reported an advance; `step`, `total` and `loss` are from the last ones.
    `loss_unread`: whether the last loss is among lines that were not read, so that there is no loss.
    `behind`, `replaced`, `refused`: as in a `ProgressReader`; the latter two stay empty.
    """

    def __init__(self, tree: UntrustedTree, file: str, form: str) -> None:
        self._tree = tree
        self._file = file
        self._form = form
        self._pattern = None if form in (STDOUT, LINES) else linear_pattern(form)
        self._offset = 0
        self._skipping = False
        self.advances = 0
        self.step = 0
        self.total: int | None = None
        self.loss: float | None = None
        self.loss_unread = False
        self.behind = False
        self.replaced: set[str] = set()
        self.refused: set[str] = set()

    def new(self) -> Iterator[Progress]:
        """Yield the advances since the last call; if there are very many, some of them, and then it is `behind`."""
        for line in self._new_lines():
            if not self._take_in(line):
                continue
            if self.advances == 1:
                yield self._line("first-step", max(0, self.step - 1))
            yield self._line("step", self.step)

    @property
    def changed(self) -> float | None:
        """When the file was last written, in seconds since 1970; None where it is missing."""
        try:
            return self._tree.look(self._file).changed
        except (FileNotFoundError, NotAFileError):
            return None

    def take_in_all(self) -> None:
        """Read the rest of a file to which nothing is written any more; of very many lines the first and the last."""
        self.behind = True
        for _ in range(MOST_LAST_LOOKS):
            if self.behind:
                self._take_in_more()
        with suppress(FileNotFoundError, NotAFileError):
            end = self._skip_to_the_last() if self.behind else self._offset
            while self.behind and self._offset < end:
                self._take_in_more()
        if not self.behind:
            self._end()

    def _skip_to_the_last(self) -> int:
        """Skip to the last lines, no more of them than were read before; return where the file ends."""
        last = LAST_BYTES
        with self._tree.open(self._file, ANY_SIZE) as file:
            while self._lines_from(file, file.size - last, last) > MOST_LAST_LOOKS * MOST_LINES_AT_ONCE:
                last //= 2
            if self._offset < file.size - last:
                self._offset, self._skipping = file.size - last, True
                self.loss_unread, self.loss = self.loss is not None, None
            return file.size

    def _lines_from(self, file: OpenFile, begin: int, most: int) -> int:
        content = file.read(max(self._offset, begin), most)
        return content.count(b"\n") + content.count(b"\r")

    def _take_in_more(self) -> None:
        deque(map(self._take_in, self._new_lines()), maxlen=0)

    def _end(self) -> None:
        """Read a last line that has no line end."""
        with suppress(FileNotFoundError, NotAFileError), self._tree.open(self._file, ANY_SIZE) as file:
            rest = file.read(self._offset, LONGEST_LINE + 1)
            if 0 < len(rest) <= LONGEST_LINE and not self._skipping:
                self._offset += len(rest)
                self._take_in(rest)

    def _take_in(self, line: bytes) -> bool:
        """Return whether a line reports an advance; if so, keep its values."""
        found = self._read(line.decode(errors="replace").strip())
        if found is None:
            return False
        self.step, self.total, loss = found
        # Many programs report a loss only now and then.
        if loss is not None:
            self.loss, self.loss_unread = loss, False
        self.advances += 1
        return True

    def _new_lines(self) -> list[bytes]:
        try:
            with self._tree.open(self._file, ANY_SIZE) as file:
                # If an engine or a limit cut the file, the part that is left was read before.
                self._offset = min(self._offset, file.size)
                content = file.read(self._offset, MOST_AT_ONCE)
        except (FileNotFoundError, NotAFileError):
            self.behind = False
            return []
        # A line may have only two bytes, and reading each line takes time.
        ends = [found.end() for found in islice(ENDS.finditer(content), MOST_LINES_AT_ONCE)]
        self.behind = len(content) == MOST_AT_ONCE or len(ends) == MOST_LINES_AT_ONCE
        if not ends:
            if len(content) > LONGEST_LINE:
                self._offset, self._skipping = self._offset + len(content), True
            return []
        lines = ENDS.split(content[: ends[-1]])[1 if self._skipping else 0 :]
        self._offset, self._skipping = self._offset + ends[-1], False
        return [line for line in lines if 0 < len(line) <= LONGEST_LINE]

    def _read(self, line: str) -> tuple[int, int | None, float | None] | None:
        """Return the step, total and loss that a line reports; None where it reports no advance."""
        if self._form == STDOUT:
            return (self.advances + 1, None, None) if line else None
        if self._pattern is None:
            return _values(json_object(line))
        found = self._pattern.search(line)
        return _values(found.groupdict()) if found else None

    def _line(self, phase: Phase, done: int) -> Progress:
        loss = self.loss if self.loss is not None and math.isfinite(self.loss) else None
        return Progress(
            version=2,
            wall=time.time(),
            monotonic=time.monotonic(),
            rank=0,
            pid=0,
            phase=phase,
            done=done,
            total=self.total if self.total is not None and self.total >= done else None,
            max_step_s=None,
            loss=loss,
            gradient_norm=None,
            memory=NO_MEMORY,
        )


def progress_of(folder: RunFolder, program: Program) -> ProgramProgress:
    """Return a reader of the progress of a program's run, from the beginning."""
    work = folder.work
    if program.progress == LINES:
        return ProgramProgress(work.tree, work.PROGRAM_PROGRESS, LINES)
    return ProgramProgress(UntrustedTree(folder.path), RunFolder.LOG, program.progress)


def whole_progress(folder: RunFolder, program: Program) -> ProgramProgress:
    """Return the whole progress of a run that has ended, as far as a file of that size is read."""
    told = progress_of(folder, program)
    told.take_in_all()
    return told


def _values(found: Mapping[str, Any]) -> tuple[int, int | None, float | None] | None:
    step = _number(found.get("step"))
    if step is None or not 0 <= step <= MOST_STEPS:
        return None
    total = _number(found.get("total"))
    return int(step), int(total) if total is not None and 0 <= total <= MOST_STEPS else None, _number(found.get("loss"))


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        return float(value.replace(",", "") if isinstance(value, str) else value)
    except (ValueError, OverflowError):
        return None
