"""Compares the progress of a run, as it was seen from outside, with the claims of its result. Pure.

A breach of the contract between app and harness is not the device's fault: such a run has failed with `wrong-result`.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness.base.contract import CONTRACT
from harness.base.files.storage import size_of
from harness.evidence.app_reports.rank_account import NEVER_LATE, AskedWork, ModelAccount, RankAccount, SeenAt
from harness.evidence.files.app_files import Phase, Progress, Result, TimeKind, Training
from harness.evidence.files.run_files import Intent
from harness.matrix.strategies import RANK_PER_DEVICE

# Allowed difference between claimed and observed time. App and harness read their clocks up to a second apart; a slow
# disk adds to that, at the first line or at the last.
TIME_SLACK_SECONDS = 10.0
TIME_SLACK_SHARE = 0.02
# Relative difference allowed between numbers. Numbers that the app writes twice are equal to the last digit; numbers
# that it computes from others are nearly so.
ROUNDING = 1e-6
TRAINING_TIME: tuple[TimeKind, ...] = ("device", "loader", "copy", "bookkeeping")
# The first few breaches say what is wrong; the following ones are mostly their consequence.
MAX_BREACHES = 3


def asked_of(intent: Intent) -> AskedWork:
    """Return the work for which the progress of a run has to account, from the intent of the run."""
    options = intent.options
    return AskedWork(
        contract=intent.contract,
        nonce=intent.nonce,
        ranks=int(options.get("devices", 1)) if options.get("strategy") in RANK_PER_DEVICE else 1,
        epochs=int(options.get("epochs", 1)),
        processes=len(intent.commands),
        resumed=intent.resumed or (0,) * len(options.get("model", ("mlp",))),
        loop=str(options.get("loop", "plain")),
        may_end_early=bool(options.get("patience")),
        data_bytes=size_of(Path(intent.data.path)),
    )


class Accounting:
    """Takes the progress lines of a run as they are seen, then its result. A run of an older contract is not checked.

    `late`: how late a line may be written, in seconds by phase, as in `RankAccount`.
    `breaches`: the first three breaches, in the order in which they were found.
    """

    def __init__(self, expected: AskedWork, late: Mapping[Phase, float] = NEVER_LATE) -> None:
        self._expected = expected
        self._late = late
        self._ranks: dict[int, RankAccount] = {}
        self._verified = expected.contract == CONTRACT and expected.nonce is not None
        self.breaches: tuple[str, ...] = ()

    def saw(self, line: Progress, seen: SeenAt) -> None:
        """Check a progress line that was seen at the time `seen`."""
        if not self._verified:
            return
        if not 0 <= line.rank < self._expected.ranks:
            self._note(f"there is progress of rank {line.rank} of {self._expected.ranks}")
            return
        if line.rank not in self._ranks:
            self._ranks[line.rank] = RankAccount(self._expected, line.rank, self._late)
        for breach in self._ranks[line.rank].saw(line, seen):
            self._note(f"rank {line.rank}: {breach}")

    @property
    def steps(self) -> tuple[int, ...] | None:
        """The optimizer steps that progress accounts for, of each model in order; None where the run is not checked."""
        if not self._verified:
            return None
        first = self._ranks.get(0)
        return tuple(max(one.done, one.first or 0) for one in first.models) if first and not self.breaches else ()

    def close(self, result: Result | None) -> tuple[str, ...]:
        """Return all breaches, with those of the result of a run that has ended, if there is a result."""
        if self._verified and result is not None:
            for breach in self._against(result):
                self._note(breach)
        return self.breaches

    def _note(self, breach: str) -> None:
        if len(self.breaches) < MAX_BREACHES and breach not in self.breaches:
            self.breaches = (*self.breaches, breach)

    def _against(self, result: Result) -> Iterator[str]:
        """Yield what speaks against the result, beginning with signs that it is another run's."""
        if result.nonce != self._expected.nonce:
            yield "the result lacks the run's nonce" if result.nonce is None else "the result is of another run"
        if result.contract != self._expected.contract:
            yield f"the result follows contract {result.contract}, its app {self._expected.contract}"
        for rank in range(self._expected.ranks):
            account = self._ranks.get(rank)
            if account is None:
                yield f"rank {rank} reported no progress"
                continue
            if not account.finished:
                yield f"rank {rank}: it did not report its end"
            if len(account.models) != len(result.trainings):
                yield f"rank {rank}: it trained {len(account.models)} models, the result has {len(result.trainings)}"
            for model, told in zip(account.models, result.trainings, strict=False):
                for breach in _unaccounted(model, told, account.lost):
                    yield f"rank {rank}, {told.model_kind}: {breach}"
        if first := self._ranks.get(0):
            for model, told, resumed in zip(first.models, result.trainings, self._expected.resumed, strict=False):
                for breach in (*_other_losses(model, told), *_other_time(model, told, resumed=bool(resumed))):
                    yield f"{told.model_kind}: {breach}"


def _unaccounted(model: ModelAccount, told: Training, lost: int) -> Iterator[str]:
    """Yield the claims of the result about a model for which a rank's progress does not account."""
    per_epoch, total = told.steps_per_epoch, told.steps_per_epoch * told.epochs_requested
    if model.began is None:
        # The training of this model was complete before, and its file was only written again.
        if model.first != told.steps_done:
            yield f"progress has no step, the result {told.steps_done}"
        return
    if model.done != told.steps_done or model.total != total:
        yield f"progress ends at step {model.done} of {model.total}, the result has {told.steps_done} of {total}"
    done_before = (model.first or 0) // per_epoch if per_epoch else 0
    seen = {epoch.epoch for epoch in model.epochs}
    missing = [epoch.epoch for epoch in told.epoch_losses if epoch.epoch > done_before and epoch.epoch not in seen]
    if len(missing) > lost:
        yield f"progress does not show that epoch {missing[0]} was validated"
    if model.ended is None and not lost:
        yield "progress does not show its end"
    if model.first and model.first not in told.resumed_at:
        yield f"it resumed at step {model.first}, the result says {', '.join(map(str, told.resumed_at)) or 'nothing'}"


def _other_losses(model: ModelAccount, told: Training) -> Iterator[str]:
    """Yield where progress and result have different losses for the same step or epoch."""
    for step in told.first_steps:
        loss, norm = model.losses.get(step.step, (step.loss, step.gradient_norm))
        if not (_same(loss, step.loss) and _same(norm, step.gradient_norm)):
            yield f"step {step.step} had loss {loss:.6g} in its progress, {step.loss:.6g} in the result"
    epochs = {epoch.epoch: epoch for epoch in model.epochs}
    for epoch in told.epoch_losses:
        seen = epochs.get(epoch.epoch, epoch)
        pairs = ((getattr(seen, name), getattr(epoch, name)) for name in ("train", "validation", "inner"))
        if not all(_same(one, other) for one, other in pairs):
            had = f"{seen.train:.6g} and {seen.validation or math.nan:.6g}"
            yield f"epoch {epoch.epoch} had losses {had} in its progress, others in the result"


def _other_time(model: ModelAccount, told: Training, *, resumed: bool) -> Iterator[str]:
    """Yield where the time that the result claims differs from the time seen from outside.

    The claimed time is a sum over all kinds of time between the model's first line and its last. A resumed training
    also claims the time of the earlier runs.
    """
    if told.time is None:
        yield "the result does not say where its time went"
        return
    training, claimed = told.throughput.train_seconds, sum(told.time.values())
    of_training = sum(seconds for kind, seconds in told.time.items() if kind in TRAINING_TIME)
    if not math.isclose(training, of_training, rel_tol=ROUNDING):
        yield f"its {training:.1f} s of training are not those of its kinds of time"
    samples = told.samples.train * told.epochs_done
    if not math.isclose(told.throughput.samples_per_second * training, samples, rel_tol=ROUNDING):
        yield f"{told.throughput.samples_per_second:.6g} samples a second in {training:.1f} s are not {samples} samples"
    if model.began is None or model.last_step is None or model.ended is None:
        return
    least, most = model.last_step.after - model.began.by, model.ended.by - model.began.after
    slack = TIME_SLACK_SECONDS + TIME_SLACK_SHARE * most
    if claimed < least - slack or (claimed > most + slack and not resumed):
        yield f"it claims {claimed:.1f} s, and was seen to train for {max(least, 0.0):.1f} to {most:.1f} s"


def _same(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=ROUNDING)
