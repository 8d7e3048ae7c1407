"""Tests of which runs begin at once on several nodes, in a simulated evening and for a goal."""

import random

from benchmarks.evening.clock import Clock
from benchmarks.evening.simulated import BUDGET
from benchmarks.evening.worlds import GPUS, stacks, the_matrix, two_good_one_flaky
from harness.search.goal import Goal
from harness.search.schedule import Candidate, Tally
from harness.search.spread import candidates_at_once, stage_runs_at_once
from harness.search.stages.runs import StageHost
from harness.search.stages.search import StageEnd, StageSearch


def test_what_runs_at_once_is_of_one_cell_and_stage_and_no_run_twice() -> None:
    chance = random.Random(0)
    clock = Clock(two_good_one_flaky(chance), chance)
    cells = {name: [cell for cell in the_matrix().select("default") if cell.stack.name == name] for name in stacks()}
    search = StageSearch(the_matrix(), cells, StageHost(GPUS, GPUS, dict.fromkeys(stacks(), 1.0)))
    most: dict[str, int] = {}
    while not isinstance(decided := search.next(seen := clock.seen(), BUDGET - clock.now), StageEnd):
        at_once = stage_runs_at_once(search, seen, decided, 4, BUDGET - clock.now)
        assert at_once[0] == decided
        assert all((one.stage, one.setting) == (decided.stage, decided.setting) for one in at_once)
        assert all(one.workload == decided.workload for one in at_once)
        assert len({(one.gpus, one.number) for one in at_once}) == len(at_once)
        most[decided.stage] = max(most.get(decided.stage, 0), len(at_once))
        for one in at_once:
            clock.run(one)
    assert most["smoke"] == 1
    assert most["one-gpu"] == 2
    assert most["endurance"] == 4


ALL = Goal(0.9, 0.95, every=True)
FEW = [Candidate(f"c{number}", f"s{number}", "plain", "cpu") for number in range(6)]


def test_each_cell_is_tried_once_before_one_is_run_on_several_nodes() -> None:
    assert sorted(candidates_at_once(FEW, {}, ALL, 1, {}, 6), key=FEW.index) == FEW
    tried = dict.fromkeys(FEW, Tally(1, 1))
    assert candidates_at_once(FEW[:2], tried, ALL, 1, {}, 4)


def test_no_more_runs_are_begun_than_settle_it() -> None:
    failing = {FEW[0]: Tally(0, 1)}
    settled = candidates_at_once(FEW[:1], failing, ALL, 1, {}, 1000)
    assert 0 < len(settled) < 20
    assert candidates_at_once(FEW[:1], {FEW[0]: Tally(0, 1 + len(settled))}, ALL, 1, {}, 4) == []
