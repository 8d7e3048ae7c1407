"""Tests of the sentence on a GPU to which all resets happened."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from harness.evidence.row import Row
from harness.evidence.verdicts.counting import PASSED, RunCount
from harness.report.sections.resets import whose_resets

MakeRows = Callable[..., list[Row]]
CELL = "rocm6.3-torch2.9.1-plain"


ONE, OTHER = "0000:03:00.0", "0000:43:00.0"


@pytest.fixture
def said(make_rows: MakeRows, dual_host: Any) -> Callable[..., str]:
    """Return a function that says it of runs on GPUs, each with the address of the GPU that was reset, or none."""

    named = zip(dual_host.gpus, (ONE, OTHER), strict=True)
    gpus = tuple(gpu.model_copy(update={"address": address}) for gpu, address in named)

    def say(*runs: tuple[Sequence[int], str | None]) -> str:
        rows = [
            make_rows(CELL, 1, host=dual_host, device="cuda", gpus=tuple(gpus))[0]._replace(run_id=f"r{place}")
            for place, (gpus, _) in enumerate(runs)
        ]
        counts = {
            row.run_id: RunCount(
                "failed", f"the kernel log shows a reset: 'amdgpu {address}: GPU reset'", gpu_fault=True
            )
            if address
            else PASSED
            for row, (_, address) in zip(rows, runs, strict=True)
        }
        return whose_resets(rows, counts, lambda _: gpus)

    return say


def test_the_gpu_to_which_all_resets_happened_is_named_also_where_runs_used_both(
    said: Callable[..., str],
) -> None:
    both, alone = ((0, 1), OTHER), ((0,), None)
    assert said(*[both] * 5, *[alone] * 2) == (
        f"All 5 resets in the kernel log that name a GPU were of GPU 1 ({OTHER}), which 5 counted runs used, and none "
        "of GPU 0, which 7 used: no chance, so suspect that card, its slot or its power before stacks and presets, "
        "and swap it."
    )
    # Three of three would be chance once in four.
    assert said(*[both] * 3).endswith("which 3 counted runs used, and none of GPU 0, which 3 used.")


def test_nothing_is_said_of_one_reset_of_two_gpus_or_of_a_gpu_that_alone_was_used(
    said: Callable[..., str],
) -> None:
    assert said(((0, 1), OTHER), ((0,), None)) == ""
    assert said(((0, 1), OTHER), *[((0, 1), ONE)] * 5) == ""
    assert said(*[((1,), OTHER)] * 5) == ""
    assert said(*[((0, 1), "0000:99:00.0")] * 5) == ""
    assert said(((0,), None)) == ""
