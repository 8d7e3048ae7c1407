from collections.abc import Callable, Iterator
from itertools import count

import pytest

from harness.evidence.files.run_files import Record
from harness.evidence.row import Row
from harness.evidence.verdicts.recommend import NamedCell, best_by_scope, most_useful
from harness.evidence.verdicts.verdict import Verdict, judge
from harness.matrix.cells import Verdicts

NAMED = NamedCell("named-plain", "single")
Runs = Callable[..., list[Row]]


@pytest.fixture
def runs(make_record: Callable[..., Record]) -> Runs:
    """Return a function that makes runs of a cell on a GPU: first those that passed, then those that failed."""
    numbers: Iterator[int] = count()
    row = Row.of(make_record())._replace(device="cuda", scope="gfx1100", qualifies_for_promotion=True)

    def make(cell: str, passes: int, failures: int = 0, **changes: object) -> list[Row]:
        outcomes = ["completed"] * passes + ["hung"] * failures
        made = [row._replace(run_id=f"r{next(numbers)}", cell=cell, outcome=one) for one in outcomes]
        return [one._replace(**changes) for one in made]  # type: ignore[arg-type]

    return make


def judged(*runs: list[Row]) -> list[Verdict]:
    return judge([row for some in runs for row in some], {}, Verdicts())


def chosen(*runs: list[Row]) -> str | None:
    best = most_useful(judged(*runs), NAMED)
    return best.cell if best else None


def test_the_cell_that_a_campaign_named_comes_before_one_with_more_runs(runs: Runs) -> None:
    assert chosen(runs(NAMED.cell, 1), runs("other-plain", 5)) == NAMED.cell
    # Neither is shown to be better than good.
    assert chosen(runs(NAMED.cell, 20), runs("other-plain", 40)) == NAMED.cell


def test_it_does_not_once_it_failed(runs: Runs) -> None:
    assert chosen(runs(NAMED.cell, 1, 1), runs("other-plain", 1)) == "other-plain"


def test_it_does_not_once_another_is_shown_to_be_good_and_it_is_not(runs: Runs) -> None:
    assert chosen(runs(NAMED.cell, 5), runs("other-plain", 20)) == "other-plain"


def test_one_that_ran_on_the_cpu_does_not_come_before_a_gpu(runs: Runs) -> None:
    assert chosen(runs(NAMED.cell, 5, device="cpu", scope="cpu"), runs("other-plain", 1)) == "other-plain"


def test_one_failure_with_another_workload_does_not_outweigh_a_known_good_verdict(runs: Runs) -> None:
    good = [row._replace(boot_id=f"boot {number % 2}") for number, row in enumerate(runs("good-plain", 40))]
    other, few = runs("other-plain", 20), runs("good-plain", 0, 1, family="another")
    (best,) = best_by_scope(judged(good, other, few))
    assert (best.cell, best.tier) == ("good-plain", "known-good")
    # Failing nearly always is another matter.
    (best,) = best_by_scope(judged(good, other, runs("good-plain", 0, 40, family="another")))
    assert best.cell == "other-plain"
