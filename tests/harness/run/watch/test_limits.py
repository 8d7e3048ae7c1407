import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.base.interrupts import GRACE_SECONDS
from harness.base.paths import CHECKOUT
from harness.evidence.app_reports.step_position import Position
from harness.evidence.files.app_files import Phase, Progress, Wait
from harness.matrix.cells import Matrix
from harness.run.verify import STALL_LIMITS
from harness.run.watch import collect, confirm, watch
from harness.run.watch.limits import (
    FACTOR,
    KNOWN_LIMITS,
    KNOWN_RESUME_LIMIT,
    LIMITS,
    MOST_RUNS,
    RESUME_LIMIT,
    RUNS_FOR_KNOWN_LIMITS,
    STEADY_STEPS,
    Limits,
    limits_of,
)
from harness.run.watch.watchdog import Watchdog
from harness.screen import display, live

OUTSIDE, WAITING, FORWARD, EXCHANGE = 0, 1, 2, 4
QUICK: Mapping[Wait, float] = {phase: 0.5 for phase in LIMITS}  # noqa: C420


def line(phase: Phase, done: int = 0, rank: int = 0) -> Progress:
    memory = {"rss_bytes": 1, "device_allocated_bytes": None, "device_reserved_bytes": None}
    values: dict[str, Any] = {
        "schema": 2, "wall": 0, "monotonic": 0, "rank": rank, "pid": 1, "phase": phase, "done": done, "total": None,
        "max_step_s": None, "loss": None, "gradient_norm": None, "memory": memory,
    }  # fmt: skip
    return Progress.model_validate(values)


def floors(phases: Mapping[Phase, float], **more: float) -> dict[str, float]:
    return {**{str(phase): seconds for phase, seconds in phases.items()}, **more}


class PositionedWatchdog(Watchdog):
    """A watchdog that takes the positions of the ranks from `positions`."""

    def __init__(self, limits: Limits) -> None:
        self.positions: dict[str, Position] = {}
        super().__init__(0, limits, lambda rank: self.positions.get(f"rank{rank}"))


def watchdog(limits: Limits | None = None) -> PositionedWatchdog:
    return PositionedWatchdog(limits or Limits.fixed({**LIMITS, "step": 10}))


def late_ranks(dog: PositionedWatchdog, now: float, **positions: Position) -> list[int]:
    dog.positions = positions
    return [one.rank for one in dog.late(now)]


def test_before_the_first_line_the_limit_of_import_holds() -> None:
    dog = watchdog()
    assert late_ranks(dog, LIMITS["import"]) == []
    assert late_ranks(dog, LIMITS["import"] + 1) == [0]


@pytest.mark.parametrize("phase", LIMITS)
def test_each_phase_has_its_own_limit(phase: Phase) -> None:
    dog = watchdog(Limits.fixed(LIMITS))
    dog.saw(line("first-step", 2), now=1)
    dog.saw(line(phase, 3), now=2)
    assert late_ranks(dog, 2 + LIMITS[phase]) == []
    (found,) = dog.late(3 + LIMITS[phase])
    assert (found.phase, found.done, found.idle) == (phase, 3, LIMITS[phase] + 1)


def test_only_an_advance_counts() -> None:
    dog = watchdog()
    dog.saw(line("first-step", 0), now=0)
    dog.saw(line("step", 1), now=0)
    dog.saw(line("step", 1), now=9)
    assert late_ranks(dog, 10.5) == [0]
    dog.saw(line("step", 2), now=11)
    assert late_ranks(dog, 20.5) == []


def test_the_stuck_rank_is_found_while_others_go_on() -> None:
    dog = watchdog()
    for second in range(30):
        dog.saw(line("step", second, rank=0), now=second)
        dog.saw(line("step", min(second, 12), rank=1), now=second)
    assert late_ranks(dog, 29.9) == [1]
    assert [one.rank for one in dog.stalled(29.9)] == [1]


def test_with_a_suspect_the_ranks_that_wait_for_it_are_reported() -> None:
    dog = watchdog()
    dog.saw(line("first-step", 0, rank=0), now=19.5)
    dog.saw(line("step", 41, rank=0), now=20.0)
    dog.saw(line("step", 40, rank=1), now=20.9)
    assert late_ranks(dog, 30) == []
    assert late_ranks(dog, 30.95) == [0, 1]
    assert [one.rank for one in dog.stalled(30.95)] == [0, 1]


def test_a_rank_that_waits_for_one_that_writes_a_checkpoint_is_no_suspect() -> None:
    dog = watchdog()
    dog.saw(line("checkpoint", 40, rank=0), now=100)
    dog.saw(line("step", 40, rank=1), now=100.4)
    assert late_ranks(dog, 160) == []
    assert late_ranks(dog, 100.5 + LIMITS["checkpoint"]) == [0, 1]


def test_a_rank_that_goes_on_is_no_excuse_for_one_that_does_not() -> None:
    dog = watchdog()
    dog.saw(line("step", 40, rank=1), now=100)
    dog.saw(line("checkpoint", 40, rank=0), now=108)
    assert late_ranks(dog, 111) == [1]


@pytest.mark.parametrize("seconds", [20, 60, 200])
def test_a_rank_that_waited_for_a_checkpoint_is_no_suspect_until_the_one_that_wrote_it_is(seconds: int) -> None:
    dog = after_a_checkpoint(seconds)
    behind, ahead = Position(40, OUTSIDE), Position(41, EXCHANGE)
    assert late_ranks(dog, seconds, rank0=behind, rank1=ahead) == []
    dog.saw(line("step", 40, rank=0), now=seconds)
    for position in (behind, Position(41, WAITING), Position(41, FORWARD)):
        for later in (0, 1, 9.9):
            assert late_ranks(dog, seconds + later, rank0=position, rank1=ahead) == []
    assert late_ranks(dog, seconds + 10.1, rank0=Position(41, FORWARD), rank1=ahead) == [0, 1]
    dog.saw(line("step", 41, rank=0), now=seconds + 5)
    dog.saw(line("step", 41, rank=1), now=seconds + 5)
    assert late_ranks(dog, seconds + 15, rank0=behind, rank1=ahead) == []


@pytest.mark.parametrize("seconds", [20, 60, 200])
def test_ranks_that_meet_after_the_last_checkpoint_are_no_suspects(seconds: int) -> None:
    dog = after_a_checkpoint(seconds)
    dog.saw(line("step", 40, rank=0), now=seconds)
    same = Position(40, OUTSIDE)
    assert late_ranks(dog, seconds + 9, rank0=same, rank1=same) == []
    assert late_ranks(dog, seconds + 10.1, rank0=same, rank1=same) == [0, 1]


def test_a_rank_that_hangs_while_another_writes_a_checkpoint_is_found_once_that_one_is_ahead() -> None:
    dog = after_a_checkpoint(60)
    dog.saw(line("step", 40, rank=0), now=60)
    assert late_ranks(dog, 61, rank0=Position(41, EXCHANGE), rank1=Position(41, FORWARD)) == [1]


def after_a_checkpoint(seconds: float) -> PositionedWatchdog:
    """Return a watchdog of two ranks that made step 40: from 0 on rank 0 writes a checkpoint, and rank 1 continues."""
    dog = watchdog(Limits({**Limits.fixed(LIMITS).phases, "resume": 10, "checkpoint": 2 * seconds}, steady_step=10))
    for rank in (0, 1):
        dog.saw(line("first-step", 0, rank), now=-4)
        dog.saw(line("step", 1, rank), now=-3)
        dog.saw(line("step", 40, rank), now=-2)
        dog.saw(line("checkpoint", 40, rank), now=0)
    dog.saw(line("step", 40, rank=1), now=0.1)
    return dog


def test_a_rank_that_validates_slower_is_a_reason_to_wait_and_one_that_is_ahead_is_none() -> None:
    dog = watchdog(Limits.fixed({**LIMITS, "validate": 10}))
    dog.saw(line("validate", 100, rank=1), now=0)
    for second in range(20):
        dog.saw(line("validate", 2 * second, rank=0), now=second)
    same = Position(40, OUTSIDE)
    assert late_ranks(dog, 19.5, rank0=same, rank1=same) == []
    dog.saw(line("validate", 101, rank=0), now=20)
    assert late_ranks(dog, 20.5, rank0=same, rank1=same) == [1]


@pytest.mark.parametrize(("later", "late"), [(2, []), (5, [0])])
def test_lines_a_second_apart_make_no_rank_late_that_waits_for_another(later: int, late: list[int]) -> None:
    dog = watchdog()
    for rank in (0, 1):
        dog.saw(line("first-step", 0, rank), now=8)
    dog.saw(line("step", 1), now=10)
    dog.saw(line("validate", 1, rank=1), now=10 + later)
    assert late_ranks(dog, 32) == late


def test_a_rank_that_ended_early_is_no_excuse_for_those_that_wait_for_it() -> None:
    dog = watchdog()
    dog.saw(line("first-step", 0, rank=0), now=-2)
    dog.saw(line("step", 40, rank=0), now=0)
    dog.saw(line("teardown", 40, rank=1), now=0)
    assert late_ranks(dog, 10.1, rank0=Position(41, EXCHANGE), rank1=Position(40, OUTSIDE)) == [0]


def test_a_rank_that_is_through_may_wait_for_the_others() -> None:
    dog = watchdog(Limits.fixed({**LIMITS, "teardown": 5, "checkpoint": 60}))
    dog.saw(line("teardown", rank=1), now=10)
    dog.saw(line("checkpoint", rank=0), now=12)
    assert late_ranks(dog, 72) == []
    assert late_ranks(dog, 72.1) == [0]
    dog.saw(line("teardown", rank=0), now=73)
    assert late_ranks(dog, 78) == []
    assert late_ranks(dog, 78.1) == [0, 1]


def stepping(limits: Limits, steps: int) -> PositionedWatchdog:
    """Return a watchdog of one rank that made `steps` steps of one second each from 0 on."""
    dog = watchdog(limits)
    for second in range(steps + 1):
        dog.saw(line("step" if second else "first-step", second), now=second)
    return dog


def test_a_hang_is_reported_after_30_s_once_steps_are_steady() -> None:
    dog = stepping(limits_of([], "cpu"), STEADY_STEPS)
    assert late_ranks(dog, STEADY_STEPS + 30) == []
    assert late_ranks(dog, STEADY_STEPS + 30.1) == [0]
    dog = stepping(limits_of([], "cpu"), STEADY_STEPS - 1)
    assert late_ranks(dog, STEADY_STEPS - 1 + LIMITS["step"]) == []
    assert late_ranks(dog, STEADY_STEPS - 0.9 + LIMITS["step"]) == [0]


def test_quick_steps_of_which_no_line_tells_count() -> None:
    dog = watchdog(limits_of([], "cpu"))
    dog.saw(line("first-step", 0), now=0)
    dog.saw(line("step", 1), now=1)
    dog.saw(line("validate", 0), now=2)
    dog.saw(line("checkpoint", 29), now=3)
    dog.saw(line("step", 29), now=4)
    dog.saw(line("step", 34), now=5)
    assert late_ranks(dog, 35) == []
    assert late_ranks(dog, 35.1) == [0]


def test_a_rank_is_suspected_before_its_time_is_up() -> None:
    dog = stepping(limits_of([QUICK] * 5, "cpu"), 5)
    assert dog.suspects(25) == ()
    assert [one.rank for one in dog.suspects(25.1)] == [0]
    assert dog.late(25.1) == ()


def test_slow_steps_get_three_times_as_long_as_the_longest() -> None:
    dog = watchdog(limits_of([QUICK] * 5, "cpu"))
    dog.saw(line("first-step", 0), now=0)
    dog.saw(line("step", 1), now=12)
    assert late_ranks(dog, 48) == []
    assert late_ranks(dog, 48.1) == [0]
    dog.saw(line("step", 2), now=28)
    assert late_ranks(dog, 76) == []
    assert late_ranks(dog, 76.1) == [0]


def test_uneven_steps_are_no_hang_whether_runs_are_known_or_not() -> None:
    histories: list[list[Mapping[Wait, float]]] = [[], [QUICK] * 5, [{"step": 30.0}] * 5]
    for history in histories:
        dog, now = watchdog(limits_of(history, "cpu")), 0.0
        dog.saw(line("first-step", 0), now)
        for step in range(1, 40):
            seconds = 29.5 if step % 3 == 0 else 0.05
            assert late_ranks(dog, now + seconds) == []
            now += seconds
            dog.saw(line("step", step), now)


def test_a_cold_cache_of_kernels_is_no_hang_after_fast_runs() -> None:
    dog = watchdog(limits_of([QUICK] * 6, "cuda"))
    dog.saw(line("first-step", 0), now=0)
    assert late_ranks(dog, 150) == []
    resumed = watchdog(limits_of([QUICK] * 6, "cuda"))
    resumed.saw(line("features", 0), now=0)
    resumed.saw(line("step", 40), now=1)
    assert late_ranks(resumed, 151, rank0=Position(41, FORWARD)) == []


def test_on_a_gpu_steps_are_steady_after_the_first_validation_or_once_five_runs_are_known() -> None:
    new, known = limits_of([], "cuda"), limits_of([QUICK] * 5, "cuda")
    for limits, before in ((new, LIMITS["step"]), (known, 30)):
        dog = stepping(limits, 21)
        assert late_ranks(dog, 21 + before) == []
        assert late_ranks(dog, 21.1 + before) == [0]
        dog.saw(line("validate", 0), now=22)
        dog.saw(line("step", 22), now=23)
        dog.saw(line("step", 23), now=24)
        assert late_ranks(dog, 54) == []
        assert late_ranks(dog, 54.1) == [0]


def test_the_first_batch_of_an_epoch_may_have_to_wait_for_new_workers() -> None:
    dog = watchdog(limits_of([QUICK] * 5, "cpu"))
    dog.saw(line("first-step", 0), now=-150)
    dog.saw(line("step", 1), now=-100)
    dog.saw(line("step", 10), now=-99)
    dog.saw(line("step", 40), now=-98)
    dog.saw(line("checkpoint", 40), now=-97)
    dog.saw(line("step", 40), now=0)
    assert late_ranks(dog, 100) == []
    assert late_ranks(dog, 100, rank0=Position(41, WAITING)) == []
    assert late_ranks(dog, 100, rank0=Position(41, FORWARD)) == [0]
    assert late_ranks(dog, 100, rank0=Position(41, OUTSIDE)) == [0]
    assert late_ranks(dog, 100, rank0=Position(42, WAITING)) == [0]
    assert late_ranks(dog, 100, rank0=Position(40, OUTSIDE)) == []
    assert late_ranks(dog, 150) == []
    assert late_ranks(dog, 150.1, rank0=Position(41, WAITING)) == [0]
    dog.saw(line("step", 41), now=151)
    dog.saw(line("step", 42), now=152)
    assert late_ranks(dog, 182) == []
    assert late_ranks(dog, 182.1) == [0]
    dog.saw(line("validate", 0), now=183)
    dog.saw(line("step", 42), now=184)
    assert late_ranks(dog, 184 + 3 * 151) == []
    assert late_ranks(dog, 185 + 3 * 151) == [0]


def test_a_resumed_training_has_its_first_step_still_to_make() -> None:
    for history in ([], [QUICK] * 5):
        dog = watchdog(limits_of(history, "cpu"))
        dog.saw(line("features", 0), now=0)
        dog.saw(line("step", 40), now=1)
        assert late_ranks(dog, 1 + LIMITS["first-step"]) == []
        assert late_ranks(dog, 2 + LIMITS["first-step"]) == [0]


def test_a_hang_in_a_steady_step_is_reported_as_soon_after_a_resume() -> None:
    dog = watchdog(limits_of([QUICK] * 5, "cpu"))
    dog.saw(line("features", 0), now=0)
    dog.saw(line("step", 40), now=1)
    dog.saw(line("step", 41), now=2)
    dog.saw(line("step", 42), now=3)
    assert late_ranks(dog, 33) == []
    assert late_ranks(dog, 33.1) == [0]


def test_what_was_not_looked_at_is_no_stall() -> None:
    dog = stepping(limits_of([QUICK] * 5, "cpu"), 5)
    dog.discount_unwatched(100)
    assert late_ranks(dog, 135) == []
    assert late_ranks(dog, 135.1) == [0]
    assert dog.longest_stall(115)["step"] == 10


def test_a_rank_that_advanced_while_nobody_could_look_is_at_work_still() -> None:
    dog = watchdog()
    dog.saw(line("step", 5), now=10)
    dog.discount_unwatched(1)
    assert [(one.rank, one.idle) for one in dog.unfinished_ranks(10)] == [(0, -1)]


def test_a_second_model_has_its_own_first_steps_and_its_own_first_validation() -> None:
    dog = watchdog(limits_of([], "cuda"))
    first_model(dog)
    assert late_ranks(dog, 40 + LIMITS["first-step"]) == []
    assert late_ranks(dog, 41 + LIMITS["first-step"]) == [0]
    dog.saw(line("step", 1), now=50)
    dog.saw(line("step", 30), now=51)
    assert late_ranks(dog, 51 + LIMITS["step"]) == []
    assert late_ranks(dog, 52 + LIMITS["step"]) == [0]
    dog.saw(line("validate", 0), now=52)
    dog.saw(line("step", 30), now=53)
    dog.saw(line("step", 31), now=54)
    assert late_ranks(dog, 84) == []
    assert late_ranks(dog, 84.1) == [0]


def test_the_second_step_of_a_second_model_may_take_three_times_as_long_as_its_first() -> None:
    dog = watchdog(limits_of([QUICK] * 5, "cpu"))
    first_model(dog)
    dog.saw(line("step", 1), now=60)
    assert late_ranks(dog, 120) == []
    assert late_ranks(dog, 120.1) == [0]


def test_slow_workers_of_one_model_are_no_excuse_for_those_of_the_next() -> None:
    dog = watchdog(limits_of([{}] * RUNS_FOR_KNOWN_LIMITS, "cpu"))
    now = 0
    for workers in (100, KNOWN_RESUME_LIMIT + 1):
        for phase, done, seconds in (("first-step", 0, 2), ("step", 1, 2), ("validate", 1, 2), ("step", 1, workers)):
            dog.saw(line(phase, done), now)  # type: ignore[arg-type]
            now += int(seconds)
        assert late_ranks(dog, now) == ([0] if workers > KNOWN_RESUME_LIMIT else [])
        dog.saw(line("step", 2), now)


def test_slow_steps_of_one_model_are_no_excuse_for_the_next_and_yet_are_kept() -> None:
    dog = watchdog(limits_of([QUICK] * 5, "cpu"))
    dog.saw(line("first-step", 0), now=0)
    dog.saw(line("step", 1), now=90)
    dog.saw(line("step", 2), now=120)
    dog.saw(line("checkpoint", 0), now=121)
    dog.saw(line("first-step", 0), now=122)
    dog.saw(line("step", 1), now=123)
    assert late_ranks(dog, 153.1) == [0]
    dog.saw(line("step", 2), now=124)
    assert late_ranks(dog, 154.1) == [0]
    assert dog.longest_stall(125) == {"import": 0, "first-step": 90, "step": 30, "checkpoint": 1}


def first_model(dog: Watchdog) -> None:
    """Show the watchdog a first model with quick steps, and the first step of the next model at 40."""
    phases: list[tuple[Phase, int]] = [
        ("first-step", 0), ("step", 1), ("step", 2), ("validate", 0), ("checkpoint", 2), ("step", 2), ("checkpoint", 0),
    ]  # fmt: skip
    for number, (phase, done) in enumerate(phases):
        dog.saw(line(phase, done), now=30 + number)
    dog.saw(line("first-step", 0), now=40)


def test_until_five_runs_are_known_limits_are_never_below_the_loose_ones() -> None:
    few, enough = limits_of([QUICK] * 4, "cpu"), limits_of([QUICK] * 5, "cpu")
    assert few.phases == floors(LIMITS, resume=RESUME_LIMIT)
    assert (few.phases["import"], few.phases["first-step"]) == (180, 300)
    assert enough.phases == floors(KNOWN_LIMITS, resume=KNOWN_RESUME_LIMIT)


@given(
    st.lists(st.dictionaries(st.sampled_from(sorted(LIMITS)), st.floats(0, 1e5)), max_size=8),
    st.sampled_from(["cpu", "cuda"]),
)
def test_no_phase_gets_less_than_three_times_what_it_ever_took(history: list[dict[Wait, float]], device: Any) -> None:
    limits = limits_of(history, device)
    for run in history:
        assert all(limits.phases[phase] >= 3 * seconds for phase, seconds in run.items())
        assert limits.steady_step >= 3 * run.get("step", 0)
    assert all(limits.phases[phase] >= KNOWN_LIMITS[phase] for phase in LIMITS)


def test_the_longest_stall_is_kept_by_phase() -> None:
    dog = watchdog()
    dog.saw(line("first-step", 0), now=4)
    dog.saw(line("step", 1), now=7)
    dog.saw(line("step", 2), now=9)
    dog.saw(line("step", 3, rank=1), now=9)
    dog.saw(line("step", 3), now=10)
    dog.saw(line("checkpoint", 3), now=11)
    dog.saw(line("step", 3), now=12)
    dog.saw(line("step", 4), now=17)
    dog.saw(line("teardown", 4, rank=1), now=12)
    dog.saw(line("teardown", 4), now=18)
    assert dog.longest_stall(20) == {
        "import": 4,
        "first-step": 3,
        "step": 3,
        "resume": 5,
        "checkpoint": 1,
        "teardown": 8,
    }


def test_what_stands_for_much_longer_than_it_may_has_no_excuse() -> None:
    dog = watchdog(limits_of([QUICK] * 5, "cpu"))
    dog.saw(line("step", 1), now=0)
    dog.saw(line("step", 2), now=1)
    (found,) = dog.late(100)
    assert (found.limit, found.cap) == (KNOWN_LIMITS["step"], LIMITS["step"])
    dog.saw(line("features", 0), now=101)
    (found,) = dog.late(500)
    assert (found.limit, found.cap) == (KNOWN_LIMITS["features"], LIMITS["features"])


def test_what_is_known_makes_no_limit_looser_and_a_step_after_a_pause_has_longer_than_any_other() -> None:
    assert all(KNOWN_LIMITS[phase] <= LIMITS[phase] for phase in LIMITS)
    assert KNOWN_LIMITS["step"] <= KNOWN_RESUME_LIMIT <= RESUME_LIMIT
    assert LIMITS["step"] <= RESUME_LIMIT


def test_limits_are_in_seconds_and_found_in_time(matrix: Matrix) -> None:
    others = [seconds for phase, seconds in KNOWN_LIMITS.items() if phase != "step"]
    assert min(others) >= 2 * KNOWN_LIMITS["step"], "a disk that answers at the second try, 30 s later, is no hang"
    assert all(STALL_LIMITS[phase] >= KNOWN_LIMITS[phase] for phase in LIMITS), (
        "a run that is verified is no hang sooner"
    )
    shortest = min(workload.time_limit for workload in matrix.workloads.values())
    assert max(*LIMITS.values(), RESUME_LIMIT) <= shortest, "a run is over before it is found to hang"
    assert RUNS_FOR_KNOWN_LIMITS <= MOST_RUNS, "so many are never looked at"
    options = (CHECKOUT / "app/vpoc/commands/training_options.py").read_text(encoding="utf-8")
    timeout = re.search(r'"--rank-timeout",\n.*\n +default=([\d.]+)', options)
    assert timeout
    waits: list[Phase] = ["first-step", "step", "validate", "checkpoint"]
    assert max(*(LIMITS[phase] for phase in waits), RESUME_LIMIT) < float(timeout[1]), (
        "the other ranks give up before a rank is found to hang"
    )


def test_the_limits_are_documented() -> None:
    page = (CHECKOUT / "docs" / "watching.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z-]+)` \| (\d+) \| (\d+) \|$", page, re.MULTILINE)
    assert {phase: (int(loose), int(known)) for phase, loose, known in rows} == {
        phase: (LIMITS[phase], KNOWN_LIMITS[phase]) for phase in LIMITS
    }
    page = " ".join(page.split())
    assert RUNS_FOR_KNOWN_LIMITS == 5, "the page, CONTRIBUTING and comments say five"
    said = (
        f"two samples of its Python stacks, {confirm.BETWEEN_SAMPLES_SECONDS:.0f} s apart",
        f"max(floor, {FACTOR:.0f} x the longest known stall)",
        f"a step may stall {KNOWN_LIMITS['step']:.0f} s after {STEADY_STEPS} steps",
        f"may take {RESUME_LIMIT:.0f} s ({KNOWN_RESUME_LIMIT:.0f} s once five runs are known)",
        f"shows a stall after {live.SHORTEST_STALL_SHOWN_SECONDS:.0f} s, a log after {display.STALL_SECONDS:.0f},",
        f"a stall of more than {watch.STUCK_SECONDS:.0f} s saves",
        f"in the run folder, within {collect.SECONDS:.0f} s",
        f"TERM, {GRACE_SECONDS:.0f} s, KILL",
        f"what still ran {watch.SETTLE_SECONDS:.0f} s after",
    )
    assert [words for words in said if words not in page] == []


def test_steps_that_no_line_names_count_by_the_position() -> None:
    dog = watchdog(limits_of([], "cpu"))
    dog.saw(line("first-step"), 1)
    dog.saw(line("step", 1), 2)
    dog.saw(line("step", 15), 3)
    assert late_ranks(dog, 3 + 31, rank0=Position(19, OUTSIDE)) == []
    assert late_ranks(dog, 3 + 31, rank0=Position(20, OUTSIDE)) == [0]
