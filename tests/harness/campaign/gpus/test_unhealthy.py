"""Tests that an unhealthy GPU is probed again in an environment that can be made."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.campaign.bench.bench import Bench, StackUnavailableError
from harness.campaign.bench.plan import PendingRun, PlannedRun
from harness.campaign.gpus import unhealthy
from harness.matrix.cells import Cell, Matrix

FIRST, SECOND = "rocm6.3-torch2.9.1-plain", "rocm7.0-torch2.10.0-plain"


class _Place(SimpleNamespace):
    """A stand-in for the bench, on which the stack of FIRST cannot be made."""

    def make_ready(self, cell: Cell, *_: object) -> None:
        self.asked.append(cell.id)
        if cell.id == FIRST:
            raise StackUnavailableError(cell.stack, "its source does not answer", passes=True)

    def requested_run(self, planned: PlannedRun, *_: object) -> str:
        return f"{planned.cell.id} on {planned.gpus}"

    @contextmanager
    def gpus_for(self, *_: object) -> Iterator[None]:
        yield


def test_it_is_probed_in_the_first_stack_that_can_be_made(matrix: Matrix, monkeypatch: pytest.MonkeyPatch) -> None:
    place = _Place(dispatcher=None, results=None, host=None, executor=None, root=None, asked=[])
    said: list[str] = []
    probed: list[str] = []
    monkeypatch.setattr(unhealthy, "unhealthy_gpus", lambda *_: {0: "it hung", 1: "device failed"})
    monkeypatch.setattr(unhealthy, "recheck", lambda run, *_: probed.append(run))
    runs = [
        PendingRun(PlannedRun(matrix.cells[cell], 1, (gpu,)), f"{cell}-{gpu}")
        for cell in (FIRST, SECOND)
        for gpu in (0, 1)
    ]
    display = SimpleNamespace(problem=said.append, step=said.append)
    unhealthy.recheck_unhealthy(runs, cast("Any", None), cast("Bench", place), cast("Any", display))
    assert probed == [f"{SECOND} on (0,)", f"{SECOND} on (1,)"]
    assert place.asked == [FIRST, SECOND, SECOND]
    assert [line for line in said if "left out" in line] == [
        "stack rocm6.3-torch2.9.1 is left out for now: its source does not answer"
    ]
