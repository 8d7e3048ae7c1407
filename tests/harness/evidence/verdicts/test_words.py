from collections.abc import Callable

import pytest

from harness.evidence.files.run_files import Record
from harness.evidence.row import Row
from harness.evidence.verdicts.totals import Life, Totals
from harness.evidence.verdicts.verdict import judge
from harness.evidence.verdicts.words import (
    claim_in_words,
    hours_in_words,
    in_words,
    mtbf_in_words,
    runs_in_words,
    threshold_in_words,
)
from harness.matrix.cells import Verdicts


@pytest.mark.parametrize(
    ("hours", "said"),
    [(0, "0 s"), (0.5 / 3600, "under 1 s"), (2.9 / 3600, "2 s"), (1 / 60, "1 min"), (0.999, "59 min"), (1.99, "1.9 h")],
)
def test_a_time_is_rounded_down_in_a_unit_that_is_not_larger(hours: float, said: str) -> None:
    assert hours_in_words(hours) == said


def test_without_a_bound_of_the_mtbf_it_is_said_why() -> None:
    short = Totals(started=2, starts=2, failures=0, lives=(Life(1 / 3600), Life(1 / 3600)), boots=1)
    assert in_words(short) == "2 of 2 starts, 2 s of training, no failure, 1 boot"
    assert mtbf_in_words(short, 0.9 / 60) == "no MTBF yet: no failure in 2 s of training"
    assert mtbf_in_words(Totals(failures=2), 0) == "no MTBF yet: 2 failures in 0 s of training"
    assert mtbf_in_words(short, 1 / 60) == "MTBF above 1 min"


def test_what_a_tier_takes_is_said_of_the_thresholds() -> None:
    assert threshold_in_words("good", Verdicts()) == "above 80 % of starts, MTBF above 1.0 h"
    assert threshold_in_words("candidate", Verdicts()) == "above 50 % of starts, MTBF above 15 min"
    no_hours = Verdicts().model_copy(update={"mtbf_hours": Verdicts().mtbf_hours.model_copy(update={"good": 0})})
    assert threshold_in_words("good", no_hours) == "above 80 % of starts"


def test_a_claim_has_no_mtbf_of_less_than_a_second(make_record: Callable[..., Record]) -> None:
    row = Row.of(make_record())
    long, short = ([row._replace(exposure_seconds=seconds)] for seconds in (3600.0, 1.0))
    assert "mean time between failures" in claim_in_words(judge(long, {}, Verdicts())[0])
    assert "mean time between failures" not in claim_in_words(judge(short, {}, Verdicts())[0])


def test_the_attempts_of_a_training_are_one_training(make_record: Callable[..., Record]) -> None:
    one = Row.of(make_record("r1", campaign="20261124T1-c"))
    first, second, other = (
        Row.of(make_record(f"t{number}", campaign=f"20261124T{training}-train"))
        for number, training in ((1, 1), (2, 1), (3, 2))
    )
    assert runs_in_words([one]) == "1 run"
    assert runs_in_words([first]) == "1 training"
    assert runs_in_words([first, second]) == "1 training (2 attempts)"
    assert runs_in_words([one, one, first, second, other]) == "2 runs and 2 trainings (3 attempts)"
