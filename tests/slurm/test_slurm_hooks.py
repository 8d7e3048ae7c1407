"""Tests of the printed hooks, run by a real slurmd: which processes they end, and when they drain a node."""

import os
import pwd
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.kill_tester import STAND_IN_BARS
from harness.base.paths import CHECKOUT
from harness.doctor.ask import ask_slurm
from harness.environments.executors.docker import LABEL
from harness.evidence.files.run_files import HealthStep
from harness.evidence.gpus.health_log import append_steps
from harness.evidence.gpus.host_changes import host_of
from harness.evidence.records import Results
from harness.host.processes.run_processes import processes_of_run, run_mark
from harness.rehearsal.stand_in_app import ENDLESS, SLOW
from tests.slurm.cluster import Cluster, cluster
from tests.slurm.stand_in_images import built, engine_here, write_matrix
from tests.slurm.test_images import ContainerCampaign, save
from tests.slurm.test_slurm import Campaign, check, has_step_left, job, left_of, node_of, note_as_known, wait

MATRIX = Path(sys.executable).parent / "matrix"


def installed(place: Path) -> str:
    """Install the hooks as the command prints them, but in this folder; return the lines for slurm.conf."""
    words = [str(MATRIX), "--results", str(place / "results"), "slurm-prolog"]
    told = subprocess.run(words, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
    told = told.replace("/etc/slurm/", f"{place}/")
    scripts, _, lines = told.partition("# In slurm.conf")
    subprocess.run(["sh", "-e"], input=scripts, text=True, check=True)
    return "\n".join(re.findall(r"^(?:Prolog|Epilog)=.*$", lines, re.MULTILINE))


def states_of(slurm: Cluster, form: str) -> list[str]:
    """Return what sinfo prints about each node."""
    return sorted(slurm.ask("sinfo", "--noheader", "--Node", "--partition=gpus", f"--format={form}").split("\n"))


def note_unhealthy(results: Results) -> None:
    """Note the finding of a probe after a failure: a GPU that hangs."""
    host = host_of(results, Path("/"))
    step = HealthStep(
        machine=host.machine,
        boot_id=host.boot_id,
        run_id="r1",
        environment="e" * 64,
        when="after-failure",
        check="probe",
        gpu=0,
        good=False,
        detail="hung",
        at=time.time(),
        seconds=1.0,
    )
    append_steps(results, [step])


def test_slurmd_runs_the_hooks(slurm: Cluster, place: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    if not os.access(pwd.getpwuid(os.getuid()).pw_dir, os.W_OK):
        pytest.skip("hooks are run as root, or as another user who has a home")
    results = Results(place / "results")
    lines = installed(place)
    with cluster(tmp_path_factory.mktemp("hooked"), 2, more=lines) as hooked, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", hooked.environment["SLURM_CONF"])
        assert [(one.name, one.ours) for one in ask_slurm()] == [
            ("Prolog", f"{place}/rocm-matrix-prolog"),
            ("Epilog", f"{place}/rocm-matrix-epilog"),
        ]
        (place / SLOW).write_text("100")
        campaign = Campaign(place, 2, environment=hooked.environment)
        note_as_known(results, hooked.nodes)
        campaign.start()
        wait(lambda: len(campaign.running()) == 2)
        wait(lambda: len(left_of(place)) >= 2)
        assert campaign.process
        campaign.process.send_signal(signal.SIGSTOP)
        victim, other = campaign.running()
        os.kill(victim.owner_pid, signal.SIGKILL)
        wait(lambda: not processes_of_run(results.run_folder(victim.run_id)))
        assert not results.has_record(victim.run_id)
        (place / SLOW).write_text("0.1")
        note_unhealthy(results)
        hooked.ask("scancel", f"--nodelist={node_of(other)}")
        campaign.process.send_signal(signal.SIGCONT)
        assert campaign.finish() == 0, (place / "said.txt").read_text()
        check(campaign, {record.intent.run_id: record for record in results.records()})
        # The epilog of the last job may still run.
        wait(lambda: states_of(hooked, "%t %E") == ["drain Prolog error", "idle none"])
        assert left_of(place) == []


def test_the_epilog_removes_the_container_of_a_job_that_lost_its_harness(
    slurm: Cluster, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # Use the fixture, so that the test is skipped where Slurm is missing.
    assert slurm.nodes
    # All nodes use this engine as well.
    engine = engine_here()
    (tmp_path / "bars.csv").write_text(STAND_IN_BARS)
    (tmp_path / "saved").mkdir()
    lines = installed(tmp_path)
    matrix = write_matrix(tmp_path, f"{tmp_path}/saved", epochs=ENDLESS)
    campaign = ContainerCampaign(tmp_path, 1, ("--on", "lab"))

    def containers() -> list[str]:
        marks = {run_mark(folder) for folder in campaign.results.runs.glob("*")}
        found = engine.client.api.containers(all=True, filters={"label": LABEL})
        return [one["Id"] for one in found if one["Labels"][LABEL] in marks]

    with (
        built(engine, matrix, tmp_path / "context"),
        cluster(tmp_path_factory.mktemp("containers"), 1, 0, more=lines) as hooked,
    ):
        save(engine, matrix, tmp_path)
        campaign.environment = hooked.environment
        campaign.start()
        try:
            wait(lambda: campaign.running() and containers())
            assert campaign.process
            # Stopped, because otherwise it would have the node write the record, which removes the container too.
            campaign.process.send_signal(signal.SIGSTOP)
            (run,) = campaign.running()
            os.kill(run.owner_pid, signal.SIGKILL)
            wait(lambda: not containers(), 60)
            assert not campaign.results.has_record(run.run_id)
            wait(
                lambda: hooked.ask("sinfo", "--noheader", "--Node", "--partition=gpus", "--format=%t %E") == "idle none"
            )
        finally:
            campaign.kill()
            for left in containers():
                engine.client.api.remove_container(left, force=True)


FREEZER = Path("/sys/fs/cgroup/freezer")


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Freeze a process: in control groups of version 1, SIGKILL then does not end it, as with a process in state D."""
    group = FREEZER / f"matrix-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("a process that cannot be killed takes version 1 of control groups, and root")
    try:
        (group / "cgroup.procs").write_text(str(pid))
        (group / "freezer.state").write_text("FROZEN")
        yield
    finally:
        (group / "freezer.state").write_text("THAWED")
        wait(lambda: not (group / "cgroup.procs").read_text(), 30)
        group.rmdir()


@pytest.mark.long
def test_a_process_that_cannot_be_killed_drains_its_node_and_is_named_by_the_record(
    slurm: Cluster, place: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # Use the fixture, so that the test is skipped where Slurm is missing.
    assert slurm.nodes
    lines = f"{installed(place)}\nUnkillableStepTimeout=5"
    with cluster(tmp_path_factory.mktemp("unkillable"), 2, kill_wait=5, more=lines) as hooked:
        (place / SLOW).write_text("100")
        campaign = Campaign(place, 1, environment=hooked.environment)
        note_as_known(campaign.results, hooked.nodes)
        campaign.start()
        wait(campaign.running)
        (run,) = campaign.running()
        wait(lambda: has_step_left(campaign, run))
        victims = left_of(place)

        def alone() -> bool:
            victims[:] = left_of(place)
            return len(victims) == 1

        wait(alone)
        (victim,) = victims
        with frozen(victim.pid):
            hooked.ask("scancel", job(run))
            assert campaign.finish() == 1, (place / "said.txt").read_text()
            assert victim.is_running()
            other = next(name for name in hooked.nodes if name != node_of(run))
            wait(lambda: states_of(hooked, "%N %t") == sorted([f"{node_of(run)} drain", f"{other} idle"]))
            (record,) = campaign.results.records()
            assert (record.outcome, record.diagnosis) == ("host-fault", "unkillable")
            assert f"cannot be killed: {victim.pid} (" in record.detail
            assert "in an uninterruptible wait (state D)" in record.detail
