"""Prolog and Epilog, which Slurm runs on a node before and after each job. If a hook fails, Slurm drains the node."""

import os
import shlex
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from harness.base.errors import UserError
from harness.base.files.storage import SAFE_OPEN_FLAGS, read_regular, write_durably
from harness.base.paths import state_folder
from harness.campaign.recovery import end_run
from harness.environments.executors.job import Executor
from harness.evidence.files.run_files import Intent
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.gpus.health_log import read_steps, unhealthy_gpus
from harness.evidence.records import Results, check_run_id
from harness.host.facts import HostFacts
from harness.host.processes.run_processes import cannot_be_killed, marked_runs
from harness.slurm.job_script import job_output

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
    """Return the commands and configuration lines that install both hooks. Pure."""
    names = ("prolog", "epilog")
    commands = {name: shlex.join([str(program), "--results", str(results), f"slurm-{name}"]) for name in names}
    scripts = "".join(SCRIPT.format(place=PLACE.format(name), command=commands[name]) for name in names)
    return INSTALL.format(scripts=scripts.rstrip("\n"), prolog=PLACE.format("prolog"), epilog=PLACE.format("epilog"))


def why_drain(results: Results, host: HostFacts) -> str | None:
    """Return why a node should take no jobs: a GPU was found unhealthy since boot; None if none was.

    Each finding drains the node only once: whoever resumes the node takes it to be well, and the next probe decides.
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
        told.append(f"this could not be saved, so the node is drained again after it is resumed: {error}")
    return "; ".join(told)


def end_job(results: Results, job: str, executor_of: Callable[[Intent], Executor | None]) -> dict[str, str]:
    """End what a job left of its runs on this node; return a message for each run with a process that cannot be killed.

    This includes runs that have a record, because a process that their harness could not kill disturbs the next job.
    The hook writes no records: that is left to the process that follows the runs, because root may not be able to write
    to the results folder.
    """
    unkillable = {}
    unfinished = {run_id for run_id in results.begun() if not results.has_record(run_id)}
    for intent in _intents(results, sorted(unfinished | marked_runs(results.runs))):
        if intent.scheduled and intent.scheduled.job == job:
            ended = False
            with suppress(UserError):
                ended = end_run(intent, results, executor_of(intent))
            if not ended:
                unkillable[intent.run_id] = cannot_be_killed(results.run_folder(intent.run_id))
    return unkillable


def _intents(results: Results, run_ids: Iterable[str]) -> Iterator[Intent]:
    """Yield the intents that can be read and that name the same run as their folder.

    Root acts on these files, but the user of the job wrote them.
    """
    for run_id in run_ids:
        with suppress(UserError):
            check_run_id(run_id)
            if intent := results.intent(run_id):
                yield intent


def tell_in_output(results: Results, run_id: str, text: str) -> None:
    """Append a line to the output of a run's job, which the run's record then quotes, if root may do so.

    The file must already exist, belong to the run's owner, and be no link: those who may write to the results folder
    must not be able to choose where root writes.
    """
    place = job_output(results, run_id)
    with suppress(OSError, UserError), ExitStack() as stack:
        check_run_id(run_id)
        owner = (results.run_folder(run_id) / RunFolder.INTENT).lstat().st_uid
        folder = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY | SAFE_OPEN_FLAGS)
        stack.callback(os.close, folder)
        output = os.open(place.name, os.O_WRONLY | os.O_APPEND | SAFE_OPEN_FLAGS, dir_fd=folder)
        stack.callback(os.close, output)
        there = os.fstat(output)
        if stat.S_ISREG(there.st_mode) and there.st_nlink == 1 and there.st_uid == owner:
            os.write(output, f"\n{text}\n".encode())
