"""Tests of a cell that resets GPUs, through the whole harness, on a simulated host with two gfx1100."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from benchmarks.kill_tester import STAND_IN_BARS
from harness.host.simulated import dual_7900xt
from tests.system.conftest import MATRIX, PROGRAM, in_this_process


class Simulated:
    """A simulated host, as `matrix simulate` writes it, and runs of one cell on it that follow a plan."""

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
        self.matrix.write_text(MATRIX.replace(*stack).replace("epochs: 2\n", "epochs: 1\n"), encoding="utf-8")

    def matrix_says(self, *words: str, status: int | None = 0) -> str:
        """Run a command on that host, in this process, and return its output."""
        places = ("--matrix", str(self.matrix), "--results", str(self.results), "--root", str(self.root))
        done = in_this_process([PROGRAM, *places, *words])
        assert status in (None, done.returncode), done.stdout + done.stderr
        return done.stdout

    def run(self, plan: str) -> None:
        """Run a cell once for each letter of the plan."""
        for letter in plan:
            self.plan.write_text(letter, encoding="utf-8")
            place = ("--python", str(self.python), "--data", str(self.matrix.with_name("bars.csv")))
            self.matrix_says("run", "cpu-plain", "--workload", "tiny", *place, status=None)
            assert self.plan.read_text(encoding="utf-8") == "", "it was not begun"


@pytest.mark.slow
def test_a_reset_counts_against_the_run_it_befell_completed_or_not(tmp_path: Path) -> None:
    host = Simulated(tmp_path)
    host.run("prs")
    (verdict,) = json.loads(host.matrix_says("status", "--json"))["verdicts"]
    assert (verdict["simulated"], verdict["scope"]) == (True, "simulated-gfx1100")
    assert (verdict["passes"], verdict["runs"], len(verdict["gpu_faults"]), verdict["tier"]) == (1, 3, 2, "flaky")
    told = json.loads(host.matrix_says("status", "cpu-plain", "--json"))["runs"]
    assert [(run["outcome"], run["counts_as"]) for run in told] == [
        ("completed", "passed"),
        ("host-fault", "failed"),
        ("completed", "failed"),
    ]
