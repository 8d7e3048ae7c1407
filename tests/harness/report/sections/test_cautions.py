from collections.abc import Callable
from itertools import chain
from typing import Any

from harness.evidence.row import Row
from harness.evidence.verdicts.counting import count_runs
from harness.matrix.cells import Matrix
from harness.report.sections.cautions import cautions

MakeRows = Callable[..., list[Row]]


def told(matrix: Matrix, *rows: list[Row]) -> str:
    every = list(chain(*rows))
    return " ".join(cautions(every, [], count_runs(every), matrix))


def test_a_run_on_a_cpu_cannot_be_mistaken_for_one_on_a_gpu(make_rows: MakeRows, matrix: Matrix) -> None:
    assert "No run used a GPU" in told(matrix, make_rows("cpu-plain", 3))
    assert told(matrix) == ""


def test_runs_of_an_old_contract_are_counted_and_named(make_rows: MakeRows, matrix: Matrix) -> None:
    assert "2 runs were not verified by the host" in told(matrix, make_rows("cpu-plain", 2, contract=1))
    assert "contract" not in told(matrix, make_rows("cpu-plain", 2))


def test_rehearsals_are_named_and_say_nothing(make_rows: MakeRows, matrix: Matrix, dual_host: Any) -> None:
    rows = make_rows("rocm6.3-torch2.9.1-plain", 1, host=dual_host, device="cuda", gpus=(0,), rehearsal=True)
    assert "1 run only rehearsed how a run is made" in told(matrix, rows)
    assert "No run used a GPU" in told(matrix, rows)


def test_failures_on_a_gpu_show_nothing_of_it(make_rows: MakeRows, matrix: Matrix, dual_host: Any) -> None:
    on_gpu = {"host": dual_host, "device": "cuda", "gpus": (0,)}
    rows = make_rows("rocm6.3-torch2.9.1-plain", 0, 1, **on_gpu)
    assert "No run completed on a GPU" in told(matrix, make_rows("cpu-plain", 3), rows)
    assert "a GPU. What" not in told(matrix, rows, make_rows("rocm6.3-torch2.9.1-plain", 1, **on_gpu))


def test_it_says_when_rocm_and_torch_change_together(make_rows: MakeRows, matrix: Matrix) -> None:
    def of(*stacks: str) -> str:
        return told(matrix, *(make_rows(f"{stack}-plain", 1) for stack in stacks))

    assert "change together" in of("rocm6.2-torch2.5.1", "rocm6.3-torch2.7.1")
    assert "change together" not in of("rocm6.3-torch2.7.1", "rocm6.3-torch2.8.0")
    assert "change together" not in of("rocm6.3-torch2.9.1", "rocm6.4-torch2.9.1")
