"""Parses Python stacks as faulthandler writes them, and as py-spy prints them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.base.text import safe_text

LOADER_WORKER = "/torch/utils/data/_utils/worker.py"
"""How the path of the file ends in which every worker of a loader waits."""

_FAULTHANDLER = re.compile(r'^\s+File "(?P<file>[^"]*)", line (?P<line>\d{1,9}),? in (?P<function>.+)$')
_PY_SPY = re.compile(r"^\s+(?P<function>\S.*?) \((?P<file>[^()]+?):(?P<line>\d{1,9})\)$")
_THREAD = re.compile(r"^(?:Current thread|Thread) ")


@dataclass(frozen=True)
class Frame:
    """One call: the file as the process names it, the line, and the function."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{safe_text(Path(self.file).name)}:{self.line} {safe_text(self.function)}"


CallStack = tuple[Frame, ...]
"""The frames of one thread, the innermost first."""


@dataclass(frozen=True)
class ThreadStack:
    """The stack of one thread, and for each frame the index of its line in the text."""

    stack: CallStack
    places: tuple[int, ...]


def parse_stacks(lines: Iterable[str]) -> list[ThreadStack]:
    """Return the stacks of all threads, in the order of the text; faulthandler writes the main thread last.

    A thread begins with its headline and ends at an empty line; a thread without Python frames has an empty stack. All
    other text is skipped.
    """
    threads: list[list[tuple[int, Frame]]] = []
    inside = False
    for place, line in enumerate(lines):
        if _THREAD.match(line):
            threads.append([])
            inside = True
        elif found := _FAULTHANDLER.match(line) or _PY_SPY.match(line):
            if not inside:
                threads.append([])
            inside = True
            threads[-1].append((place, Frame(found["file"], int(found["line"]), found["function"])))
        elif not line.strip():
            inside = False
    return [ThreadStack(tuple(f for _, f in told), tuple(place for place, _ in told)) for told in threads]
