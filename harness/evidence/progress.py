"""Lines of the progress files of a run: while they grow, the last ones, or some of many."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pydantic import ValidationError

from harness.base.untrusted_tree import ANY_SIZE, NotAFileError, OpenFile
from harness.evidence.app_files import Progress
from harness.evidence.work_folder import LARGEST, WorkFolder

# Many lines: one has some 300 bytes.
TAIL_BYTES = 1 << 14
PIECE_BYTES = 1 << 16
# Read of a file that grows before the next one is looked at: an hour's lines, at a line a second.
MOST_AT_ONCE = 1 << 20
LONGEST_LINE = LARGEST["progress line"]


def parse_lines(lines: Iterable[bytes]) -> Iterator[Progress]:
    """Yield the progress that lines tell, in their order; what is no progress is skipped."""
    for line in lines:
        try:
            yield Progress.parse(line)
        except ValidationError:
            continue


def last_lines(work: WorkFolder) -> dict[int, Progress]:
    """Return the last whole line of each rank that wrote one."""
    found = ((rank, _last_of(work, name)) for rank, name in work.progress().items())
    return {rank: line for rank, line in found if line}


def whole_lines(file: OpenFile) -> Iterator[bytes]:
    """Yield the lines of an open progress file; those that are longer than a line may be, or empty, are left out."""
    offset, rest = 0, b""
    skipping = False
    while content := file.read(offset, PIECE_BYTES):
        offset += len(content)
        *lines, rest = (rest + content).split(b"\n")
        for line in lines[1:] if skipping else lines:
            if 0 < len(line) <= LONGEST_LINE:
                yield line
        skipping = skipping and not lines
        if len(rest) > LONGEST_LINE:
            rest, skipping = b"", True
    if rest and not skipping:
        yield rest


@dataclass
class _Place:
    """How far a file was read, which one it was, and whether its next line is the end of one that is too long."""

    offset: int = 0
    inode: tuple[int, int] | None = None
    skipping: bool = False


class ProgressReader:
    """Yields every line of the progress files once. A line that is still being written waits for its end.

    `replaced`: the names of files that were cut, or that another file took the place of. No app does that; those are
    read again from their beginning.
    """

    def __init__(self, work: WorkFolder) -> None:
        self._work = work
        self._places: dict[str, _Place] = {}
        self.replaced: set[str] = set()

    def new(self) -> Iterator[Progress]:
        """Yield the lines since the last call."""
        for name in self._work.progress().values():
            yield from parse_lines(self._new_lines(name))

    def _new_lines(self, name: str) -> list[bytes]:
        place = self._places.setdefault(name, _Place())
        try:
            entry = self._work.tree.look(name)
            if entry.inode == place.inode and entry.size == place.offset:
                return []
            with self._work.tree.open(name, ANY_SIZE) as file:
                if place.inode is not None and (file.inode != place.inode or file.size < place.offset):
                    self.replaced.add(name)
                    place = self._places[name] = _Place()
                place.inode = file.inode
                content = file.read(place.offset, MOST_AT_ONCE)
        except (FileNotFoundError, NotAFileError):
            return []
        end = content.rfind(b"\n") + 1
        lines = content[:end].splitlines()[1 if place.skipping else 0 :]
        if end:
            place.skipping = False
        if len(content) - end > LONGEST_LINE:
            end, place.skipping = len(content), True
        place.offset += end
        return [line for line in lines if len(line) <= LONGEST_LINE]


def _last_of(work: WorkFolder, name: str) -> Progress | None:
    try:
        with work.tree.open(name, ANY_SIZE) as file:
            whole = file.read(max(0, file.size - TAIL_BYTES), TAIL_BYTES).rpartition(b"\n")[0]
    except (FileNotFoundError, NotAFileError):
        return None
    return next(parse_lines(reversed(whole.split(b"\n"))), None)
