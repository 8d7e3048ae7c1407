"""Tests of nodes with simulated GPUs, which Slurm manages as gres, of two host kinds: one has another kernel."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.evidence.files.run_files import Record
from harness.host.fingerprint import read_host
from harness.host.simulated import dual_7900xt
from harness.slurm.nodes import note_node
from tests.slurm.cluster import Cluster, cluster
from tests.slurm.test_slurm import Campaign, held, job, node_of, wait

NODES = ("n1", "n2")
TASK_PROLOG = "#!/bin/sh\necho export MATRIX_ROOT={}/$SLURMD_NODENAME\n"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with /sys, /proc and /dev of each node."""
    folder = tmp_path_factory.mktemp("hosts")
    for name in NODES:
        host = dual_7900xt(folder / name)
        if name == "n2":
            host.kernel("6.99.0")
    return folder


@pytest.fixture(scope="module")
def gpus(slurm: Cluster, hosts: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    # Use the fixture, so that the test is skipped where Slurm is missing.
    assert slurm.nodes
    prolog = hosts / "task-prolog"
    prolog.write_text(TASK_PROLOG.format(hosts))
    prolog.chmod(0o755)
    with cluster(tmp_path_factory.mktemp("gpus"), 2, gpu_type="amd", more=f"TaskProlog={prolog}") as running:
        yield running


def records_of(campaign: Campaign) -> dict[str, Record]:
    return {record.intent.run_id: record for record in campaign.results.records()}


def test_nodes_are_asked_again_after_a_boot_and_each_host_kind_has_a_campaign_of_its_own(
    gpus: Cluster, hosts: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign = Campaign(place, 1, environment=gpus.environment)
    with monkeypatch.context() as before_the_boot:
        before_the_boot.setattr(time, "time", lambda: 1.0)
        for name in NODES:
            note_node(campaign.results, name, read_host(hosts / "n1"))
    with held(place):
        campaign.start()
        wait(campaign.running)
        granted = gpus.ask("scontrol", "--details", "show", "job", job(campaign.running()[0]))
    assert re.search(r"GRES=gpu:amd:2\(IDX:0-1\)", granted), granted
    assert campaign.finish() == 0, (place / "said.txt").read_text()
    records = records_of(campaign)
    assert len(records) == 2 * campaign.runs
    of_node = {name: [one.intent for one in records.values() if node_of(one.intent) == name] for name in NODES}
    assert [len({one.campaign for one in intents}) for intents in of_node.values()] == [1, 1]
    for name, intents in of_node.items():
        assert {one.host.kind for one in intents} == {read_host(hosts / name).kind}
        assert {(one.host.simulated, tuple(gpu.gfx for gpu in one.host.gpus)) for one in intents} == {
            (True, ("gfx1100", "gfx1100"))
        }
    said = (place / "said.txt").read_text()
    assert "asking what 2 nodes are" in said
    assert "n1: " in said
    assert "n2: " in said
