"""Finds hangs: two samples of the stacks confirm a suspicion. Load counts only where a program gives no stacks."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from harness.evidence.files.work_folder import MOST_RANKS
from harness.run.watch.python_stacks import StackSample, waits_for_others
from harness.run.watch.stalled_rank import describe_hang
from harness.run.watch.watchdog import SUSPECT_EARLIER_SECONDS, RankStall, Watchdog

# Pause between two samples, in seconds: the second one is taken when a suspect reaches its limit.
BETWEEN_SAMPLES_SECONDS = SUSPECT_EARLIER_SECONDS
# The same once a suspect is over its limit: on a loaded machine the sampling itself takes longer.
LEAST_BETWEEN_SAMPLES_SECONDS = 5.0
# Pause between two calls of `on_stall`, and the shortest stall that is reported, in seconds.
REPORT_STALL_SECONDS = 1.0
# While its GPU computes, a program that gives no stacks may stall for this many times its limit.
WHILE_COMPUTING = 3.0


@dataclass(frozen=True)
class Hang:
    """A confirmed hang: the reason, in words, and the last samples of the stacks, two where they could be taken."""

    why: str
    samples: tuple[StackSample, ...]


class Confirmation:
    """Confirms hangs; calls `take` for samples of the stacks while there are suspects."""

    def __init__(self, take: Callable[[], StackSample]) -> None:
        self._take = take
        self._samples: tuple[StackSample, ...] = ()

    def judge(self, suspects: Sequence[RankStall], late: Sequence[RankStall], now: float) -> Hang | None:
        """Return a hang once every late suspect is known to hang, or one of them has exceeded its cap.

        `suspects`: the ranks that are over their limit, or nearly.
        `late`: those that are over it.
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
            # Of a program of the user's own the limit is half of what the user allowed, so tell the seconds.
            return f"it writes no stacks itself, so that {2 * suspect.limit:.0f} s were allowed"
        if silent or self._samples[1:] == ():
            return None
        seen = {sample.fingerprint(suspect.rank) for sample in self._samples}
        # A rank that waits for others may show different stacks while it waits.
        waiting = all(_waits(sample, suspect.rank) for sample in self._samples)
        return "" if waiting or len(seen) == 1 else None


class HangWatch:
    """Finds the hang of one process group, from the suspects of its `watchdog` and the stacks that `take` samples.

    `on_stall` hears about once a second of the rank that advanced last, while none advances. `computes`: of what tells
    no stacks, whether it was seen to compute in the last so many seconds; None for our app. `ranks`: the number of
    ranks.
    """

    def __init__(
        self,
        watchdog: Watchdog,
        take: Callable[[], StackSample],
        on_stall: Callable[[RankStall], None],
        computes: Callable[[float], bool] | None = None,
        ranks: int = MOST_RANKS,
    ) -> None:
        self.watchdog, self._ranks = watchdog, ranks
        self._confirmation = Confirmation(take)
        self._on_stall = on_stall
        self._told = -math.inf
        self._computes = computes

    def report_stall(self, now: float) -> None:
        """Call `on_stall` with the rank that advanced last, at most once a second, if it has stalled that long."""
        if now - self._told < REPORT_STALL_SECONDS:
            return
        self._told = now
        nearest = min(self.watchdog.unfinished_ranks(now), key=lambda one: one.idle)
        if nearest.idle >= REPORT_STALL_SECONDS:
            self._on_stall(replace(nearest, limit=_whole_limit(nearest)) if self._computes else nearest)

    def find(self, now: float, catch_up: Callable[[], None]) -> Hang | None:
        """Return a confirmed hang, with the rank, the place and the reason in words; None where there is none.

        `catch_up`: reads the progress that was made while the last sample was taken.
        """
        late = self.watchdog.late(now)
        hang = self._confirmation.judge(self.watchdog.suspects(now), late, now)
        if hang is None:
            return None
        # Ranks may have advanced while the last sample was taken.
        catch_up()
        stalled = self.watchdog.stalled(now)
        if not stalled or self._is_computing(stalled):
            return None
        where = self.describe(stalled, hang.samples[-1])
        return replace(hang, why=f"{where} ({hang.why})" if hang.why else where)

    def describe(self, stalled: Sequence[RankStall], sample: StackSample) -> str:
        """Return in words which rank is stuck, since when and where."""
        return describe_hang(stalled, self.watchdog.ranks, sample, self._ranks)

    def _is_computing(self, stalled: Sequence[RankStall]) -> bool:
        """Return whether a program that gives no stacks is seen to compute, and may do so for a while yet."""
        if self._computes is None:
            return False
        limit = max(_whole_limit(one) for one in stalled)
        return min(one.idle for one in stalled) <= WHILE_COMPUTING * limit and self._computes(limit)


def _whole_limit(one: RankStall) -> float:
    """Return the seconds without an advance after which a rank that gives no stacks counts as hung."""
    return 2 * one.limit


def _pause(suspects: Sequence[RankStall], *, hurry: bool) -> float:
    """Return the pause between two samples, in seconds."""
    usual = LEAST_BETWEEN_SAMPLES_SECONDS if hurry else BETWEEN_SAMPLES_SECONDS
    return min(usual, *(one.limit / 3 for one in suspects))


def _waits(sample: StackSample, rank: int) -> bool:
    told = sample.of_rank(rank)
    return bool(told) and waits_for_others(told[0].main)
