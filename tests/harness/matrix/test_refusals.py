import ast
from typing import Any

import pytest

from harness.base.paths import CHECKOUT
from harness.matrix.cells import Matrix
from harness.matrix.refusals import FEWEST_SESSIONS, TARGETS, why_refused, with_lookback

CPU, ROCM, OLD = "cpu-plain", "rocm6.3-torch2.9.1-plain", "rocm6.2-torch2.5.1-plain"
BFLOAT16 = {"use_mixed_precision": True, "mixed_precision_dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("cell", "asked", "why"),
    [
        (CPU, {}, None),
        (CPU, {"strategy": "ddp", "backend": "nccl"}, "backend nccl"),
        (ROCM, {"strategy": "ddp", "backend": "nccl"}, None),
        (CPU, {"strategy": "dp"}, "strategy dp"),
        (ROCM, {"strategy": "dp", **BFLOAT16}, "float16"),
        (ROCM, {"strategy": "dp", "use_mixed_precision": True}, None),
        (CPU, {"sdpa": "efficient"}, "sdpa efficient"),
        (ROCM, {"sdpa": "flash"}, "sdpa flash"),
        (ROCM, {"sdpa": "flash", "use_mixed_precision": True}, None),
        (ROCM, {"strategy": "fsdp", "use_mixed_precision": True}, "loss scaler"),
        (ROCM, {"strategy": "fsdp", **BFLOAT16}, None),
        (OLD, {"strategy": "fsdp", **BFLOAT16}, "torch 2.6"),
        (ROCM, {"strategy": "fsdp", "micro_batch_size": "auto"}, "micro_batch_size auto"),
        (CPU, {"as_of": "open"}, "as_of open"),
        (CPU, {"target": "next_up"}, "target next_up"),
        (CPU, {"target": "next_up", "rows": "session"}, None),
        (CPU, {"chunk_rows": 100, "vpoc_path": "naive"}, "chunk_rows"),
    ],
)
def test_what_the_app_would_refuse(matrix: Matrix, cell: str, asked: dict[str, Any], why: str | None) -> None:
    workload = matrix.workloads["frameworks"].model_copy(update=asked)
    told = why_refused(matrix.cells[cell], workload)
    assert told is None if why is None else why in (told or "")


def test_no_workload_of_the_matrix_file_is_refused_on_a_gpu(matrix: Matrix) -> None:
    told = {name: why_refused(matrix.cells[ROCM], workload) for name, workload in matrix.workloads.items()}
    assert set(told.values()) == {None}


def test_a_lookback_leaves_sessions_to_train_on(matrix: Matrix) -> None:
    quick = matrix.workloads["quick"]
    assert with_lookback(quick, 97, synthetic=True).lookback == 97
    with pytest.raises(ValueError, match="100 synthetic sessions, so that the lookback is 97 at most"):
        with_lookback(quick, 98, synthetic=True)
    # The app counts the sessions of a user's file, before the first run.
    assert with_lookback(quick, 98, synthetic=False).lookback == 98


@pytest.mark.parametrize(
    ("file", "name", "here"),
    [("data/exchange/selection.py", "FEWEST", FEWEST_SESSIONS), ("features/targets.py", "TARGETS", TARGETS)],
)
def test_what_the_app_needs_is_known_here(file: str, name: str, here: dict[str, Any]) -> None:
    source = ast.parse((CHECKOUT / "app/vpoc" / file).read_text(encoding="utf-8"))
    named = {ast.unparse(node.targets[0]): node.value for node in source.body if isinstance(node, ast.Assign)}
    assert ast.literal_eval(named[name]) == here
