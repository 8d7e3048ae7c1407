"""Tests of what the settings that passed the stages lack, and how much is asked of each."""

from dataclasses import replace

import pytest

from benchmarks.evening.worlds import GPUS, stacks, the_matrix
from harness.evidence.verdicts.totals import Life, Totals
from harness.search.stages.contenders import Contenders
from harness.search.stages.exploration import Explored, Explorer
from harness.search.stages.runs import SeenRun, SeenRuns, StageHost, StageRun
from tests.harness.search.stages.test_conclusion import contender
from tests.harness.search.stages.test_search import passed

HOST = StageHost(GPUS[:1], GPUS[:1])


def explored(stack: str, seen: list[SeenRun]) -> Explored:
    """Return a stack whose `plain` passed all stages; its runs are added to those seen."""
    cells = [next(cell for cell in the_matrix().select("default") if cell.stack.name == stack)]
    while True:
        found = Explorer(the_matrix(), HOST, SeenRuns.of(seen)).explore(stack, cells)
        if found.next is None:
            return found
        seen.append(passed(found.next, len(seen)))


def test_the_nth_setting_that_is_run_for_hours_has_its_error_divided_by_n() -> None:
    seen: list[SeenRun] = []
    each = [explored(stack, seen) for stack in stacks()[:3]]

    def errors() -> list[float]:
        found = Contenders(the_matrix(), HOST, SeenRuns.of(seen)).of(each)
        return [round(1 - one.confidence, 4) for one in found]

    assert errors() == [0.05, 0.05, 0.05]
    makes = Contenders(the_matrix(), HOST, SeenRuns.of(seen))
    for one, expected in zip(makes.of(each), ([0.05, 0.025, 0.025], [0.05, 0.025, 0.0167]), strict=False):
        workload = makes.long(one.setting)
        assert workload
        seen.append(passed(StageRun("endurance", one.setting, workload, GPUS[:1], 1, ""), len(seen)))
        assert errors() == expected


@pytest.mark.parametrize(
    ("totals", "sound"),
    [
        (Totals(started=9, starts=9, lives=9 * (Life(0.1),)), True),
        # One start that failed, and one failure of hours.
        (Totals(started=8, starts=9, lives=8 * (Life(0.1),)), True),
        (Totals(started=9, starts=9, failures=1, lives=8 * (Life(0.1),)), False),
        (Totals(started=7, starts=9, lives=7 * (Life(0.1),)), False),
    ],
)
def test_only_a_start_may_fail_once(totals: Totals, *, sound: bool) -> None:
    one = replace(contender(the_matrix(), good=False), totals=totals, seconds_needed=10.0, seconds_of_another=20.0)
    assert one.is_sound is sound
    # A setting without any run would be shown to be good sooner.
    assert replace(one, seconds_needed=30.0).is_sound is (one.failures == 0)
