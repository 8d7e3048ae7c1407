"""Tests of the real app's probe in the recovery of a GPU, run on a CPU, so it says nothing about any real GPU."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.base.paths import APP
from harness.environments.environment import Environment
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.files.app_files import InputFile
from harness.evidence.files.run_folder import RunFolder
from harness.host.facts import GpuFacts, HostFacts
from harness.matrix.cells import Cell, Matrix
from harness.run import gpu_probe
from harness.run.gpu_probe import PROBE_CHECKS, probe_gpu
from harness.run.requested_run import Run
from harness.run.spec import resolve_run

# On a CPU, the app ignores which GPU it may use.
GPU = GpuFacts(index=0, gfx="gfx1100", name="g", memory_bytes=None, render_node=None, kfd_id=None)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "runs" / "r1"
    folder.mkdir(parents=True)
    RunFolder(folder).make_places()
    yield folder
    RunFolder(folder).remove_places(all_of_it=False)


@pytest.mark.slow
def test_what_the_app_prints_is_understood(
    folder: Path,
    small_matrix: Matrix,
    environment: Environment,
    host: HostFacts,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = environment.app("probe", "--list")
    listed = subprocess.run(command, cwd=APP, capture_output=True, text=True, check=True).stdout
    assert {*PROBE_CHECKS} <= {*listed.split()}
    # Each check takes seconds of a processor; what they print is alike.
    monkeypatch.setattr(gpu_probe, "PROBE_CHECKS", PROBE_CHECKS[:2])
    cell = Cell(small_matrix.stacks["cpu"], small_matrix.presets["plain"])
    data = InputFile(path="/bars.csv", sha256="a" * 64)
    run = Run("r1", cell, small_matrix.workloads["tiny"], data, environment, host)
    told = probe_gpu(resolve_run(run, RunFolder(folder)), GPU, ProcessExecutor())
    assert (told.good, told.detail, told.killable) == (True, "2 checks passed", True)
