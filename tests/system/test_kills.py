"""Tests of `kill -9` of `matrix run` at every named point and at random moments, on a stand-in for the app."""

import random
import signal
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest

from benchmarks import kill_tester
from benchmarks.kill_tester import GOAL_SECONDS, Figures, Kill, Place, kill_often
from benchmarks.kills import ONLY_IN_CONTAINERS
from harness.base.files.failpoints import POINTS
from harness.base.paths import CHECKOUT
from harness.evidence.files.run_files import Record
from harness.rehearsal.stand_in_app import SLOW

RANDOM_KILLS = 8
# A campaign with two runs on each of two GPUs, in a results folder that it may share with another campaign.
SIDE_BY_SIDE = """
import os
import sys
import time
from functools import partial
from pathlib import Path
from rich.console import Console
from benchmarks import kill_tester
from benchmarks.kill_tester import Place
from harness.campaign.bench.bench import Bench
from harness.campaign.campaign import begin_or_continue
from harness.campaign.sequence.run_plan import run_plan
from harness.campaign.runner import Runner
from harness.host.facts import GpuFacts
from harness.screen.display import CampaignDisplay
from harness.environments.executors.process import ProcessExecutor
from harness.host.fingerprint import read_host
from harness.matrix.load import load_matrix
from harness.campaign.bench.plan import Plan, PlannedRun

place = Place(Path(sys.argv[1]))
matrix = load_matrix(place.folder / "matrix.yaml")
gpus = tuple(GpuFacts(index=n, gfx="gfx1100", name="g", memory_bytes=1, render_node=None, kfd_id=n + 1) for n in (0, 1))
host = read_host(place.root).model_copy(update={"gpus": gpus})
executor = ProcessExecutor()
python, data = place.folder / "python", place.folder / "bars.csv"
bench = Bench(place.results, executor, host, (0, 1), python, data, root=place.root)
runs = tuple(PlannedRun(matrix.cells["host-plain"], n, (gpu,), f"-gpu{gpu}") for n in (1, 2) for gpu in (0, 1))
plan = Plan(matrix.workloads["trivial"], runs, (), 0, 0, None, "", 0, None)
display = CampaignDisplay(Console(stderr=True))
# On a busy host, one campaign may end before the other has imported everything.
(place.folder / f"ready-{os.getpid()}").touch()
until = time.monotonic() + 120
while len(list(place.folder.glob("ready-*"))) < 2 and time.monotonic() < until:
    time.sleep(0.05)
with begin_or_continue(plan, bench) as (campaign, _):
    run_plan(plan, campaign, Runner(bench, plan.workload, display, campaign.id, len(runs)))
"""


@pytest.mark.parametrize("part", [0, 1])
def test_nothing_is_lost_at_any_point(part: int) -> None:
    """Kill the harness at each of the named points, which must be reached, and at random moments in between."""
    chance = random.Random(part)
    points = [point for point in POINTS if point not in ONLY_IN_CONTAINERS][part::2]
    plan = [Kill(point) for point in points]
    for _ in range(RANDOM_KILLS // 2):
        plan.insert(chance.randrange(len(plan)), Kill(seconds=chance.uniform(0.5, 3)))
    figures = Figures()
    kill_often(plan, figures, None)
    assert figures.wrong == []
    assert [point for point in points if not figures.kills[point]] == []
    assert figures.records > 0
    # Here the limit is generous; `make bench-kills` measures the goal itself on a quiet machine.
    assert max(figures.restart_seconds) < 12 * GOAL_SECONDS


def test_the_restart_that_finishes_is_timed_as_no_kill_cuts_it_short(place: Place) -> None:
    tester = kill_tester.Tester(place, Figures())
    assert tester.kill(Kill("running"))
    tester.finish()
    assert tester.figures.wrong == []
    assert len(tester.figures.restart_seconds) == 1


def records(place: Place, gpu: int) -> list[Record]:
    return sorted(
        (record for record in place.results.records() if f"-gpu{gpu}-" in record.intent.run_id),
        key=lambda record: record.intent.started,
    )


def overlap(one: Record, other: Record) -> bool:
    return one.intent.started < other.finished and other.intent.started < one.finished


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    made.make()
    return made


def test_two_campaigns_share_two_gpus(place: Place) -> None:
    command = [sys.executable, "-c", SIDE_BY_SIDE, str(place.folder)]
    both = [subprocess.Popen(command, cwd=CHECKOUT, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    told = [process.communicate(timeout=120)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], "\n".join(told)
    on = [records(place, gpu) for gpu in (0, 1)]
    assert [len(runs) for runs in on] == [4, 4]
    assert {record.outcome for runs in on for record in runs} == {"completed"}
    for runs in on:
        assert not any(overlap(one, other) for one, other in combinations(runs, 2))
    assert any(overlap(one, other) for one in on[0] for other in on[1])


def test_a_harness_waits_for_the_orphan_of_another_results_folder(place: Place) -> None:
    other = Place(place.folder / "other")
    other.folder.mkdir()
    other.make()
    (other.folder / SLOW).write_text("5", encoding="utf-8")
    # Both harnesses are on one machine: they share the locks, but not the results.
    (other.root / "run/lock").rmdir()
    (other.root / "run/lock").symlink_to(place.root / "run/lock")
    assert other.start("running").wait(240) == -signal.SIGKILL
    (orphan,) = other.results.unfinished()
    assert place.start().wait(120) == 0
    said = place.said
    assert f"GPU 0 is in use by run {other.results.run_folder(orphan.run_id)}" in said
    assert f"process {orphan.owner_pid}, which is gone" in said
    # A harness does not close the runs of another results folder.
    assert [intent.run_id for intent in other.results.unfinished()] == [orphan.run_id]
    assert {record.outcome for record in place.results.records()} == {"completed"}
