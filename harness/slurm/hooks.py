"""Prolog and Epilog, which Slurm runs on a node before and after each job. Either drains the node where it fails."""

import shlex
from collections.abc import Callable
from pathlib import Path

from harness.base.errors import UserError
from harness.base.paths import state_folder
from harness.base.storage import read_regular, write_durably
from harness.campaign.recovery import end_run
from harness.environments.executors.job import Executor
from harness.evidence.health_log import read_steps, unhealthy_gpus
from harness.evidence.records import Results
from harness.evidence.run_files import Intent
from harness.host.facts import HostFacts

FOLDER = "slurm-drained"
PLACE = "/etc/slurm/rocm-matrix-{}"
INSTALL = """\
# On every node, as root; the checkout and the results folder are read there by root.
{scripts}
# In slurm.conf of the cluster, then `scontrol reconfigure`:
Prolog={prolog}
Epilog={epilog}
"""
SCRIPT = """\
install -m 755 /dev/stdin {place} <<'END'
#!/bin/sh
exec {command}
END
"""


def installation(program: Path, results: Path) -> str:
    """Return the commands and lines that install both hooks. Pure."""
    names = ("prolog", "epilog")
    commands = {name: shlex.join([str(program), "--results", str(results), f"slurm-{name}"]) for name in names}
    scripts = "".join(SCRIPT.format(place=PLACE.format(name), command=commands[name]) for name in names)
    return INSTALL.format(scripts=scripts.rstrip("\n"), prolog=PLACE.format("prolog"), epilog=PLACE.format("epilog"))


def why_drain(results: Results, host: HostFacts) -> str | None:
    """Return why a node must take no jobs: a GPU that was found unhealthy since the boot; None where none was.

    A finding drains it once: who resumes the node means that it is well, and the next probe tells.
    """
    unhealthy = unhealthy_gpus(results, host)
    if not unhealthy:
        return None
    steps = read_steps(results, host.machine)
    found = max((step.at for step in steps if step.boot_id == host.boot_id and step.good is False), default=0.0)
    file = state_folder() / FOLDER / f"{host.machine}.{host.boot_id}"
    try:
        before = float(read_regular(file))
    except (OSError, ValueError):
        before = -1.0
    if before >= found:
        return None
    told = [f"GPU {gpu} is unhealthy: {why}" for gpu, why in sorted(unhealthy.items())]
    try:
        write_durably(file, repr(found).encode())
    except UserError as error:
        told.append(f"that is not remembered, and drains it again when it is resumed: {error}")
    return "; ".join(told)


def end_job(results: Results, job: str, executor_of: Callable[[Intent], Executor | None]) -> list[str]:
    """End what a job left of its runs on this node; return the ids of runs of which a process cannot be killed.

    Their records are written by whoever follows them: root may not write to the results folder.
    """
    unkillable = []
    for intent in results.unfinished([]):
        if intent.scheduled and intent.scheduled.job == job:
            try:
                ended = end_run(intent, results, executor_of(intent))
            except UserError:
                ended = False
            if not ended:
                unkillable.append(intent.run_id)
    return unkillable
