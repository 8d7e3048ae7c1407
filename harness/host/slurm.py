"""The one module that talks to Slurm, by sbatch, squeue, scancel and sinfo, with options that AMD's Spur knows, too.

Nothing else of Slurm is needed: jobs are found again by their names, without Slurm's database. What scontrol reports
about nodes and settings is used where it is available.
"""

import os
import pwd
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from harness.base.errors import UserError
from harness.host.jobs import NODE_NAME, JobEnding, JobPhase
from harness.host.slurm_programs import SlurmSilentError, run_slurm_program

# Longest wait for an answer inside a job, in seconds: Slurm often leaves half a minute between TERM and KILL, and the
# run needs its record by then.
ANSWER_IN_JOB_SECONDS = 8.0
SEPARATOR = "|"
# Makes the programs of Slurm print times as seconds since 1970.
SECONDS_SINCE_1970 = {"SLURM_TIME_FORMAT": "%s"}
HOOKS = ("Prolog", "Epilog")
# A job id, which becomes an argument of a command; no option begins like this.
_JOB_ID = re.compile(r"[0-9][0-9_+\[\],%-]*", re.ASCII)
_NUMBER = r"[0-9]{1,12}"
MOST_NAMED = 20
WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"})
RUNNING = frozenset({"RUNNING", "COMPLETING", "STAGE_OUT", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING"})
# States of nodes that take jobs, as sinfo abbreviates them.
TAKING_JOBS = frozenset({"idle", "mix", "alloc", "comp", "plnd", "resv", "unk", "boot"})
# Reasons for which a job waits for ever.
NEVER = frozenset({"PartitionTimeLimit", "PartitionNodeLimit", "BadConstraints", "AccountNotAllowed", "QOSNotAllowed"})
# Reasons for which a job waits while other jobs are before it.
ORDINARY = frozenset({"", "None", "Priority", "Resources"})
# sbatch's words for a full queue, after which it retries for minutes.
FULL = "temporarily unable to accept job"


@dataclass(frozen=True)
class SlurmJob:
    """A job as squeue lists it. `node`: where the job runs or ran. `reason`: why it waits."""

    id: str
    name: str
    state: str
    node: str | None
    reason: str

    @property
    def phase(self) -> JobPhase:
        """The phase of the job: it waits, runs or is over."""
        return "waits" if self.state in WAITING else "runs" if self.state in RUNNING else "over"


@dataclass(frozen=True)
class SlurmNode:
    """A node of a partition.

    `seconds`: the longest that a job may take on the node; None without a limit.
    `reason`: why the node takes no jobs.
    """

    name: str
    state: str
    gpus: int
    seconds: float | None
    reason: str

    @property
    def takes_jobs(self) -> bool:
        """True if the node runs jobs or will do so; right after its start, slurmctld does not know any node's state."""
        return self.state.rstrip("*~#!%$@^-+") in TAKING_JOBS


def is_installed() -> bool:
    """Return whether the programs of Slurm are installed on this host."""
    return all(shutil.which(name) for name in ("sbatch", "squeue", "scancel", "sinfo"))


def submit(script: Path) -> str:
    """Submit a script to Slurm, with the options that it contains; return the id of the job.

    Raises:
        SlurmSilentError: when Slurm does not answer, or its queue is full.
        UserError: when Slurm refuses the job.
    """
    said = run_slurm_program(["sbatch", "--parsable", str(script)], until=FULL)
    # With several clusters, a semicolon and the name of the cluster follow the id.
    return said.strip().rpartition("\n")[2].partition(";")[0]


def own_jobs() -> dict[str, SlurmJob]:
    """Return this user's jobs by their names, with those that ended a moment ago.

    Of several jobs of the same name, the newest one that is not over is returned.

    Raises:
        SlurmSilentError: when Slurm does not answer.
    """
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        # As in many containers, the user has no entry in passwd; squeue also takes the number.
        user = str(os.geteuid())
    form = SEPARATOR.join(("%i", "%T", "%N", "%r", "%j"))
    said = run_slurm_program(["squeue", "--noheader", "--states=all", f"--user={user}", "--sort=i", f"--format={form}"])
    jobs: dict[str, SlurmJob] = {}
    for number, state, node, reason, name in _rows(said, 5):
        if not _JOB_ID.fullmatch(number):
            continue
        job = SlurmJob(number, name, state, node or None, reason)
        if name not in jobs or job.phase != "over" or jobs[name].phase == "over":
            jobs[name] = job
    return jobs


def cancel(jobs: Iterable[SlurmJob]) -> None:
    """Cancel jobs; jobs that are over are not changed. Raises SlurmSilentError."""
    ids = [job.id for job in jobs]
    if ids:
        run_slurm_program(["scancel", "--quiet", *ids])


def exclude_nodes(jobs: Iterable[SlurmJob], nodes: Iterable[str]) -> None:
    """Keep waiting jobs away from these nodes, if Slurm does that; Spur may not.

    Jobs that have started stay where they are.
    """
    if ids := ",".join(job.id for job in jobs):
        with suppress(SlurmSilentError, UserError):
            run_slurm_program(["scontrol", "update", f"JobId={ids}", f"ExcNodeList={','.join(nodes)}"])


def nodes_of(partition: str | None) -> list[SlurmNode]:
    """Return the nodes of a partition; of the default partition for None.

    Raises:
        SlurmSilentError: when Slurm does not answer.
        UserError: when there is no such partition.
    """
    form = SEPARATOR.join(("%P", "%N", "%t", "%l", "%G", "%E"))
    words = ["sinfo", "--noheader", "--Node", f"--format={form}"]
    rows = [row for row in _rows(run_slurm_program(words), 6) if re.fullmatch(NODE_NAME, row[1])]
    found = [row for row in rows if (row[0].rstrip("*") == partition if partition else row[0].endswith("*"))]
    if not found:
        named = ", ".join(sorted({row[0].rstrip("*") for row in rows})[:MOST_NAMED]) or "none"
        which = f"no partition {partition!r}" if partition else "no default partition"
        raise UserError(f"Slurm has {which}; it has {named}; name one under hosts: in the matrix file")
    return [
        SlurmNode(name, state, count_gpus(gres), seconds_of(limit), why) for _, name, state, limit, gres, why in found
    ]


def boot_times() -> dict[str, float]:
    """Return when each node was booted, by its name, in seconds since 1970 by the clock of slurmctld.

    The result is empty where Slurm does not report it, as Spur may not: then a run that gets to a node of another kind
    is not begun.
    """
    try:
        words = ["scontrol", "--oneliner", "show", "nodes"]
        said = run_slurm_program(words, ANSWER_IN_JOB_SECONDS, variables=SECONDS_SINCE_1970)
    except (SlurmSilentError, UserError):
        return {}
    found = re.findall(rf"^NodeName=(\S+) .*?\bBootTime=({_NUMBER})\b", said, re.MULTILINE)
    return {name: float(at) for name, at in found}


def hooks_of_nodes() -> dict[str, tuple[str, ...]] | None:
    """Return the programs that Slurm runs on a node before and after a job, by `Prolog` and `Epilog`.

    Return None where Slurm does not report them: Spur has no `scontrol show config`. Only advice depends on this.
    """
    try:
        said = run_slurm_program(["scontrol", "show", "config"], ANSWER_IN_JOB_SECONDS)
    except (SlurmSilentError, UserError):
        return None
    lines = [(key.strip(), value.strip()) for key, _, value in (line.partition("=") for line in said.splitlines())]
    # Since 24.05, several programs of one kind are numbered.
    found = [(key.partition("[")[0], value) for key, value in lines if value != "(null)"]
    return {name: tuple(value for key, value in found if key == name) for name in HOOKS}


def job_here() -> str | None:
    """Return the id of the Slurm job in which this process runs; None outside a job."""
    return os.environ.get("SLURM_JOB_ID")


def node_here() -> str | None:
    """Return the name of this node in Slurm; None outside a job."""
    return os.environ.get("SLURMD_NODENAME")


def why_ended(job: str) -> JobEnding:
    """Return why Slurm ends a job that was sent TERM.

    A job that still runs, as far as squeue knows, counts as cancelled, too: a slurmctld that was just restarted may
    report an earlier state, and the sender of TERM cannot be seen.
    """
    form = SEPARATOR.join(("%T", "%M", "%l"))
    words = ["squeue", "--noheader", "--states=all", f"--jobs={job}", f"--format={form}"]
    try:
        state, used, limit = run_slurm_program(words, ANSWER_IN_JOB_SECONDS).strip().split(SEPARATOR)
    except (SlurmSilentError, UserError, ValueError):
        return "cancelled"
    # While the processes of a job end, its state says no more than that.
    at_most, took = seconds_of(limit), seconds_of(used)
    at_limit = at_most is not None and took is not None and took >= at_most
    return "time-limit" if state == "TIMEOUT" or (at_limit and state == "COMPLETING") else "cancelled"


def _rows(said: str, columns: int) -> Iterator[list[str]]:
    """Yield the columns of each line; a line that is the rest of a name or reason with a line end in it is skipped."""
    rows = (line.split(SEPARATOR, columns - 1) for line in said.split("\n"))
    return (row for row in rows if len(row) == columns)


def count_gpus(gres: str) -> int:
    """Return the number of GPUs in sinfo's description of a node, such as `gpu:gfx1100:2(S:0-1),nic:1`."""
    count = 0
    for one in gres.split(","):
        words = one.partition("(")[0].split(":")
        if words[0] == "gpu":
            count += int(words[-1]) if re.fullmatch(_NUMBER, words[-1]) else 1
    return count


def seconds_of(text: str) -> float | None:
    """Return a time of Slurm, `[DAYS-]HOURS:MINUTES:SECONDS` or a part of it, in seconds; None if it is none."""
    days, dash, rest = text.rpartition("-")
    numbers = [*([days] if dash else []), *rest.split(":")]
    if not all(re.fullmatch(_NUMBER, number) for number in numbers):
        return None
    parts = list(map(int, rest.split(":")))
    hours, minutes, seconds = [*parts, 0, 0][:3] if dash else [0, 0, *parts][-3:]
    return float(((int(days) if dash else 0) * 24 + hours) * 3600 + minutes * 60 + seconds)
