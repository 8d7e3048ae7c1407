"""Tests that the commands of docs/slurm.md make a campaign, with changes to run both hosts on one, without root."""

import os
import pwd
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest

from harness.base.paths import CHECKOUT
from harness.evidence.records import Results
from harness.rehearsal.stand_in_app import HELD
from tests.slurm.cluster import DAEMONS, Cluster, free_ports
from tests.slurm.test_slurm import wait

PAGE = CHECKOUT / "docs" / "slurm.md"
USER = pwd.getpwuid(os.getuid()).pw_name
HOSTS = (("one",), ("one", "two"), ("two",), ("one",))
# Changes to the page's text that run two hosts on one, without root and munge; each must apply exactly once.
INSTEAD = {
    r"SlurmctldHost=one": "SlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort={0}",
    r"SlurmUser=slurm": f"SlurmUser={USER}\nSlurmdUser={USER}",
    r"AuthType=auth/munge": "AuthType=auth/none\nCredType=cred/none",
    r"/var/lib/slurm/slurmd": "{folder}/spool-%n",
    r"/var/lib/slurm/slurmctld": "{folder}/state",
    r"proctrack/cgroup": "proctrack/linuxproc",
    r"task/cgroup": "task/none\nSlurmctldPidFile={folder}/slurmctld.pid\nSlurmdPidFile={folder}/%n.pid",
    r"NodeName=one,two CPUs=2 (?P<what>.*)": "NodeName=one NodeHostname=localhost NodeAddr=127.0.0.1 Port={1} {cpus} "
    "\\g<what>\nNodeName=two NodeHostname=localhost NodeAddr=127.0.0.1 Port={2} {cpus} \\g<what>",
    r"File=/dev/dri/": "File={folder}/",
    r"clone REPOSITORY": f"clone --quiet {CHECKOUT}",
    r"rocm6.3-torch2.9.1-plain": "host-plain --python python --data bars.csv",
}
PROGRAMS = {
    "sudo": 'exec "$@"',
    "ssh": 'shift; exec "$@"',
    "apt-get": "",
    # Debian's service units pass no name: slurmd takes its node name from the host name.
    "systemctl": """\
test "$1" = restart || exit 0
shift
for unit in "$@"; do
    case $unit in
        slurmctld) setsid slurmctld -D >>{folder}/slurmctld.out 2>&1 & echo $! >>{folder}/pids ;;
        slurmd) setsid slurmd -D -N "$NODE" >>{folder}/slurmd.out 2>&1 & echo $! >>{folder}/pids ;;
        munge) ;;
        *) exit 1 ;;
    esac
done""",
    "make": """\
test "$*" = setup || exit 1
ln -s {checkout}/.venv .venv
cp {place}/matrix.yaml {place}/bars.csv {place}/{held} {place}/python .
# As a person would: a slurmd that found no slurmctld tries again later and later.
until [ "$(sinfo --noheader --Node --format=%t | grep -cx idle)" = 2 ]; do sleep 0.2; done""",
}


def blocks() -> list[str]:
    """Return the commands of the section, one block for each place where the page says on which host."""
    section = PAGE.read_text().partition("## From nothing to two nodes")[2].partition("\n## ")[0]
    return re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def for_one_host(text: str, folder: Path) -> str:
    ports = free_ports(3)
    for pattern, instead in INSTEAD.items():
        cpus = f"CPUs={os.cpu_count()}"
        text, count = re.subn(pattern, instead.format(*ports, folder=folder, cpus=cpus), text)
        assert count == 1, pattern
    return re.sub(r"/shared\b|/etc/(?=slurm|munge)", lambda found: f"{folder}{found[0]}", text)


@pytest.fixture
def folder(place: Path) -> Iterator[Path]:
    """Yield a folder with stand-ins for commands that need root; processes that were started there are ended."""
    hosts = place / "hosts"
    for name in ("bin", "state", "spool-one", "spool-two", "etc/slurm", "etc/munge"):
        (hosts / name).mkdir(parents=True)
    (hosts / "etc" / "munge" / "munge.key").touch()
    for gpu in ("128", "129"):
        (hosts / f"renderD{gpu}").touch()
    (hosts / "etc" / "slurm" / "cgroup.conf").write_text("CgroupAutomount=no\nCgroupPlugin=cgroup/v1\n")
    for name, does in PROGRAMS.items():
        file = hosts / "bin" / name
        script = (
            does.replace("{folder}", str(hosts))
            .replace("{checkout}", str(CHECKOUT))
            .replace("{place}", str(place))
            .replace("{held}", HELD)
        )
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
    (place / HELD).touch()
    yield hosts
    pids = (hosts / "pids").read_text().split() if (hosts / "pids").exists() else []
    for pid in map(int, pids):
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGTERM)


def release(results: Results, held: Path) -> None:
    """Let the runs go on as soon as there are two of them."""
    with suppress(AssertionError):
        wait(lambda: len(list(results.unfinished([]))) == 2)
    held.unlink(missing_ok=True)


def test_its_commands_make_a_cluster_of_two_nodes_and_a_campaign_on_them(slurm: Cluster, folder: Path) -> None:
    # Use the fixture, so that the test is skipped where Slurm is missing.
    assert slurm.nodes
    between = "\n#### next\n"
    typed = for_one_host(between.join(blocks()), folder).split(between)
    assert len(typed) == len(HOSTS)
    path = f"{folder}/bin:{os.environ['PATH']}:{DAEMONS}"
    printed = {}
    # Both runs have their nodes before one of them ends.
    results = Results(folder / "shared" / "matrix" / "results")
    Thread(target=release, args=(results, folder / "shared" / "matrix" / HELD), daemon=True).start()
    for number, (hosts, text) in enumerate(zip(HOSTS, typed, strict=True)):
        for host in hosts:
            done = subprocess.run(
                ["sh", "-eu"],
                input=text,
                env={**os.environ, "PATH": path, "NODE": host, "SLURM_CONF": f"{folder}/etc/slurm/slurm.conf"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=200,
            )
            assert done.returncode == 0, f"{text}\n{done.stdout}"
            printed[number] = done.stdout
    assert {line.split()[0] for line in printed[3].splitlines() if " gpus* " in line} == {"one", "two"}, printed[3]
    records = list(results.records())
    assert [one.outcome for one in records] == ["completed"] * 2, printed[3]
    assert {one.intent.scheduled.node for one in records if one.intent.scheduled} == {"one", "two"}
