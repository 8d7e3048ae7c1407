"""Where a run stood still: from the Python stacks and positions that its ranks left."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.diagnosis.lines import Line, as_lines
from harness.diagnosis.scan import Hit, matcher_of
from harness.evidence.step_position import read_positions

STAGES = ("", "loader", "forward", "backward", "collective", "update")
"""What the rules call a stage, by its number in `position-<rank>.bin`; 0 is outside of a step."""
# Samples from inside first; py-spy tells of the same processes.
SAMPLES = ("failure/stacks-2.txt", "failure/stacks-1.txt", "failure/py-spy.txt")
MOST_BYTES = 1 << 22

_FAULTHANDLER = re.compile(r'^\s+File "(?P<path>[^"]+)", line \d+,? in (?P<function>.+)$')
_PY_SPY = re.compile(r"^\s+(?P<function>.+?) \((?P<path>[^()]+?):\d+\)$")
_OUTERMOST = ("<module>", "_run_module_as_main")
_WORKER = "torch/utils/data/_utils/worker.py"
_THREAD = re.compile(r"^(?:Current thread|Thread) ")


@dataclass(frozen=True)
class Frame:
    """A frame of a stack: `path function`, and the line that tells of it."""

    text: str
    line: Line


Stack = tuple[Frame, ...]
"""Of one thread, the innermost frame first."""


def stuck_at(folder: Path, phase: str | None) -> Hit | None:
    """Where the rank that is furthest behind stands, by its stack, then its stage, then the phase it told last."""
    positions = read_positions(folder)
    behind = min(positions, key=lambda rank: (positions[rank].order, rank), default=None)
    files = [] if behind is None else [f"stacks-{behind}.txt"]
    stage = "" if behind is None else STAGES[positions[behind].stage]
    words = [f"stage {stage}"] if stage else []
    return classify(_main_stacks(folder, files), [*words, f"phase {phase}", "outcome hung"])


def classify(stacks: Sequence[Stack], words: Iterable[str]) -> Hit | None:
    """By the first of the stacks that does not wait for other ranks, else by the words: stage, phase, outcome.

    Where every stack waits for other ranks the exchange itself is what hangs.
    """
    matcher = matcher_of(("stack",))
    waiting, silent = None, not stacks
    for stack in stacks:
        found = ((matcher.match(frame.text), frame) for frame in stack)
        hit = next((Hit(signature, frame.line) for signature, frame in found if signature), None)
        if hit and hit.signature.class_ != "hang-collective":
            return hit
        waiting, silent = waiting or hit, silent or hit is None
    if waiting and not silent:
        return waiting
    shown = stacks[0][0].line if stacks else Line("", 0, "")
    return next((Hit(signature, shown) for word in words if (signature := matcher.match(word))), waiting)


def main_stacks(lines: Iterable[Line]) -> list[Stack]:
    """The stacks of main threads in a dump of faulthandler or py-spy: those that begin at a module or script.

    Those of loader workers are left out where there are others: they wait all the time.
    """
    stacks: list[list[Frame]] = [[]]
    for line in lines:
        if found := _FAULTHANDLER.match(line.text) or _PY_SPY.match(line.text):
            stacks[-1].append(Frame(f"{found['path']} {found['function']}", line))
        elif _THREAD.match(line.text) or not line.text.strip():
            stacks.append([])
    whole = [tuple(stack) for stack in stacks if stack]
    main = [stack for stack in whole if stack[-1].text.endswith(_OUTERMOST)]
    own = [stack for stack in main if not any(_WORKER in frame.text for frame in stack)]
    return own or main or whole


def _main_stacks(folder: Path, preferred: Sequence[str]) -> list[Stack]:
    """The last main stack of the preferred files, else those of the samples, else of every rank."""
    every = sorted(path.name for path in folder.glob("stacks-*.txt"))
    for names, last in ((preferred, True), (SAMPLES, False), (every, True)):
        found: list[Stack] = []
        for name in names:
            stacks = main_stacks(_tail(folder, name))
            found += stacks[-1:] if last else stacks
        if found:
            return found
    return []


def _tail(folder: Path, name: str) -> list[Line]:
    """The lines of a file of stacks; of a long one the last."""
    try:
        content = (folder / name).read_bytes()
    except OSError:
        return []
    skipped = content[:-MOST_BYTES].count(b"\n")
    lines = as_lines(content[-MOST_BYTES:].decode("utf-8", "replace").split("\n"), name)
    return [Line(line.file, line.number + skipped, line.text) for line in lines]
