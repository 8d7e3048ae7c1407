"""Tests of the sentence with which a campaign in stages ends."""

from dataclasses import replace

from harness.evidence.verdicts.missing import Shortfall
from harness.evidence.verdicts.totals import Life, Totals
from harness.matrix.cells import Matrix
from harness.search.stages.conclusion import conclude_stages
from harness.search.stages.contenders import Contender
from harness.search.stages.exploration import Explored
from harness.search.stages.runs import Setting
from harness.search.stages.search import StageEnd

STACK = "rocm6.3-torch2.9.1"


def contender(matrix: Matrix, *, good: bool, gpus: tuple[int, ...] = (0, 1), lives: int = 4) -> Contender:
    strategy = "ddp" if len(gpus) > 1 else "single"
    return Contender(
        setting=Setting(matrix.cells[f"{STACK}-plain"], strategy),  # type: ignore[arg-type]
        stage=matrix.stages["two-gpus"],
        gpus=gpus,
        lanes=(gpus,),
        rank=0 if len(gpus) > 1 else 1,
        totals=Totals(started=20, starts=20, lives=(Life(1.25),) * lives, boots=1),
        confidence=0.95,
        is_good=good,
        missing=Shortfall(0, 0.0 if good else 2.25, 0),
        long_runs=2,
        seconds_needed=9000.0,
        seconds_of_another=18000.0,
    )


def test_what_is_good_is_named_with_its_evidence(matrix: Matrix) -> None:
    conclusion = conclude_stages(StageEnd("good", contender(matrix, good=True), (), (), ()), 2)
    assert conclusion.reached
    assert conclusion.sentence == (
        f"{STACK}-plain on 2 GPUs (ddp) is good: 20 of 20 starts, 5.0 h of training, no failure, 1 boot; its mean time "
        "between failures is above 1.4 h with 0.95 confidence."
    )
    assert not conclusion.continues


def test_a_mean_time_below_a_minute_is_not_worth_a_clause(matrix: Matrix) -> None:
    short = replace(contender(matrix, good=True), totals=Totals(started=20, starts=20, lives=(Life(0.01),), boots=1))
    conclusion = conclude_stages(StageEnd("good", short, (), (), ()), 2)
    assert conclusion.sentence.endswith("is good: 20 of 20 starts, 36 s of training, no failure, 1 boot.")


def test_good_on_one_gpu_is_no_answer_for_two(matrix: Matrix) -> None:
    one = contender(matrix, good=True, gpus=(0,))
    conclusion = conclude_stages(StageEnd("none", one, (one,), (Explored(STACK),), ()), 2)
    assert not conclusion.reached
    assert conclusion.sentence.startswith(
        "No cell is shown to be good on 2 GPUs, and nothing of the selection is left to try: 1 stack had its"
    )
    assert f"On one GPU {STACK}-plain is good" in conclusion.sentence
    assert not conclusion.continues


def test_what_only_lacks_time_is_said_with_what_it_lacks(matrix: Matrix) -> None:
    near = contender(matrix, good=False, lives=1)
    explored = (Explored(STACK), Explored("rocm10.0.0-torch2.13.0"))
    end = StageEnd("out-of-time", near, (near,), explored, ("rocm10.0.0-torch2.13.0",))
    conclusion = conclude_stages(end, 2)
    assert "nearest is" in conclusion.sentence
    assert "lacks 2.3 more hours of training without a failure" in conclusion.sentence
    assert "1 stack had its turn, 1 not (rocm10.0.0-torch2.13.0)" in conclusion.sentence
    assert conclusion.continues


def test_a_bad_gpu_and_what_was_left_out_are_named(matrix: Matrix) -> None:
    conclusion = conclude_stages(StageEnd("none", None, (), (), (), bad_gpus=(1,)), 2, {"b", "a"})
    assert "GPU 1 failed what another GPU passed" in conclusion.sentence
    assert "Left out, because they could not be made or had no room: a, b." in conclusion.sentence
    assert conclusion.continues
    assert "nothing is left" not in conclusion.sentence


def test_good_beside_a_bad_gpu_is_said_to_be_so_on_one(matrix: Matrix) -> None:
    one = contender(matrix, good=True, gpus=(0,))
    conclusion = conclude_stages(StageEnd("good", one, (one,), (Explored(STACK),), (), bad_gpus=(1,)), 2)
    assert conclusion.sentence.startswith(f"On one GPU {STACK}-plain is good: ")


def test_good_on_the_gpu_that_is_left_is_no_answer_for_two(matrix: Matrix) -> None:
    one = contender(matrix, good=True, gpus=(0,))
    conclusion = conclude_stages(StageEnd("gpu-lost", one, (one,), (Explored(STACK),), (), lost_gpus=(1,)), 2)
    assert not conclusion.reached
    assert conclusion.continues
    assert conclusion.sentence.startswith("No cell is shown to be good on 2 GPUs: 1 stack had its turn. On one GPU")
    assert "GPU 1 is unhealthy" in conclusion.sentence


def test_a_gpu_that_no_run_was_to_use_leaves_the_answer_open(matrix: Matrix) -> None:
    one = contender(matrix, good=True, gpus=(1,))
    conclusion = conclude_stages(StageEnd("good", one, (one,), (), ()), 1, screened=(0,))
    assert f"{STACK}-plain is good: " in conclusion.sentence
    assert "What trains on 2 GPUs stays unknown: a screen is connected to GPU 0" in conclusion.sentence


def test_where_all_fail_that_train_for_long_what_lasted_longest_is_said(matrix: Matrix) -> None:
    fails = Totals(started=4, starts=4, failures=2, lives=(Life(1.1, failed=True), Life(1.0, failed=True)), boots=1)
    one = replace(contender(matrix, good=False), totals=fails)
    conclusion = conclude_stages(StageEnd("out-of-time", one, (one,), (), ()), 2)
    assert conclusion.sentence.endswith(
        f" What trained for long failed; {STACK}-plain on 2 GPUs (ddp) lasted longest, 1.1 h."
    )
    holds = contender(matrix, good=False)
    assert "lasted longest" not in conclude_stages(StageEnd("out-of-time", one, (one, holds), (), ()), 2).sentence


def test_a_budget_too_small_for_the_next_run_does_not_hide_what_was_found(matrix: Matrix) -> None:
    one = contender(matrix, good=True, gpus=(0,))
    end = StageEnd("out-of-time", one, (one,), (Explored(STACK),), (STACK,))
    assert f"On one GPU {STACK}-plain is good" in conclude_stages(end, 2, least_budget=900.0).sentence
    nothing = StageEnd("out-of-time", None, (), (Explored(STACK),), (STACK,))
    assert conclude_stages(nothing, 2, least_budget=900.0).sentence.startswith("No run fits into the budget: the first")
