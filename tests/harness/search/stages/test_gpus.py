"""Tests of which GPU is called bad, from runs of the same cells on both GPUs."""

from dataclasses import replace

from benchmarks.verdicts import ROW
from harness.evidence.verdicts.counting import FAILED, PASSED
from harness.search.stages.gpus import bad_gpus
from harness.search.stages.runs import SeenRun, SeenRuns


def pairs(*outcomes: tuple[bool, ...]) -> SeenRuns:
    """Return the runs of one cell for each pair, which says whether the cell passed on GPU 0, on GPU 1, and so on."""
    runs = []
    for number, pair in enumerate(outcomes):
        for gpu, passed in enumerate(pair):
            row = ROW._replace(run_id=f"r{number}-{gpu}", cell=f"cell{number}", gpus=f"[{gpu}]", started=float(number))
            runs.append(SeenRun(row, PASSED if passed else FAILED, (gpu,)))
    return SeenRuns.of(runs)


def test_a_gpu_that_fails_what_the_other_passes_is_bad_when_that_is_no_chance() -> None:
    worse = (False, True)
    assert bad_gpus(pairs(*[worse] * 4)) == ()
    assert bad_gpus(pairs(*[worse] * 8)) == (0,)
    assert bad_gpus(pairs(*[(True, False)] * 8)) == (1,)


def test_among_three_gpus_six_orders_may_be_unlucky() -> None:
    worse = (False, True, True)
    assert bad_gpus(pairs(*[worse] * 9)) == ()
    assert bad_gpus(pairs(*[worse] * 10)) == (0,)


def test_the_gpus_of_another_machine_have_other_numbers() -> None:
    of_another = (replace(run, here=False) for run in pairs(*[(False, True)] * 8).runs)
    assert bad_gpus(SeenRuns.of(of_another)) == ()


def test_what_fails_or_passes_on_both_says_nothing_of_a_gpu() -> None:
    assert bad_gpus(pairs(*[(False, False)] * 20, *[(True, True)] * 20)) == ()
    assert bad_gpus(pairs(*[(False, True)] * 6, *[(True, False)] * 3)) == ()


def test_only_the_first_runs_of_a_pair_are_compared() -> None:
    once = pairs((False, True))
    again = [replace(run, row=run.row._replace(run_id=f"{run.row.run_id}-{n}")) for run in once.runs for n in range(9)]
    assert bad_gpus(SeenRuns.of([*once.runs, *again])) == ()
