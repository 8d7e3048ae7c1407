from collections.abc import Callable, Iterable
from typing import Any

import pytest

from harness.evidence.app_reports.memory import MIN_SECONDS, SAMPLE_SECONDS, MemoryHistory, growth
from harness.evidence.files.app_files import Phase, Progress

GB = 10**9
HOUR = 3600

Bytes = Callable[[float], float]


def line(
    seconds: float, rss: float, reserved: float | None = None, phase: Phase = "step", rank: int = 0, pid: int = 1
) -> Progress:
    kept = None if reserved is None else int(reserved)
    memory = {"rss_bytes": int(rss), "device_allocated_bytes": kept, "device_reserved_bytes": kept}
    values: dict[str, Any] = {
        "schema": 2, "wall": 0, "monotonic": seconds, "rank": rank, "pid": pid, "phase": phase, "done": 0,
        "total": None, "max_step_s": None, "loss": None, "gradient_norm": None, "memory": memory,
    }  # fmt: skip
    return Progress.model_validate(values)


def training(
    seconds: float, rss: Bytes, reserved: Bytes | None = None, start: float = 0, **whose: int
) -> list[Progress]:
    """Return the lines of one model's training, one every five seconds."""
    times = [start + n * 5 for n in range(int(seconds // 5) + 1)]
    return [
        line(t, rss(t - start), reserved and reserved(t - start), "first-step" if t == start else "step", **whose)
        for t in times
    ]


def grown(lines: Iterable[Progress]) -> str | None:
    history = MemoryHistory()
    for one in lines:
        history.saw(one)
    return growth(history.samples)


def steady(_: float) -> float:
    return GB


def leaking(seconds: float) -> float:
    return GB + seconds / HOUR * GB


def test_steady_memory_is_not_growth() -> None:
    assert grown(training(HOUR, steady, steady)) is None


def test_a_leak_is_reported_with_its_rank_and_size() -> None:
    told = grown(training(HOUR, leaking))
    assert told is not None
    assert told.startswith("rank 0: resident memory rose from 1.37 GB to 1.88 GB")
    assert "60 min" in told


def test_a_pool_on_the_device_that_grows_is_a_leak_too() -> None:
    told = grown(training(HOUR, steady, leaking))
    assert told is not None
    assert "reserved device memory rose" in told


@pytest.mark.parametrize(("rise", "expected"), [(50e6, False), (110e6, False), (140e6, True)])
def test_five_percent_and_64_mib_are_allowed(rise: float, expected: bool) -> None:
    def rss(seconds: float) -> float:
        return GB + (rise if seconds > HOUR * 0.6 else 0)

    assert (grown(training(HOUR, rss)) is not None) is expected


def test_warming_up_is_not_growth() -> None:
    assert grown(training(HOUR, lambda seconds: GB * min(3, 1 + seconds / 400))) is None


def test_peaks_are_not_growth() -> None:
    assert grown(training(HOUR, lambda seconds: GB * (4 if seconds > HOUR / 2 and seconds % 60 < 20 else 1))) is None


def test_less_than_half_an_hour_says_nothing() -> None:
    assert grown(training(MIN_SECONDS - 10, lambda seconds: leaking(seconds * 10))) is None
    assert grown(training(MIN_SECONDS + 10, lambda seconds: leaking(seconds * 10))) is not None


def test_a_larger_model_after_a_smaller_one_is_not_growth() -> None:
    small, large = training(HOUR, steady), training(HOUR, lambda _: 3 * GB, start=HOUR + 10)
    assert grown([*small, *large]) is None
    assert grown([*small, *training(HOUR, leaking, start=HOUR + 10)]) is not None


def test_a_process_that_resumed_begins_again() -> None:
    before = training(HOUR, steady, pid=1)
    after = [line(HOUR + n * 5, 2 * GB, phase="step", pid=2) for n in range(400)]
    assert grown([*before, *after]) is None


def test_the_rank_that_grows_is_named_among_others() -> None:
    pairs = zip(training(HOUR, steady), training(HOUR, leaking, rank=1, pid=2), strict=True)
    told = grown(one for pair in pairs for one in pair)
    assert told is not None
    assert told.startswith("rank 1: ")


def test_only_training_counts_and_only_now_and_then() -> None:
    history = MemoryHistory()
    elsewhere: tuple[Phase, ...] = ("import", "init", "data", "features", "teardown")
    for phase in elsewhere:
        history.saw(line(0, GB, phase=phase))
    assert list(history.samples) == []
    for second in range(101):
        history.saw(line(second, GB, phase="first-step" if second < 3 else "step"))
    assert [sample.seconds for sample in history.samples] == [n * SAMPLE_SECONDS for n in range(11)]
    assert {sample.training for sample in history.samples} == {1}


@pytest.mark.slow
def test_of_a_run_that_tells_no_end_of_it_a_part_is_kept_of_each_rank_and_it_still_tells_growth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("harness.evidence.app_reports.memory.MOST_SAMPLES", 200)
    history = MemoryHistory()
    steady = training(10 * HOUR, lambda _: GB, rank=0)
    growing = training(10 * HOUR, lambda t: GB + t * 1e5, rank=1)
    for pair in zip(steady, growing, strict=True):
        for one in pair:
            history.saw(one)
    assert 50 < len(history.samples) <= 200
    ranks = [sample.rank for sample in history.samples]
    assert abs(ranks.count(0) - ranks.count(1)) <= 1
    assert "rank 1" in (growth(history.samples) or "")
