"""Turn the progress files and the result of a run into phases and thinned curves."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise, zip_longest

from harness.base.files.untrusted_file import NotAFileError
from harness.evidence.app_reports.progress import MOST_LINES, parse_lines, whole_lines
from harness.evidence.files.app_files import Progress, Training
from harness.evidence.files.work_folder import LARGEST, WorkFolder
from harness.report.model import LossCurve, MemoryCurve, PhaseSpan

POINTS = 150
# Most phases drawn of a run, for all its ranks together; of phases shorter than a pixel nothing would be seen.
MOST_PHASES = 2000
# Most ranks drawn; a chart of more is unreadable.
RANKS = 8
PHASE = re.compile(rb'"phase": ?"([a-z-]+)"')
MB = 1e6


@dataclass(frozen=True)
class ProgressCurves:
    """Phases, memory and steps of the first ranks of a run, from its progress files.

    `steps`: (step, loss) pairs of rank 0, for each model in turn.
    `clock`: when the monotonic clock was zero, in seconds since 1970; None without progress.
    """

    phases: tuple[PhaseSpan, ...]
    memory: tuple[MemoryCurve, ...]
    steps: tuple[tuple[tuple[int, float], ...], ...]
    clock: float | None


def read_progress(work: WorkFolder, started: float, ended: float, asked: int = RANKS) -> ProgressCurves:
    """Return the progress of the first ranks of a run that lasted from `started` to `ended`, in seconds since 1970.

    `asked`: the number of ranks that the run was asked for; an app may leave large files of others.
    """
    named = {rank: name for rank, name in work.progress().items() if rank < min(asked, RANKS)}
    phases, memory = list[PhaseSpan](), list[MemoryCurve]()
    steps: tuple[tuple[tuple[int, float], ...], ...] = ()
    clock = None
    for rank, name in named.items():
        try:
            with work.tree.open(name, LARGEST["progress"]) as file:
                count = sum(1 for _ in islice(whole_lines(file), MOST_LINES))
                most = MOST_PHASES // len(named)
                lines = list(parse_lines(_thinned(islice(whole_lines(file), count), count, most)))
        except (FileNotFoundError, NotAFileError):
            break
        if lines:
            phases += _spans(rank, lines, started, ended)
            memory.append(_memory(rank, lines, started))
            steps = steps if rank else _steps(lines)
            clock = lines[0].wall - lines[0].monotonic if clock is None else clock
    return ProgressCurves(tuple(phases), tuple(memory), steps, clock)


def loss_curves(progress: ProgressCurves, trainings: Sequence[Training]) -> tuple[LossCurve, ...]:
    """Return a curve for each model of a run; a run that did not complete has steps, but may have no `trainings`."""
    pairs = zip_longest(progress.steps, trainings)
    curves = [_losses(number, steps or (), training) for number, (steps, training) in enumerate(pairs, 1)]
    return tuple(curve for curve in curves if curve.steps or curve.train)


def _thinned(lines: Iterable[bytes], count: int, most: int) -> Iterator[bytes]:
    """Yield evenly spaced lines, because an hour has thousands of lines.

    The first and last line of each phase are kept too, for up to `most` phases.
    """
    every = max(1, -(-count // POINTS))
    phase, skipped, begun = b"", b"", 0
    for number, line in enumerate(lines):
        match = PHASE.search(line)
        begins = match is not None and match[1] != phase and begun < most
        begun += begins
        phase = match[1] if match else phase
        if begins and skipped:
            yield skipped
        shown = begins or number % every == 0 or number == count - 1
        skipped = b"" if shown else line
        if shown:
            yield line


def _spans(rank: int, lines: Sequence[Progress], started: float, ended: float) -> Iterator[PhaseSpan]:
    begun = [lines[0], *(line for before, line in pairwise(lines) if before.phase != line.phase)]
    ends = [*(line.wall for line in begun[1:]), max(ended, lines[-1].wall)]
    for line, end in zip(begun, ends, strict=True):
        seconds = max(0.0, end - line.wall)
        yield PhaseSpan(rank=rank, phase=line.phase, start=round(line.wall - started, 2), seconds=round(seconds, 2))


def _memory(rank: int, lines: Sequence[Progress], started: float) -> MemoryCurve:
    reserved = [line.memory.device_reserved_bytes for line in lines]
    return MemoryCurve(
        rank=rank,
        seconds=tuple(round(line.wall - started, 2) for line in lines),
        rss_mb=tuple(round(line.memory.rss_bytes / MB, 1) for line in lines),
        reserved_mb=tuple(None if size is None else round(size / MB, 1) for size in reserved),
    )


def _steps(lines: Sequence[Progress]) -> tuple[tuple[tuple[int, float], ...], ...]:
    """Return the (step, loss) pairs of each model; a new model begins where a rank enters the phase `first-step`."""
    models: list[list[tuple[int, float]]] = []
    for before, line in pairwise([None, *lines]):
        if line is None:
            continue
        if line.phase == "first-step" and (before is None or before.phase != "first-step"):
            models.append([])
        if models and line.loss is not None and line.phase in ("first-step", "step"):
            models[-1].append((line.done, line.loss))
    return tuple(tuple(model) for model in models)


def _losses(number: int, steps: Sequence[tuple[int, float]], training: Training | None) -> LossCurve:
    first = [(step.step, step.loss) for step in training.first_steps] if training else []
    known = sorted(dict([*first, *steps]).items())
    epochs = training.epoch_losses if training else ()
    return LossCurve(
        model=training.model_kind if training else f"model {number}",
        steps=tuple(step for step, _ in known),
        loss=tuple(_shown(loss) for _, loss in known),
        epoch_ends=tuple(epoch.epoch * training.steps_per_epoch for epoch in epochs) if training else (),
        train=tuple(_shown(epoch.train) for epoch in epochs),
        validation=tuple(_shown(epoch.validation) for epoch in epochs),
    )


def _shown(loss: float | None) -> float | None:
    return None if loss is None or not math.isfinite(loss) else float(f"{loss:.5g}")
