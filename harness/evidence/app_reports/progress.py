"""Reads the progress files of a run: all lines while they grow, or the last lines."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pydantic import ValidationError

from harness.base.files.untrusted_file import NotAFileError, OpenFile
from harness.base.files.untrusted_tree import ANY_SIZE
from harness.evidence.files.app_files import Phase, Progress
from harness.evidence.files.work_folder import LARGEST, MOST_RANKS, WorkFolder

# Bytes and lines at the end of a file in which its last line is searched: a line has some 300 bytes.
TAIL_BYTES = 1 << 14
TAIL_LINES = 64
PIECE_BYTES = 1 << 16
EMPTY_LINE = b"\n\n"
# Lines of a week, at one line a second.
MOST_LINES = 600_000
LONGEST_LINE = LARGEST["progress line"]
# Most that is read at once, over the files of all ranks: the lines of an hour, at one line a second. The rest is read
# at the next call.
MOST_AT_ONCE = 1 << 20
MOST_LINES_AT_ONCE = 4096
# Least that is read at once of one file, however many files there are.
LEAST_AT_ONCE = 2 * LONGEST_LINE
LEAST_LINES_AT_ONCE = 16


def parse_lines(lines: Iterable[bytes]) -> Iterator[Progress]:
    """Yield the progress in these lines, in their order; lines that are not progress are skipped."""
    for line in lines:
        try:
            yield Progress.parse(line)
        except ValidationError:
            continue


def last_lines(work: WorkFolder) -> dict[int, Progress]:
    """Return the last whole line of each rank that wrote one."""
    found = ((rank, _last_of(work, name)) for rank, name in work.progress().items())
    return {rank: line for rank, line in found if line}


def last_phase(work: WorkFolder) -> Phase | None:
    """Return the phase of the rank that has been silent for longest; None where no rank wrote a line."""
    return min(last, key=lambda line: line.monotonic).phase if (last := last_lines(work).values()) else None


def whole_lines(file: OpenFile) -> Iterator[bytes]:
    """Yield the lines of an open progress file, without empty lines and lines that are too long."""
    offset, rest = 0, b""
    skipping = False
    while content := file.read(offset, PIECE_BYTES):
        offset += len(content)
        while EMPTY_LINE in content:
            # A file of nothing but line ends has a hundred million of them.
            content = content.replace(EMPTY_LINE, b"\n")
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
    """How far a file was read, which file it was, and whether the next line is the end of one that is too long."""

    offset: int = 0
    inode: tuple[int, int] | None = None
    skipping: bool = False


class ProgressReader:
    """Yields every line of the progress files once; a line that is still being written is read once it is complete.

    `replaced`: the names of files that were cut, or replaced by another file, which no app does. They are read again
    from their beginning.
    `refused`: the names of files of ranks that the run does not have; they are not read.
    `behind`: whether there was more than could be read at once.
    """

    def __init__(self, work: WorkFolder, ranks: int = MOST_RANKS) -> None:
        self._work = work
        self._ranks = ranks
        self._places: dict[str, _Place] = {}
        self.replaced: set[str] = set()
        self.refused: set[str] = set()
        self.behind = False

    def new(self) -> Iterator[Progress]:
        """Yield the lines since the last call; if there are very many, only some, and then the reader is `behind`."""
        self.behind = False
        files = self._work.progress()
        ours = [name for rank, name in files.items() if rank < self._ranks]
        self.refused.update(name for rank, name in files.items() if rank >= self._ranks)
        most = max(LEAST_AT_ONCE, MOST_AT_ONCE // max(len(ours), 1))
        lines = max(LEAST_LINES_AT_ONCE, MOST_LINES_AT_ONCE // max(len(ours), 1))
        for name in ours:
            yield from parse_lines(self._new_lines(name, most, lines))

    def _new_lines(self, name: str, most: int, most_lines: int) -> list[bytes]:
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
                content = file.read(place.offset, most)
        except (FileNotFoundError, NotAFileError):
            return []
        end = content.rfind(b"\n") + 1
        lines = content[:end].split(b"\n", most_lines)
        # The part after the last line that is complete, or that is read at this call.
        rest = lines.pop()
        if rest:
            end -= len(rest)
        self.behind |= bool(rest) or len(content) == most
        lines = lines[1 if place.skipping else 0 :]
        if end:
            place.skipping = False
        if not rest and len(content) - end > LONGEST_LINE:
            end, place.skipping = len(content), True
        place.offset += end
        return [line for line in lines if 0 < len(line) <= LONGEST_LINE]


def _last_of(work: WorkFolder, name: str) -> Progress | None:
    try:
        with work.tree.open(name, ANY_SIZE) as file:
            whole = file.read(max(0, file.size - TAIL_BYTES), TAIL_BYTES).rpartition(b"\n")[0]
    except (FileNotFoundError, NotAFileError):
        return None
    return next(parse_lines(reversed(whole.rsplit(b"\n", TAIL_LINES)[-TAIL_LINES:])), None)
