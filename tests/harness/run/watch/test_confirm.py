import re
from collections.abc import Sequence

import pytest

from harness.base.paths import CHECKOUT
from harness.evidence.app_reports.step_position import Position
from harness.run.watch.confirm import Confirmation, Hang, HangWatch
from harness.run.watch.limits import KNOWN_LIMITS, LIMITS, limits_of
from harness.run.watch.python_stacks import ProcessStacks, StackSample
from harness.run.watch.watchdog import RankStall, Watchdog
from tests.harness.run.watch.test_limits import line

COLLECTIVE = "/x/torch/distributed/distributed_c10d.py"
LIMIT = KNOWN_LIMITS["step"]


def told(line: int, rank: int = 0, file: str = "/x/vpoc/training/loop.py") -> ProcessStacks:
    text = f'Current thread 0x00007f (most recent call first):\n  File "{file}", line {line} in somewhere\n'
    return ProcessStacks(100 + rank, rank, text)


class Samples:
    """A source of stack samples: each call returns the next of `samples`, and the last one again after that."""

    def __init__(self, *samples: Sequence[ProcessStacks], steps: Sequence[int] = (5,)) -> None:
        self._samples, self._steps = samples, steps
        self.now, self.taken = 0.0, 0
        self.seconds = 0.0

    def __call__(self) -> StackSample:
        stacks = self._samples[min(self.taken, len(self._samples) - 1)]
        step = self._steps[min(self.taken, len(self._steps) - 1)]
        self.taken += 1
        self.now += self.seconds
        return StackSample(self.now, 0, (), tuple(stacks), {0: Position(step, 2), 1: Position(5, 4)})


def judge(confirmation: Confirmation, stalls: Sequence[RankStall], now: float) -> Hang | None:
    late = [one for one in stalls if one.idle > one.limit]
    return confirmation.judge([one for one in stalls if one.suspected], late, now)


def until_hung(samples: Samples, ranks: int = 1, seconds: float = 3 * LIMITS["step"]) -> tuple[float, str] | None:
    """Return when ranks that advanced at 0 are judged to hang, in seconds, and why; None: not within `seconds`."""
    confirmation = Confirmation(samples)
    while samples.now < seconds:
        now = samples.now = round(samples.now + 0.1, 1)
        stalls = [RankStall(rank, "step", 5, now, LIMIT) for rank in range(ranks)]
        if hang := judge(confirmation, stalls, now):
            return samples.now, hang.why
    return None


def test_two_samples_ten_seconds_apart_that_do_not_differ_confirm_a_hang_when_the_time_is_up() -> None:
    samples = Samples([told(1)])
    assert until_hung(samples) == (LIMIT + 0.1, "")
    assert samples.taken == 2


def test_a_hang_is_found_soon_though_samples_take_long() -> None:
    samples = Samples([told(1)])
    samples.seconds = 4.0
    hung = until_hung(samples)
    assert hung is not None
    assert hung[0] < LIMIT + 5


def test_no_hang_is_reported_before_the_time_is_up() -> None:
    samples = Samples([told(1)])
    confirmation = Confirmation(samples)
    for second in range(21, 30):
        samples.now = 10 * second
        assert judge(confirmation, [RankStall(0, "step", 5, second, LIMIT)], samples.now) is None
    assert judge(confirmation, [RankStall(0, "step", 5, 30.1, LIMIT)], samples.now) is not None


def test_a_hang_of_steady_steps_is_found_as_soon_as_the_readme_promises() -> None:
    page = " ".join((CHECKOUT / "README.md").read_text(encoding="utf-8").split())
    promised = re.search(r"finds a hang in a steady step within (\d+) s", page)
    samples = Samples([told(1)])
    samples.seconds = 4.0
    hung = until_hung(samples)
    assert promised
    assert hung is not None
    assert hung[0] < int(promised[1])


def test_a_hang_keeps_its_two_last_samples() -> None:
    samples = Samples([told(1)], [told(2)])
    confirmation = Confirmation(samples)
    hang = None
    while hang is None:
        samples.now += 1
        hang = judge(confirmation, [RankStall(0, "import", 5, samples.now + 60, 60)], samples.now)
    assert [sample.taken for sample in hang.samples] == [6, 11]


def test_changing_stacks_are_no_hang_until_it_takes_too_long_in_any_case() -> None:
    samples = Samples(*[[told(number)] for number in range(100)])
    hung = until_hung(samples)
    assert hung is not None
    assert hung == (LIMITS["step"] + 0.1, "stacks change, but that is too long in any case")


def test_a_step_that_is_made_between_two_samples_is_no_hang() -> None:
    hung = until_hung(Samples([told(1)], steps=range(100)))
    assert hung is not None
    assert hung[0] > 60


def test_progress_clears_a_suspicion() -> None:
    samples = Samples([told(1)])
    confirmation = Confirmation(samples)
    late = [RankStall(0, "step", 5, LIMIT + 1, LIMIT)]
    assert judge(confirmation, late, 0) is None
    samples.now = 4
    assert judge(confirmation, [], 4) is None
    samples.now = 5
    assert judge(confirmation, late, 5) is None
    samples.now = 9
    assert judge(confirmation, late, 9) is None
    samples.now = 10
    assert judge(confirmation, late, 10) is not None


def test_without_stacks_twice_the_limit_is_waited_for() -> None:
    why = f"it writes no stacks itself, so that {2 * LIMIT:.0f} s were allowed"
    assert until_hung(Samples([])) == (2 * LIMIT + 0.1, why)


def test_a_rank_that_waits_for_others_may_move_within_its_waiting() -> None:
    waiting = [[told(1), told(number, 1, COLLECTIVE)] for number in range(100)]
    hung = until_hung(Samples(*waiting), ranks=2)
    assert hung is not None
    assert hung[0] < LIMIT + 1


def test_a_rank_that_works_while_another_waits_for_it_is_no_hang() -> None:
    working = [[told(number), told(1, 1, COLLECTIVE)] for number in range(100)]
    hung = until_hung(Samples(*working), ranks=2)
    assert hung is not None
    assert hung[0] > 60


def test_a_tight_limit_is_confirmed_as_soon() -> None:
    samples = Samples([told(1)])
    confirmation = Confirmation(samples)
    assert judge(confirmation, [RankStall(0, "step", 5, 1.5, 2)], 0) is None
    samples.now = 0.7
    assert judge(confirmation, [RankStall(0, "step", 5, 2.1, 2)], 0.7) is not None


def test_one_rank_beyond_its_cap_is_enough() -> None:
    samples = Samples([told(1), told(1, 1)], [told(2), told(2, 1)], [told(3), told(3, 1)])
    confirmation = Confirmation(samples)
    stalls = [RankStall(0, "step", 5, LIMITS["step"] + 1, LIMIT), RankStall(1, "step", 5, LIMIT + 1, LIMIT)]
    assert judge(confirmation, stalls[1:], 0) is None
    samples.now = 10
    hang = judge(confirmation, stalls, 10)
    assert hang is not None
    assert hang.why == "stacks change, but that is too long in any case"


@pytest.mark.parametrize("advances", [False, True])
def test_progress_that_is_made_during_the_last_sample_is_no_hang(advances: bool) -> None:
    dog = Watchdog(0, limits_of([], "cpu"), lambda _: None)
    samples = Samples([told(1)])
    hangs = HangWatch(dog, samples, lambda _: None)
    assert hangs.find(LIMITS["import"] - 5, lambda: None) is None
    samples.now = now = LIMITS["import"] + 1
    hang = hangs.find(now, lambda: dog.saw(line("init"), now) if advances else None)
    assert (hang is None) == advances
