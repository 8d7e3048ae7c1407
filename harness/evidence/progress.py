"""Lines of the progress files of a run: while they grow, the last ones, or some of many."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import ValidationError

from harness.evidence.app_files import Progress
from harness.evidence.work_folder import WorkFolder

# Many lines: one has some 300 bytes.
TAIL_BYTES = 1 << 14


def parse_lines(lines: Iterable[bytes]) -> Iterator[Progress]:
    """Yield the progress that lines tell, in their order; what is no progress is skipped."""
    for line in lines:
        try:
            yield Progress.parse(line)
        except ValidationError:
            continue


def last_lines(work: WorkFolder) -> dict[int, Progress]:
    """Return the last whole line of each rank that wrote one."""
    found = ((rank, _last_of(file)) for rank, file in work.progress().items())
    return {rank: line for rank, line in found if line}


class ProgressReader:
    """Yields every line of the progress files once. A line that is still being written waits for its end."""

    def __init__(self, work: WorkFolder) -> None:
        self._work = work
        self._offsets: dict[Path, int] = {}

    def new(self) -> Iterator[Progress]:
        """Yield the lines since the last call."""
        for file in self._work.progress().values():
            before = self._offsets.get(file, 0)
            if file.stat().st_size <= before:
                continue
            with file.open("rb") as stream:
                stream.seek(before)
                content = stream.read()
            end = content.rfind(b"\n") + 1
            self._offsets[file] = before + end
            yield from parse_lines(content[:end].splitlines())


def _last_of(file: Path) -> Progress | None:
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - TAIL_BYTES))
            whole = stream.read().rpartition(b"\n")[0]
    except OSError:
        return None
    return next(parse_lines(reversed(whole.split(b"\n"))), None)
