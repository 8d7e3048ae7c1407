from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest

from harness.base.paths import CHECKOUT
from harness.evidence.row import Row
from harness.evidence.verdicts.recommend import best_by_scope
from harness.evidence.verdicts.verdict import judge
from harness.matrix.load import load_matrix
from harness.report.sections.choice import which_cell

MATRIX = load_matrix(CHECKOUT / "matrix.yaml")
THRESHOLDS = MATRIX.verdicts
QUALIFYING = {"options": {"loop": "plain", "vpoc_path": "naive", "strategy": "single"}}
MakeRows = Callable[..., list[Row]]


def choice_in_words(*rows: list[Row]) -> str:
    verdicts = judge(list(chain(*rows)), {}, THRESHOLDS)
    return " ".join(which_cell(verdicts, MATRIX, {}, verdicts))


def test_a_known_good_cell_is_named_with_its_runs_and_bound(make_rows: MakeRows) -> None:
    text = choice_in_words(make_rows("cpu-plain", 40), make_rows("cpu-no-sdma", 3))
    assert text.startswith(
        "On `cpu`: use `cpu-plain`, which is known good: 40 of 40 starts, 40.0 h of training, no failure, 2 boots, "
        "with workload `quick`: more than 91 % of its starts succeed, and its mean time between failures is above "
        "11.7 h, in trainings up to 1.0 h (95 % confidence each)."
    )


def test_few_runs_are_no_recommendation_and_say_how_many_are_missing(make_rows: MakeRows) -> None:
    text = choice_in_words(make_rows("cpu-plain", 3, **QUALIFYING))
    assert "no cell is known good yet" in text
    assert "more than 33 % of its starts succeed, and its mean time between failures is above 52 min" in text
    assert "Without a failure, 30 more starts and 7.3 more hours of training would make it known good." in text


def test_so_many_more_starts_do_make_it_known_good(make_rows: MakeRows) -> None:
    for runs, known_good in ((32, False), (33, True)):
        assert ("which is known good" in choice_in_words(make_rows("cpu-plain", runs))) is known_good


def test_an_image_of_uncommitted_changes_is_named_as_such_and_no_more_runs_are_asked_for(make_rows: MakeRows) -> None:
    text = choice_in_words(make_rows("cpu-plain", 40, executor="docker", revision=f"{'c' * 40}-dirty", **QUALIFYING))
    assert "The best so far is `cpu-plain` (seen)" in text
    assert "Its image was made from changes that no commit has: it is `seen` at most" in text
    assert "would make it known good" not in text


def test_a_cell_of_one_boot_needs_another(make_rows: MakeRows) -> None:
    once = [row._replace(boot_id="boot") for row in make_rows("cpu-plain", 40, **QUALIFYING)]
    assert "Without a failure, a run after a reboot would make it known good." in choice_in_words(once)


@pytest.mark.parametrize(("passes", "failures", "tier"), [(0, 3, "failing"), (2, 2, "flaky")])
def test_a_cell_that_fails_is_never_recommended(make_rows: MakeRows, passes: int, failures: int, tier: str) -> None:
    text = choice_in_words(make_rows("cpu-plain", passes, failures))
    assert "no cell can be recommended" in text
    assert f"is {tier}: {passes} of {passes + failures} runs" in text
    assert "mostly for `crash`" in text
    assert "use `" not in text


def test_what_fails_with_another_workload_is_not_the_best_while_there_is_another(make_rows: MakeRows) -> None:
    plain, fails = make_rows("cpu-plain", 40), make_rows("cpu-plain", 0, 3, workload="full", family="f" * 64)
    assert "`cpu-no-sdma`" in choice_in_words(plain, fails, make_rows("cpu-no-sdma", 8)).split(".")[1]
    assert "But with workload `full` it is failing: 0 of 3." in choice_in_words(plain, fails)


def test_gpus_come_first_and_are_never_mixed_with_cpus(make_rows: MakeRows, dual_host: Any) -> None:
    on_gpu = {"host": dual_host, "device": "cuda", "gpus": (0,)}
    rows = [*make_rows("cpu-plain", 40), *make_rows("rocm6.3-torch2.9.1-plain", 2, **on_gpu)]
    best = best_by_scope(judge(rows, {}, THRESHOLDS))
    assert [(one.scope, one.runs) for one in best] == [("gfx1100", 2), ("cpu", 40)]


def test_runs_as_processes_do_not_qualify_for_promotion(make_rows: MakeRows) -> None:
    assert "only runs in containers qualify an image for promotion" in choice_in_words(make_rows("cpu-plain", 40))
    assert "qualify an image" not in choice_in_words(make_rows("cpu-plain", 40, executor="docker"))


def test_runs_of_an_old_contract_are_said_to_be_unverified(make_rows: MakeRows) -> None:
    assert "were not verified" in choice_in_words(make_rows("cpu-plain", 3, contract=1))
    assert "were not verified" not in choice_in_words(make_rows("cpu-plain", 3))


def test_stale_runs_recommend_nothing(make_rows: MakeRows) -> None:
    verdicts = judge(make_rows("cpu-plain", 40), {("cpu-plain", "process"): "another"}, THRESHOLDS)
    assert which_cell(verdicts, MATRIX, {}, verdicts) == ("No run that counts names a cell yet.",)


def test_seconds_that_a_run_took_longer_put_no_cell_before_plain(make_rows: MakeRows) -> None:
    longer = [row._replace(exposure_seconds=9.0) for row in make_rows("cpu-no-sdma", 1)]
    plain = [row._replace(exposure_seconds=1.0) for row in make_rows("cpu-plain", 1)]
    assert "The best so far is `cpu-plain`" in choice_in_words(longer, plain)


def test_a_training_that_had_no_step_left_is_not_the_most_promising(make_rows: MakeRows) -> None:
    quick = make_rows("cpu-plain", 3)
    training = make_rows("cpu-no-sdma", 1, workload="own-data", family="f" * 64)
    resumed = [row._replace(first_step=False, exposure_seconds=0.0, data="other.csv", finished=2e9) for row in training]
    assert "The best so far is `cpu-plain`" in choice_in_words(quick, resumed)
    # Where there is nothing else it is named all the same.
    assert "`cpu-no-sdma`" in choice_in_words(resumed)
