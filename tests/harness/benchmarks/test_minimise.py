"""The page of figures on minimising."""

from benchmarks.minimise import Figures, Setting, measure, page

PAIR = Setting(variables=6, planted=2, rate=0.9, max_runs=300)
NOTHING = Setting(variables=6, planted=0, rate=0.9, max_runs=300)


def test_what_is_planted_is_counted_as_found() -> None:
    figures = measure(PAIR, 10)
    assert figures.cases == 10
    assert figures.found >= 9
    assert figures.good_percent >= 90


def test_nothing_is_found_where_nothing_is_planted() -> None:
    figures = measure(NOTHING, 6)
    assert (figures.found, figures.wrong) == (0, 0)
    assert figures.none >= 5


def test_a_goal_that_is_missed_is_not_met() -> None:
    good = Figures(PAIR, found=96, wrong=1, none=1, not_enough=2, runs=60.0)
    nothing = Figures(NOTHING, found=0, wrong=2, none=95, not_enough=3, runs=150.0)
    goals = [line for line in page([good, nothing]).splitlines() if line.endswith(("yes |", "no |"))]
    assert [line.rsplit("|", 3)[-3:-1] for line in goals] == [
        [" 98.0 % ", " yes "],
        [" 2.0 % ", " yes "],
        [" 2.0 % ", " yes "],
    ]
    missed = Figures(PAIR, found=90, wrong=8, none=2, not_enough=0, runs=60.0)
    assert page([missed, nothing]).count("| no |") == 2
    assert "| 6 | none | 0.9 | 300 | - | 2.0 % | 95.0 % | 3.0 % | 150 |" in page([good, nothing])
