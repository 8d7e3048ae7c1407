"""Finds where a run stalled, from the Python stacks and positions that its ranks wrote."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from harness.base.files.storage import read_regular
from harness.base.files.untrusted_file import NotAFileError
from harness.diagnosis.lines import Line, as_lines
from harness.diagnosis.matcher import Hit, matcher_of
from harness.evidence.app_reports.python_stacks import LOADER_WORKER, parse_stacks
from harness.evidence.app_reports.step_position import read_positions
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.files.work_folder import LARGEST

STAGES = ("", "loader", "forward", "backward", "collective", "update")
"""The names of stages in the rules, in the order of their numbers in the position file; 0 is outside a step."""
# Samples from inside the processes come first; py-spy shows the same processes.
SAMPLES = (RunFolder.SECOND_STACKS, RunFolder.FIRST_STACKS, RunFolder.PY_SPY)
# Most bytes of all dumps that are read one after the other: an app may write those of hundreds of ranks. Once parsed,
# each byte takes some sixty.
MOST_BYTES = 1 << 21

_OUTERMOST = ("<module>", "_run_module_as_main")


@dataclass(frozen=True)
class StackFrame:
    """A frame of a stack in the form that rules match, `path function`, and its line in the dump."""

    text: str
    line: Line


StackFrames = tuple[StackFrame, ...]
"""The frames of one thread, the innermost first."""


def stuck_at(folder: RunFolder, phase: str | None) -> Hit | None:
    """Return where the rank that is farthest behind stalled, by its stack, then its stage, then its last phase."""
    positions = read_positions(folder.work)
    behind = min(positions, key=lambda rank: (positions[rank].order, rank), default=None)
    stage = "" if behind is None else STAGES[positions[behind].stage]
    words = [f"stage {stage}"] if stage else []
    return classify(_main_stacks(folder, behind), [*words, f"phase {phase}", "outcome hung"])


def classify(stacks: Sequence[StackFrames], words: Iterable[str]) -> Hit | None:
    """Return the class of a stall, by the first of the stacks that does not wait for other ranks.

    If there is none, the words for stage, phase and outcome decide. If every stack waits for other ranks, the exchange
    itself hangs.
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


def main_stacks(lines: Iterable[Line]) -> list[StackFrames]:
    """Return the stacks of main threads in a dump of faulthandler or py-spy: those that begin at a module or script.

    Stacks of loader workers are left out: they always wait, and say nothing of a rank that wrote none.
    """
    numbered = list(lines)
    threads = (zip(one.stack, one.places, strict=True) for one in parse_stacks(line.text for line in numbered))
    stacks = (tuple(StackFrame(f"{f.file} {f.function}", numbered[at]) for f, at in thread) for thread in threads)
    whole = [stack for stack in stacks if stack]
    main = [stack for stack in whole if stack[-1].text.endswith(_OUTERMOST)]
    if not main:
        return whole
    return [stack for stack in main if not any(LOADER_WORKER in frame.text for frame in stack)]


def _main_stacks(folder: RunFolder, behind: int | None) -> list[StackFrames]:
    """Return the last main stack of the rank that is behind; else those of the samples, else of every rank."""
    ranks = {rank: partial(_of_app, folder, name) for rank, name in folder.work.stacks().items()}
    for dumps, last in (
        ([ranks[behind]] if behind in ranks else [], True),
        ([partial(_collected, folder, name) for name in SAMPLES], False),
        (ranks.values(), True),
    ):
        found: list[StackFrames] = []
        most = MOST_BYTES // max(len(dumps), 1)
        for dump in dumps:
            stacks = main_stacks(dump(most))
            found += stacks[-1:] if last else stacks
        if found:
            return found
    return []


def _of_app(folder: RunFolder, name: str, most: int) -> list[Line]:
    """Return the lines of a file of stacks that a rank wrote; of more than `most` bytes, the last lines."""
    try:
        return _lines(folder.name_in_work(name), *folder.work.tree.tail(name, LARGEST["stacks"], most))
    except (FileNotFoundError, NotAFileError):
        return []


def _collected(folder: RunFolder, name: str, most: int) -> list[Line]:
    """Return the lines of a sample of stacks; of more than `most` bytes, the last lines."""
    try:
        content = read_regular(folder.named(name))
    except OSError:
        return []
    return _lines(name, content[:-most].count(b"\n"), content[-most:])


def _lines(name: str, skipped: int, content: bytes) -> list[Line]:
    lines = as_lines(content.decode("utf-8", "replace").split("\n"), name)
    return [Line(line.file, line.number + skipped, line.text) for line in lines]
