import pytest

from harness.evidence.verdicts.totals import Life, Totals
from harness.evidence.verdicts.words import hours_in_words, in_words, mtbf_in_words


@pytest.mark.parametrize(
    ("hours", "said"), [(0, "0 s"), (2.9 / 3600, "2 s"), (1 / 60, "1 min"), (0.999, "59 min"), (1.99, "1.9 h")]
)
def test_a_time_is_rounded_down_in_a_unit_that_is_not_larger(hours: float, said: str) -> None:
    assert hours_in_words(hours) == said


def test_without_a_bound_of_the_mtbf_it_is_said_why() -> None:
    short = Totals(started=2, starts=2, failures=0, lives=(Life(1 / 3600), Life(1 / 3600)), boots=1)
    assert in_words(short) == "2 of 2 starts, 2 s, no failure, 1 boot"
    assert mtbf_in_words(short, 0.9 / 3600) == "no MTBF yet: no failure in 2 s of training"
    assert mtbf_in_words(Totals(failures=2), 0) == "no MTBF yet: 2 failures in 0 s of training"
    assert mtbf_in_words(short, 1 / 3600) == "MTBF above 1 s"
