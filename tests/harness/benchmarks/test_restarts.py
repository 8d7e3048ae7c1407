"""What is reckoned from supervised trainings with faults at a known rate."""

from pathlib import Path

import pytest

from benchmarks.restarts import BLOCK, EPOCHS, MEAN_SECONDS_BETWEEN_FAULTS, Made, expected, read, section, within
from benchmarks.supervisor import section_of, with_section

WORK = 20.0
TAKES, TIMES = expected(WORK, WORK / EPOCHS, 10.0, 1 / MEAN_SECONDS_BETWEEN_FAULTS)


def trainings(times: float) -> list[Made]:
    """Some without a fault, and others with so many restarts of 10 s on average that take as long as they should."""
    healthy = [Made(-1 - n, WORK, WORK, (), ()) for n in range(2)]
    counts = [int(times) + (n % 10 < 10 * (times % 1)) for n in range(BLOCK)]
    return healthy + [
        Made(n, TAKES + n % 2 - 0.5, WORK, (10.0,) * count, ("SIGKILL",) * count) for n, count in enumerate(counts)
    ]


def test_the_formula_holds_where_it_is_within_both_intervals() -> None:
    assert within(trainings(round(TIMES, 1))) == {"seconds": True, "restarts": True}
    assert within(trainings(4 * TIMES)) == {"seconds": True, "restarts": False}


def test_restarts_and_time_agree_with_the_work_made_again() -> None:
    assert pytest.approx(EPOCHS * (2.718281828 ** (WORK / EPOCHS / MEAN_SECONDS_BETWEEN_FAULTS) - 1)) == TIMES
    assert pytest.approx(TIMES * (MEAN_SECONDS_BETWEEN_FAULTS + 10.0)) == TAKES


def test_the_section_on_restarts_outlives_the_rest_of_the_page() -> None:
    lines = section(trainings(TIMES), "Written today.")
    page = with_section("# A page\n\nold\n", lines)
    assert section_of(page) == lines
    assert with_section(page, section_of(page)) == page
    assert with_section("# A page\n", None) == "# A page\n"
    assert section_of("# A page\n") is None


def test_trainings_are_read_as_they_were_kept(tmp_path: Path) -> None:
    kept = tmp_path / "kept.jsonl"
    assert read(kept) == []
    kept.write_text('{"number": 3, "took": 30.0, "worked": 20.0, "restarts": [10.0], "kinds": ["SIGSTOP"]}\n')
    assert read(kept) == [Made(3, 30.0, 20.0, (10.0,), ("SIGSTOP",))]
