"""Cells that reset or poison GPUs, through the whole line on a simulated host with two gfx1100 and its kernel log."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kill_tester import STAND_IN_BARS
from harness.host.simulated import dual_7900xt
from tests.system.conftest import MATRIX, PROGRAM, in_this_process

# Starts alone, of few runs: five without a failure would be known-good.
VERDICTS = """\
verdicts:
  candidate: 0.2
  good: 0.3
  known_good: 0.5
  known_good_boots: 1
  mtbf_hours: {candidate: 0, good: 0, known_good: 0}
"""


class Simulated:
    """A simulated host, as `matrix simulate` writes it, and the runs of one cell on it as a plan says."""

    def __init__(self, folder: Path) -> None:
        self.root, self.results, self.plan = folder / "host", folder / "results", folder / "plan"
        dual_7900xt(self.root)
        words = shlex.join([sys.executable, "-I", "-S", str(Path(__file__).with_name("stand_in_gpu.py"))])
        given = shlex.join([str(self.root), str(self.plan)])
        self.python = folder / "python"
        self.python.write_text(f'#!/bin/sh\nexec {words} {given} "$@"\n', encoding="utf-8")
        self.python.chmod(0o755)
        (folder / "bars.csv").write_text(STAND_IN_BARS, encoding="utf-8")
        self.matrix = folder / "matrix.yaml"
        stack = 'accelerator: cpu, torch: "2.13.0"', "accelerator: any"
        self.matrix.write_text(
            MATRIX.replace(*stack).replace("epochs: 2\n", "epochs: 1\n") + VERDICTS, encoding="utf-8"
        )

    def matrix_says(self, *words: str, status: int | None = 0) -> str:
        """Run a command on that host, in this process; what it printed."""
        places = ("--matrix", str(self.matrix), "--results", str(self.results), "--root", str(self.root))
        done = in_this_process([PROGRAM, *places, *words])
        assert status in (None, done.returncode), done.stdout + done.stderr
        return done.stdout

    def run(self, plan: str, cell: str = "cpu-plain") -> None:
        """Run a cell once for each letter."""
        for letter in plan:
            self.plan.write_text(letter, encoding="utf-8")
            place = ("--python", str(self.python), "--data", str(self.matrix.with_name("bars.csv")))
            self.matrix_says("run", cell, "--workload", "tiny", *place, status=None)
            assert self.plan.read_text(encoding="utf-8") == "", "it was not begun"

    def verdict(self, cell: str = "cpu-plain") -> dict[str, Any]:
        """The one verdict on a cell."""
        (one,) = [one for one in json.loads(self.matrix_says("status", "--json"))["verdicts"] if one["cell"] == cell]
        assert (one["simulated"], one["scope"]) == (True, "simulated-gfx1100")
        return dict(one)


@pytest.fixture
def host(tmp_path: Path) -> Simulated:
    return Simulated(tmp_path)


def counted(verdict: dict[str, Any]) -> tuple[int, int, int]:
    """Passes, runs, and GPU faults among them."""
    return verdict["passes"], verdict["runs"], len(verdict["gpu_faults"])


@pytest.mark.slow
def test_a_reset_counts_against_the_run_it_befell_completed_or_not(host: Simulated) -> None:
    host.run("prs")
    verdict = host.verdict()
    assert counted(verdict) == (1, 3, 2)
    assert verdict["tier"] == "flaky"
    told = json.loads(host.matrix_says("status", "cpu-plain", "--json"))["runs"]
    assert [(run["outcome"], run["counts_as"]) for run in told] == [
        ("completed", "passed"),
        ("host-fault", "failed"),
        ("completed", "failed"),
    ]


@pytest.mark.long
def test_a_cell_that_resets_the_gpu_every_second_time_is_flaky(host: Simulated) -> None:
    """What the first version called known-good, `33 of 33, 33 host-fault`."""
    host.run("pr" * 7)
    verdict = host.verdict()
    assert counted(verdict) == (7, 14, 7)
    assert verdict["tier"] == "flaky"
    assert verdict["diagnoses"] == {"unhealthy-gpu": 7}


@pytest.mark.long
def test_one_that_completed_beside_nine_host_faults_is_far_from_known_good(host: Simulated) -> None:
    host.run("p" + "r" * 9)
    assert (counted(host.verdict()), host.verdict()["tier"]) == ((1, 10, 9), "flaky")


@pytest.mark.long
def test_resets_after_many_passes_take_a_verdict_down(host: Simulated) -> None:
    host.run("p" * 6)
    assert (counted(host.verdict()), host.verdict()["tier"]) == ((6, 6, 0), "known-good")
    host.run("r" * 12)
    verdict = host.verdict()
    assert counted(verdict) == (6, 18, 12)
    assert verdict["tier"] == "flaky"


@pytest.mark.long
def test_who_completes_and_leaves_the_gpu_unhealthy_has_failed_and_not_who_follows(host: Simulated) -> None:
    for _ in range(4):
        host.run("u", "cpu-one")
        host.run("p")
    poisoner, control = host.verdict("cpu-one"), host.verdict()
    assert (counted(poisoner), poisoner["tier"]) == ((0, 4, 4), "failing")
    assert (counted(control), control["tier"]) == ((4, 4, 0), "good")
