"""Fixtures with a private Slurm, which runs as the tests' user; visibly skipped if its programs are missing."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from benchmarks.kill_tester import STAND_IN_BARS, write_stand_in
from tests.slurm.cluster import Cluster, cluster, missing_programs

MATRIX = """\
schema: 2
stacks: {host: {accelerator: any}}
presets: {plain: {description: nothing set}}
workloads:
  trivial: {description: d, epochs: 1, batch_size: 64, time_limit: 600, synthetic: {sessions: 26}, lookback: 20}
hosts: {limited: {partition: short}}
selections: {default: {description: d, stacks: all, presets: all, workload: trivial}}
"""


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    missing = missing_programs()
    if missing and os.environ.get("REQUIRE_SLURM"):
        pytest.fail(f"no {', '.join(missing)}: apt-get install slurmctld slurmd slurm-client")
    if missing:
        pytest.skip(f"no {', '.join(missing)}: apt-get install slurmctld slurmd slurm-client")
    # A short path without blanks, because sockets are created in it.
    with cluster(tmp_path_factory.mktemp("slurm"), kill_wait=15) as running, pytest.MonkeyPatch.context() as patch:
        for name in ("SLURM_CONF", "PATH"):
            patch.setenv(name, running.environment[name])
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield running


def write_matrix_and_stand_in(folder: Path) -> None:
    """Write a matrix file and a stand-in for the app."""
    (folder / "matrix.yaml").write_text(MATRIX)
    (folder / "bars.csv").write_text(STAND_IN_BARS)
    write_stand_in(folder / "python")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder with a matrix file and a stand-in for the app; processes that run in it are killed afterwards."""
    write_matrix_and_stand_in(tmp_path)
    yield tmp_path
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.cwd().startswith(str(tmp_path)) and process.pid != os.getpid():
                process.kill()
