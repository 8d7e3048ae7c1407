"""Checks the progress of one rank, line by line: what it accounts for, and where it breaches the contract. Pure."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from harness.evidence.app_reports.phase_order import RESTARTING, may_follow
from harness.evidence.files.app_files import EpochLosses, Phase, Progress
from harness.evidence.outcome.tolerances import COMPARED_STEPS

# Most missing lines of a rank: a disk that tears a line takes the next one, too. A process that leaves out more hides
# something.
MAX_LOST_LINES = 3
# Allowed difference between the clocks of app and host, beside the time that a line is late because the disk stalls.
CLOCK_SLACK_SECONDS = 60.0
# Shortest time of an optimizer step, by loop, in seconds. The smallest possible network, with one sample a step, was
# measured to take 40 microseconds in blocks of steps, and 1,050 in the plain loop with all that torch does for a step.
# No machine is twenty times as fast as that one.
MIN_STEP_SECONDS: Mapping[str, float] = {"plain": 50e-6, "resident": 2e-6}
# Fewest steps whose speed is judged: of fewer, the time between two lines shows little.
RATED_STEPS = 64
# One checkpoint that is due after the last step of an epoch, and one because of a signal.
MAX_CHECKPOINTS_OF_A_STEP = 2
# How far the app's clock may be ahead: that of a container may run a little faster, and the two are not read at once.
CLOCK_AHEAD_SECONDS, CLOCK_AHEAD_SHARE = 1.0, 0.02
# The app reads a file in blocks of 4 MB or more, each with phases of its own, and passes several times over small
# files.
SMALLEST_BLOCK_BYTES = 2 << 20
MAX_PASSES = 8
NEVER_LATE: Mapping[Phase, float] = {}


@dataclass(frozen=True)
class SeenAt:
    """When a line was written, as seen from outside: between two looks at its file.

    All times are in seconds of this host's monotonic clock. A line that was written late may be older than `after`. It
    is not newer than `by`, and not older than the start of its process at `started`.
    """

    after: float
    by: float
    started: float = -math.inf


@dataclass(frozen=True)
class AskedWork:
    """The work that a run has to do, as far as progress has to account for it.

    Attributes:
        contract: The version of the contract that the app follows.
        nonce: The random word that only this run was given.
        processes: The number of processes of the first rank, one after the other; the last one trains.
        resumed: For each model, in order, the number of optimizer steps from which it may resume; 0 for none.
        loop: The loop that makes the steps.
        data_bytes: The size of the data file.
        may_end_early: Whether a model may end after any of its epochs.
    """

    contract: int
    nonce: str | None
    ranks: int
    epochs: int
    processes: int
    resumed: tuple[int, ...]
    loop: str
    data_bytes: int = 0
    may_end_early: bool = False


@dataclass
class ModelAccount:
    """The progress of one model: its steps, epochs and losses, and when it began and ended.

    `first`, `done`: the first and the last number of optimizer steps, of `total`. `first` and `total` are None where no
        line has one.
    `losses`: the loss and gradient norm of single steps.
    `rated`: the number of steps, and the time, from which the speed is measured.
    """

    total: int | None = None
    first: int | None = None
    done: int = 0
    epochs: list[EpochLosses] = field(default_factory=list)
    losses: dict[int, tuple[float, float | None]] = field(default_factory=dict)
    began: SeenAt | None = None
    last_step: SeenAt | None = None
    ended: SeenAt | None = None
    checkpoints: int = 0
    rated: tuple[int, float] = (0, -math.inf)


class RankAccount:
    """Takes the lines of one rank in their order.

    `late`: how late a line may be written, in seconds by phase: as long as the rank may stall in it. In a phase that is
        not listed no line may be late.
    `lost`: the number of missing lines so far.
    `models`: the models that the rank trains, in order.
    """

    def __init__(self, expected: AskedWork, rank: int, late: Mapping[Phase, float] = NEVER_LATE) -> None:
        self._late = late
        self._nonce = expected.nonce
        self._processes = expected.processes if rank == 0 else 1
        self._epochs = expected.epochs
        self._resumed = expected.resumed
        self._min_step = MIN_STEP_SECONDS.get(expected.loop, min(MIN_STEP_SECONDS.values()))
        self._most_blocks = MAX_PASSES + expected.data_bytes // SMALLEST_BLOCK_BYTES
        self._may_end_early = expected.may_end_early
        self._blocks = 0
        self._begun = 0
        self._first: Progress | None = None
        self._last: Progress | None = None
        self._lost = 0
        self._clock = (-math.inf, math.inf)
        self.lost = 0
        self.models: list[ModelAccount] = []

    @property
    def finished(self) -> bool:
        """True once the last process has reported its end."""
        return self._begun == self._processes and self._last is not None and self._last.phase == "teardown"

    def saw(self, line: Progress, seen: SeenAt) -> Iterator[str]:
        """Check a line; yield what is wrong with it."""
        if line.nonce != self._nonce:
            yield "its progress lacks the run's nonce" if line.nonce is None else "its progress is of another run"
        if not all(math.isfinite(number) for number in _numbers(line)):
            yield f"a number in its progress is not finite, in phase {line.phase} at {line.done}"
        yield from self._order(line)
        yield from self._times(line, seen)
        if line.done < 0 or (line.total is not None and line.done > line.total):
            yield f"it has done {line.done} of {line.total} in phase {line.phase}"
        elif (before := self._to_compare(line)) and (before.done > line.done or before.total != line.total):
            counts = f"{before.done} of {before.total}", f"{line.done} of {line.total}"
            yield f"it had done {counts[0]} in phase {line.phase}, then {counts[1]}"
        if self._begun == self._processes:
            yield from self._trained(line, seen)
        elif line.phase in ("first-step", "step", "validate", "teardown"):
            yield f"it reports phase {line.phase} before the process that trains"
        self._last = line

    def _order(self, line: Progress) -> Iterator[str]:
        """Yield what is wrong with the place of a line among the others, by its number and its phase."""
        last = self._last
        if line.phase == "import" and line.number == 1:
            self._begun += 1
            self._clock = (-math.inf, math.inf)
            self._blocks, self._first = 0, line
            last = self._last = None
            if self._begun > self._processes:
                yield "it began again"
        number = last.number if last and last.number is not None else 0
        self._lost = 0
        if line.number is None or line.number <= number:
            yield f"line {line.number} of its progress comes after line {number}"
        else:
            self._lost = line.number - number - 1
            self.lost += self._lost
            if self.lost > MAX_LOST_LINES:
                yield f"{self.lost} lines of its progress are missing"
        self._blocks += self._restarts(line)
        if self._blocks > self._most_blocks:
            yield f"it began phase {line.phase} {self._blocks} times"
        phase: Phase | None = last.phase if last else None
        if not may_follow(phase, line.phase, min(self._lost, MAX_LOST_LINES)):
            yield f"phase {line.phase} cannot follow {phase or 'the start'}"

    def _times(self, line: Progress, seen: SeenAt) -> Iterator[str]:
        """Yield what is wrong with the clock of a line. It has to run as this host's does, whatever its zero is.

        A line may be late, by as much as its rank may stall; it is never newer than the moment at which it was read.
        """
        # Until this line is seen, the rank stalls in the phase of its last line.
        phases = {line.phase, self._last.phase} if self._last else {line.phase}
        late = max(self._late.get(phase, 0.0) for phase in phases)
        low, high = self._clock
        self._clock = max(low, seen.after - late - line.monotonic), min(high, seen.by - line.monotonic)
        if self._clock[0] - self._clock[1] > CLOCK_SLACK_SECONDS >= low - high:
            apart = self._clock[0] - self._clock[1]
            more = f", beside the {late:.0f} s that it may be late" if late else ""
            yield f"its clock and that of the host are {apart:.0f} s apart since its first line{more}"
        if self._first is not None:
            told, most = line.monotonic - self._first.monotonic, seen.by - seen.started
            if told > most * (1 + CLOCK_AHEAD_SHARE) + CLOCK_AHEAD_SECONDS:
                self._first = None
                yield f"it reports {told:.1f} s, and was started {most:.1f} s before"

    def _restarts(self, line: Progress) -> bool:
        """Return whether a line begins a phase that may be repeated."""
        return line.phase in RESTARTING and line.done == 0

    def _to_compare(self, line: Progress) -> Progress | None:
        """Return the line before, if both lines count the same thing."""
        before = self._last
        if before is None or before.phase != line.phase or self._lost:
            return None
        restarts = self._restarts(line)
        # The last checkpoint of a model counts nothing.
        return None if restarts or (line.phase == "checkpoint" and line.total is None) else before

    def _next_model(self, line: Progress) -> bool:
        """Return whether the line of a step is that of a new model; the end of the model before may have been lost."""
        if line.phase not in ("first-step", "step") or not self.models:
            return line.phase in ("first-step", "step")
        model = self.models[-1]
        through = model.done == model.total or self._ended_early(model)
        return model.ended is not None or (self._lost > 0 and through and line.done < model.done)

    def _trained(self, line: Progress, seen: SeenAt) -> Iterator[str]:
        """Yield what is wrong with the steps and epochs that a line reports."""
        if line.phase in ("first-step", "step"):
            if self._next_model(line):
                self.models.append(ModelAccount(began=seen))
            yield from self._stepped(self.models[-1], line, seen)
        elif line.phase == "checkpoint" and line.total is not None and self.models:
            yield from self._stepped(self.models[-1], line, seen)
            yield from self._kept(self.models[-1], line)
        elif line.phase == "checkpoint" and line.total is None:
            if not self.models or self.models[-1].ended is not None:
                self.models.append(ModelAccount(first=self._resumable(len(self.models))))
            model = self.models[-1]
            model.ended = seen
            if model.began and model.done != model.total and not self._ended_early(model):
                yield f"it ended a model after step {model.done} of {model.total}"
            if not model.began and not model.first:
                yield "it ended a model without a step"
        if len(self.models) > len(self._resumed):
            yield f"it trains model {len(self.models)} of {len(self._resumed)}"

    def _ended_early(self, model: ModelAccount) -> bool:
        """Return whether a model may end where it did, which is after one of its epochs."""
        per_epoch = (model.total or 0) // self._epochs
        return self._may_end_early and per_epoch > 0 and model.done > 0 and model.done % per_epoch == 0

    def _resumable(self, number: int) -> int:
        return self._resumed[number] if number < len(self._resumed) else 0

    def _stepped(self, model: ModelAccount, line: Progress, seen: SeenAt) -> Iterator[str]:
        """Yield what is wrong with the number of steps, and with their speed."""
        if line.total is None or line.total <= 0 or line.total % self._epochs:
            yield f"{line.total} steps cannot be {self._epochs} epochs"
            return
        if model.total is None:
            resumable = self._resumable(len(self.models) - 1)
            possible = {0} if line.phase == "first-step" else {resumable or -1}
            if line.done not in possible and not self._lost:
                yield f"it began at step {line.done}"
            model.total, model.done, model.rated = line.total, line.done, (line.done, line.monotonic)
            # The first line of the model may be the lost one.
            model.first = line.done if not self._lost else resumable if line.done >= resumable else 0
        if line.total != model.total:
            yield f"{model.total} steps became {line.total}"
        if line.done < model.done:
            yield f"it went back from step {model.done} to {line.done}"
        if line.done > model.done:
            model.checkpoints = 0
        per_epoch = line.total // self._epochs
        begun = (model.epochs[-1].epoch if model.epochs else (model.first or 0) // per_epoch) + 1
        if line.done > (begun + self.lost) * per_epoch:
            yield f"step {line.done} comes before epoch {begun} was validated"
        done, then = model.rated
        if line.done - done >= RATED_STEPS:
            if line.monotonic - then < (line.done - done) * self._min_step:
                yield f"{line.done - done} steps in {line.monotonic - then:.4f} s, faster than any device"
            model.rated = line.done, line.monotonic
        model.done, model.last_step = max(line.done, model.done), seen
        if line.loss is not None and line.done <= COMPARED_STEPS:
            model.losses[line.done] = line.loss, line.gradient_norm

    def _kept(self, model: ModelAccount, line: Progress) -> Iterator[str]:
        """Yield what is wrong with a checkpoint: with the epoch that it ends, or too many of them for one step."""
        validated = self._last is not None and self._last.phase == "validate"
        ended = line.epoch_losses
        if ended is None:
            model.checkpoints += 1
            if model.checkpoints > MAX_CHECKPOINTS_OF_A_STEP:
                yield f"{model.checkpoints} checkpoints of step {line.done}"
            if validated and not self._lost:
                yield "it validated, but reports no losses of the epoch"
            return
        per_epoch = (model.total or 0) // self._epochs
        if line.done != ended.epoch * per_epoch:
            yield f"epoch {ended.epoch} of {per_epoch} steps ended at step {line.done}"
        before, rest = divmod(model.first or 0, max(per_epoch, 1))
        # A training may resume between the last step of an epoch and its validation.
        again = not model.epochs and before > 0 and not rest
        before = model.epochs[-1].epoch if model.epochs else before
        if not before + (not again) <= ended.epoch <= before + 1 + self.lost:
            yield f"epoch {ended.epoch} comes after epoch {before}"
        if not validated and not self._lost:
            yield f"epoch {ended.epoch} was not validated"
        model.epochs.append(ended)


def _numbers(line: Progress) -> Iterator[float]:
    epoch = line.epoch_losses
    told = (line.wall, line.monotonic, line.max_step_s, line.loss, line.gradient_norm)
    yield from (number for number in told if number is not None)
    if epoch is not None:
        yield epoch.train
        yield math.nan if epoch.validation is None else epoch.validation
