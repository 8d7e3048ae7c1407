"""Tests that the GPU evidence kit runs without the harness, and that the report reads what the kit writes."""

import subprocess
from pathlib import Path

import pytest

from harness.base.paths import CHECKOUT
from harness.environments.environment import Environment
from harness.evidence.gpus.gpu_evidence import read_gpu_evidence
from harness.evidence.records import Results
from harness.report.sections.code_evidence import code_evidence


@pytest.mark.slow
def test_the_report_reads_what_the_kit_writes(environment: Environment, tmp_path: Path) -> None:
    results, arrays = Results(tmp_path), tmp_path / "arrays"
    arrays.touch()
    rows = ("environment", "probe-copy", "illegal-access")
    options = ("--device", "cpu", "--budget", "60", "--output", results.gpu_evidence / "now", "--arrays", arrays)
    kit = (environment.python, "-m", "benchmarks.gpu_evidence", *rows, *options)
    done = subprocess.run(kit, cwd=CHECKOUT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = read_gpu_evidence(results)
    assert [one.problem for one in found] == [""]
    (run,) = code_evidence(found).runs
    assert not run.on_gpu
    assert {row.row: row.verdict for row in run.rows} == dict.fromkeys(rows[:2], "held") | {rows[2]: "not-applicable"}
