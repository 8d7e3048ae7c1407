"""The files of docs/reference/slurm.md, as written but for what two hosts on one take: a real Slurm reads them."""

import os
import pwd
import re
import subprocess
import sys
from pathlib import Path

from harness.base.paths import CHECKOUT
from harness.evidence.records import Results
from tests.slurm.cluster import Cluster, free_ports, run_cluster

PAGE = CHECKOUT / "docs" / "reference" / "slurm.md"
USER = pwd.getpwuid(os.getuid()).pw_name
# Of two hosts on one, without root and munge.
INSTEAD = {
    r"SlurmctldHost=one": "SlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort={0}",
    r"SlurmUser=slurm": f"SlurmUser={USER}\nSlurmdUser={USER}",
    r"AuthType=auth/munge": "AuthType=auth/none\nCredType=cred/none",
    r"/var/lib/slurm/slurmd": "{folder}/spool-%n",
    r"/var/lib/slurm/slurmctld": "{folder}/state",
    r"proctrack/cgroup": "proctrack/linuxproc",
    r"task/cgroup": "task/none\nSlurmctldPidFile={folder}/slurmctld.pid\nSlurmdPidFile={folder}/%n.pid",
    r"NodeName=one,two (?P<what>.*)": "NodeName=one NodeHostname=localhost NodeAddr=127.0.0.1 Port={1} \\g<what>\n"
    "NodeName=two NodeHostname=localhost NodeAddr=127.0.0.1 Port={2} \\g<what>",
}


def file_of_page(name: str) -> str:
    found = re.search(
        rf"^`/etc/slurm/{re.escape(name)}`:\n\n```\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    assert found, name
    return found[1]


def test_its_files_make_a_cluster_of_two_nodes_that_runs_a_campaign(slurm: Cluster, place: Path) -> None:
    folder = place / "slurm"
    for name in ("state", "spool-one", "spool-two"):
        (folder / name).mkdir(parents=True)
    ports = free_ports(3)
    conf = file_of_page("slurm.conf")
    for pattern, instead in INSTEAD.items():
        text = instead.format(*ports, folder=folder)
        conf, count = re.subn(pattern, text, conf)
        assert count == 1, pattern
    cores = os.cpu_count()
    conf = conf.replace("CPUs=2 ", f"CPUs={cores} ")
    for gpu in ("128", "129"):
        (folder / f"renderD{gpu}").touch()
    (folder / "gres.conf").write_text(file_of_page("gres.conf").replace("/dev/dri/", f"{folder}/"))
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\nCgroupPlugin=cgroup/v1\n")
    with run_cluster(folder, conf, ("one", "two")) as two:
        told = two.ask("sinfo", "--noheader", "--Node", "--format=%N %G")
        assert told.split("\n") == ["one gpu:gfx1100:2", "two gpu:gfx1100:2"]
        words = [
            "--matrix",
            "matrix.yaml",
            "--results",
            "results",
            "run",
            "host-plain",
            "--repeats",
            "4",
            "--on",
            "slurm",
        ]
        words += ["--executor", "process", "--python", "python", "--data", "bars.csv"]
        done = subprocess.run(
            [sys.executable, "-P", "-m", "harness", *words],
            cwd=place,
            env=dict(two.environment),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
    nodes = {one.intent.scheduled.node for one in Results(place / "results").records() if one.intent.scheduled}
    assert nodes == {"one", "two"}
