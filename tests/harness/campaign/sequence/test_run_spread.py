"""Tests of a plan over the nodes of a scheduler when some stacks cannot be made for now."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.base.silent_hosts import note_silent, said_of_silent
from harness.campaign.bench.plan import PendingRun, PlannedRun
from harness.campaign.runner import Runner
from harness.campaign.sequence import run_spread as module
from harness.evidence.files.run_files import Record
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix
from tests.harness.pretending import RecordingDisplay, RecordWritingBench

AWAY, THERE = "rocm6.3-torch2.9.1", "rocm7.0-torch2.10.0"


class Follower:
    """A stand-in for the follower of runs on other hosts: at most two runs, whose records arrive at once."""

    def __init__(self, *_: object) -> None:
        self.dispatcher = SimpleNamespace(at_once=2, nodes_at_work=2)
        self.followed: list[PendingRun] = []
        self.made: list[str] = []

    @property
    def room(self) -> int:
        return 2 - len(self.followed)

    def follow(self, pending: Sequence[PendingRun], _: object) -> None:
        self.followed += pending

    def records(self) -> Iterator[tuple[PendingRun, Record]]:
        while self.followed:
            done = self.followed.pop(0)
            self.made.append(done.run_id)
            yield done, cast("Record", SimpleNamespace(outcome="completed", diagnosis=None, finished=1.0, intent=BEGUN))


BEGUN = SimpleNamespace(started=0.0)


@pytest.mark.parametrize(
    ("unanswered", "made"), [(0, ["a1", "t1", "a2", "t2"]), (1, ["t1", "t2", "a1", "a2"]), (9, ["t1", "t2"])]
)
def test_a_stack_whose_source_did_not_answer_has_one_more_turn(
    unanswered: int, made: list[str], tmp_path: Path, host: HostFacts, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = Follower()
    monkeypatch.setattr(module, "Follower", lambda *_: follower)
    bench = RecordWritingBench.on(tmp_path, host)
    bench.data = tmp_path / "merged.csv"
    bench.data.write_text("bars")
    bench.unanswered_tries = {AWAY: unanswered}
    cells = {"a": matrix.cells[f"{AWAY}-plain"], "t": matrix.cells[f"{THERE}-plain"]}
    runs = [
        PendingRun(PlannedRun(cells[name], repeat), f"{name}{repeat}", position)
        for position, (name, repeat) in enumerate([("a", 1), ("t", 1), ("a", 2), ("t", 2)], start=1)
    ]
    display, workload = RecordingDisplay(), matrix.workloads["quick"]
    note_silent("registry", "it does not answer")
    campaign = cast("Any", SimpleNamespace(pending=lambda *_, **__: runs))
    plan = cast("Any", SimpleNamespace(runs=runs, workload=workload))
    module.run_spread(plan, campaign, Runner(bench, workload, display, "c1"), cast("Any", None))
    assert follower.made == made
    assert len(display.problems) == min(unanswered, 2)
    assert (said_of_silent("registry") is None) is (unanswered > 0)
    assert all("is left out for now: the registry does not answer" in line for line in display.problems)
