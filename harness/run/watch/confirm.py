"""A suspected hang is confirmed by two samples of the stacks, whatever load the CPU and the GPU show."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.run.watch.limits import SUSPECT_EARLIER_SECONDS, RankStall
from harness.run.watch.python_stacks import StackSample, waits_for_others

# So that the second one is taken when the time of a suspect is up.
BETWEEN_SAMPLES_SECONDS = SUSPECT_EARLIER_SECONDS
# Once it is up: taking samples takes longer on a loaded machine.
LEAST_BETWEEN_SAMPLES_SECONDS = 5.0


@dataclass(frozen=True)
class Hang:
    """A confirmed hang: the reason, in words, and the last samples of the stacks, two where they could be taken."""

    why: str
    samples: tuple[StackSample, ...]


class Confirmation:
    """Takes samples by `take` while there are suspects."""

    def __init__(self, take: Callable[[], StackSample]) -> None:
        self._take = take
        self._samples: tuple[StackSample, ...] = ()

    def judge(self, suspects: Sequence[RankStall], late: Sequence[RankStall], now: float) -> Hang | None:
        """Return a hang once all are known to hang that are late, or one has made no progress for too long in any case.

        `late`: the suspects whose time is up.
        """
        if not suspects:
            self._samples = ()
            return None
        if not self._samples or now - self._samples[-1].taken >= _pause(suspects, hurry=bool(late)):
            self._samples = (*self._samples[-1:], self._take())
        if not late:
            return None
        reasons = [self._reason(one) for one in late]
        if None not in reasons:
            return Hang(next((reason for reason in reasons if reason), ""), self._samples)
        if any(one.idle > one.cap for one in late):
            return Hang("stacks change, but that is too long in any case", self._samples)
        return None

    def _reason(self, suspect: RankStall) -> str | None:
        """Return why a suspect hangs: empty where two samples show it, None where it may still advance."""
        silent = all(sample.fingerprint(suspect.rank) is None for sample in self._samples)
        if silent and suspect.idle > 2 * suspect.limit:
            return "it gives no stacks, and twice its limit is over"
        if silent or self._samples[1:] == ():
            return None
        seen = {sample.fingerprint(suspect.rank) for sample in self._samples}
        # A rank that waits for others moves within its waiting.
        waiting = all(_waits(sample, suspect.rank) for sample in self._samples)
        return "" if waiting or len(seen) == 1 else None


def _pause(suspects: Sequence[RankStall], *, hurry: bool) -> float:
    """Return the seconds between two samples."""
    usual = LEAST_BETWEEN_SAMPLES_SECONDS if hurry else BETWEEN_SAMPLES_SECONDS
    return min(usual, *(one.limit / 3 for one in suspects))


def _waits(sample: StackSample, rank: int) -> bool:
    told = sample.of_rank(rank)
    return bool(told) and waits_for_others(told[0].main)
