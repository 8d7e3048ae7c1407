"""The one module that speaks to Slurm: sbatch, squeue, scancel and sinfo, and of those what AMD's Spur takes, too.

Nothing else of Slurm is needed: jobs are found again by their names, without a database of it. What scontrol says of
nodes and settings is used where it says something.
"""

import os
import pwd
import re
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from harness.base.errors import UserError
from harness.host.jobs import JobEnding, JobPhase

# A program of Slurm waits for slurmctld as long as slurm.conf says, often ten seconds, several times over.
ANSWER_SECONDS = 60.0
# Between TERM and KILL, by which a run has to have its record, Slurm often leaves half a minute.
ANSWER_IN_JOB_SECONDS = 8.0
# After so long it is looked whether a program says that it waits.
PATIENCE_SECONDS = 0.5
# Some ten thousand nodes, as scontrol describes them.
MOST_BYTES = 16 << 20
WORDS_BYTES = 1000
PIPE_BYTES = 1 << 16
SEPARATOR = "|"
# How programs of Slurm are to print a moment.
SECONDS_SINCE_1970 = {"SLURM_TIME_FORMAT": "%s"}
HOOKS = ("Prolog", "Epilog")
WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"})
RUNNING = frozenset({"RUNNING", "COMPLETING", "STAGE_OUT", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING"})
# As sinfo shortens them.
TAKING_JOBS = frozenset({"idle", "mix", "alloc", "comp", "plnd", "resv", "unk", "boot"})
# A job that waits for one of these waits for ever.
NEVER = frozenset({"PartitionTimeLimit", "PartitionNodeLimit", "BadConstraints", "AccountNotAllowed", "QOSNotAllowed"})
# For one of these it waits as every job does while others are before it.
ORDINARY = frozenset({"", "None", "Priority", "Resources"})
# Variables that come before what a script says of itself; whose account pays, and the like, stays as the user has it.
OVERRIDES = frozenset(
    f"SBATCH_{name}"
    for name in (
        "ARRAY_INX",
        "EXCLUSIVE",
        "GRES",
        "JOB_NAME",
        "NO_REQUEUE",
        "OUTPUT",
        "PARTITION",
        "REQUEUE",
        "TIMELIMIT",
        "WAIT",
    )
)
# As sbatch says that slurmctld is not there, or takes no more jobs for now.
SILENT = (
    "Unable to contact slurm controller",
    "Connection refused",
    # Killed in the middle of an answer.
    "Connection reset by peer",
    "Connection aborted",
    "Broken pipe",
    "Insane message length",
    "Unexpected message received",
    "No route to host",
    "Network is unreachable",
    "Socket timed out",
    "Connection timed out",
    "Zero Bytes were transmitted",
    "Transport endpoint",
    "Resource temporarily unavailable",
)
# As sbatch says that the queue is full, before it tries again for minutes.
FULL = "temporarily unable to accept job"
# As it says that this user's part of it is.
LIMITED = ("AssocMaxSubmitJobLimit", "QOSMaxSubmitJob", "Job violates accounting/QOS")


class SlurmSilentError(Exception):
    """Slurm does not answer now, or takes no more jobs for now: what was asked may have been done all the same."""


@dataclass(frozen=True)
class SlurmJob:
    """A job as squeue tells it. `node` is where it runs or ran; `reason` is why it waits."""

    id: str
    name: str
    state: str
    node: str | None
    reason: str

    @property
    def phase(self) -> JobPhase:
        """Return whether it waits, runs or is over."""
        return "waits" if self.state in WAITING else "runs" if self.state in RUNNING else "over"


@dataclass(frozen=True)
class SlurmNode:
    """A node of a partition. `seconds` is the longest that a job may take there, None without a limit.

    `reason` is why it takes no jobs.
    """

    name: str
    state: str
    gpus: int
    seconds: float | None
    reason: str

    @property
    def takes_jobs(self) -> bool:
        """Return whether it runs jobs, or will; a slurmctld that was just started knows of none how it is."""
        return self.state.rstrip("*~#!%$@^-+") in TAKING_JOBS


def is_there() -> bool:
    """Return whether the programs of Slurm are on this host."""
    return all(shutil.which(name) for name in ("sbatch", "squeue", "scancel", "sinfo"))


def submit(script: Path) -> str:
    """Have Slurm run a script, with the options in it; returns the id of the job.

    Raises:
        SlurmSilentError: when it does not answer, or its queue is full.
        UserError: when it refuses the job.
    """
    said = _asked(["sbatch", "--parsable", str(script)], until=FULL)
    # With the name of the cluster behind a semicolon, where there are several.
    return said.strip().splitlines()[-1].partition(";")[0]


def own_jobs() -> dict[str, SlurmJob]:
    """Return this user's jobs by their names, those too that were over a moment ago.

    Of several of one name it is the newest that is not over.

    Raises:
        SlurmSilentError: when Slurm does not answer.
    """
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        # Without an entry in passwd, as in many containers; squeue takes the number, too.
        user = str(os.geteuid())
    form = SEPARATOR.join(("%i", "%T", "%N", "%r", "%j"))
    said = _asked(["squeue", "--noheader", "--states=all", f"--user={user}", "--sort=i", f"--format={form}"])
    jobs: dict[str, SlurmJob] = {}
    for number, state, node, reason, name in _rows(said, 5):
        job = SlurmJob(number, name, state, node or None, reason)
        if name not in jobs or job.phase != "over" or jobs[name].phase == "over":
            jobs[name] = job
    return jobs


def cancel(jobs: Iterable[SlurmJob]) -> None:
    """Cancel jobs; those that are over stay as they are. Raises SlurmSilentError."""
    ids = [job.id for job in jobs]
    if ids:
        _asked(["scancel", "--quiet", *ids])


def keep_from(jobs: Iterable[SlurmJob], nodes: Iterable[str]) -> None:
    """Have jobs that wait go to other nodes than these, where Slurm does that: Spur may not.

    Those that have begun stay where they are.
    """
    if ids := ",".join(job.id for job in jobs):
        with suppress(SlurmSilentError, UserError):
            _asked(["scontrol", "update", f"JobId={ids}", f"ExcNodeList={','.join(nodes)}"])


def nodes_of(partition: str | None) -> list[SlurmNode]:
    """Return the nodes of a partition, of the default one where none is named.

    Raises:
        SlurmSilentError: when Slurm does not answer.
        UserError: where there is no such partition.
    """
    form = SEPARATOR.join(("%P", "%N", "%t", "%l", "%G", "%E"))
    words = ["sinfo", "--noheader", "--Node", f"--format={form}"]
    rows = list(_rows(_asked(words), 6))
    found = [row for row in rows if (row[0].rstrip("*") == partition if partition else row[0].endswith("*"))]
    if not found:
        named = ", ".join(sorted({row[0].rstrip("*") for row in rows})) or "none"
        which = f"no partition {partition!r}" if partition else "no default partition"
        raise UserError(f"Slurm has {which}; it has {named}; name one under hosts: in the matrix file")
    return [
        SlurmNode(name, state, count_gpus(gres), seconds_of(limit), why) for _, name, state, limit, gres, why in found
    ]


def boot_times() -> dict[str, float]:
    """Return when nodes were booted by the clock of slurmctld, in seconds since 1970, by their names.

    None of them where it does not say, as Spur may not: then a run that comes to a node of another kind is not begun.
    """
    try:
        words = ["scontrol", "--oneliner", "show", "nodes"]
        said = _asked(words, ANSWER_IN_JOB_SECONDS, variables=SECONDS_SINCE_1970)
    except (SlurmSilentError, UserError):
        return {}
    return {name: float(at) for name, at in re.findall(r"^NodeName=(\S+) .*?\bBootTime=(\d+)\b", said, re.MULTILINE)}


def hooks_of_nodes() -> dict[str, tuple[str, ...]] | None:
    """Return the programs that Slurm runs on a node before and after a job, by `Prolog` and `Epilog`.

    None where it does not say: Spur has no `scontrol show config`. Nothing but advice depends on it.
    """
    try:
        said = _asked(["scontrol", "show", "config"], ANSWER_IN_JOB_SECONDS)
    except (SlurmSilentError, UserError):
        return None
    # Since 24.05 each of several has a number.
    found = re.findall(r"^(Prolog|Epilog)(?:\[\d+\])?\s*=\s*(.*?)\s*$", said, re.MULTILINE)
    return {name: tuple(value for key, value in found if key == name and value != "(null)") for name in HOOKS}


def job_here() -> str | None:
    """Return the id of the Slurm job that this process is in; None outside of one."""
    return os.environ.get("SLURM_JOB_ID")


def node_here() -> str | None:
    """Return the name of this node in Slurm; None outside of a job."""
    return os.environ.get("SLURMD_NODENAME")


def why_ended(job: str) -> JobEnding:
    """Return why Slurm ends a job that was sent TERM.

    Of one that still runs for all squeue knows it is taken for cancelled, too: a slurmctld that was just restarted may
    know of an earlier time, and by whose hand TERM came cannot be seen.
    """
    form = SEPARATOR.join(("%T", "%M", "%l"))
    words = ["squeue", "--noheader", "--states=all", f"--jobs={job}", f"--format={form}"]
    try:
        state, used, limit = _asked(words, ANSWER_IN_JOB_SECONDS).strip().split(SEPARATOR)
    except (SlurmSilentError, UserError, ValueError):
        return "cancelled"
    # While its processes end the state says no more than that.
    at_most, took = seconds_of(limit), seconds_of(used)
    at_limit = at_most is not None and took is not None and took >= at_most
    return "time-limit" if state == "TIMEOUT" or (at_limit and state == "COMPLETING") else "cancelled"


def _rows(said: str, columns: int) -> Iterator[list[str]]:
    """Yield the columns of each line; the rest of a name or reason that holds the end of a line is none."""
    rows = (line.split(SEPARATOR, columns - 1) for line in said.split("\n"))
    return (row for row in rows if len(row) == columns)


def count_gpus(gres: str) -> int:
    """Return the number of GPUs in what sinfo says of a node, such as `gpu:gfx1100:2(S:0-1),nic:1`."""
    count = 0
    for one in gres.split(","):
        words = one.partition("(")[0].split(":")
        if words[0] == "gpu":
            count += int(words[-1]) if words[-1].isdigit() else 1
    return count


def seconds_of(text: str) -> float | None:
    """Return a time of Slurm, `[DAYS-]HOURS:MINUTES:SECONDS` or a part of it, in seconds; None where it is no time."""
    days, dash, rest = text.rpartition("-")
    try:
        parts = [int(part) for part in rest.split(":")]
        hours, minutes, seconds = [*parts, 0, 0][:3] if dash else [0, 0, *parts][-3:]
        return float(((int(days) if dash else 0) * 24 + hours) * 3600 + minutes * 60 + seconds)
    except ValueError:
        return None


def _asked(
    words: Sequence[str],
    seconds: float = ANSWER_SECONDS,
    until: str | None = None,
    variables: dict[str, str] | None = None,
) -> str:
    """Return what a program of Slurm prints, with further variables set; it is ended when it says `until`.

    Raises:
        SlurmSilentError: when slurmctld does not answer, or takes no more jobs.
        UserError: when there is no such program, or it refuses what is asked.
    """
    try:
        # Ctrl-C is for who asks, not for a question that is under way.
        process = subprocess.Popen(
            words,
            env={name: value for name, value in os.environ.items() if name not in OVERRIDES} | (variables or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
    except FileNotFoundError:
        raise UserError(f"{words[0]}: no such program; --on slurm needs the programs of Slurm on this host") from None
    told, errors = _printed(process, words[0], seconds, until)
    if process.returncode == 0:
        return told.decode(errors="replace")
    said = " ".join(errors[:WORDS_BYTES].decode(errors="replace").split()) or f"exit {process.returncode}"
    if any(text in said for text in (*SILENT, *LIMITED)):
        raise SlurmSilentError(said)
    raise UserError(f"{words[0]}: {said}")


def _printed(
    process: subprocess.Popen[bytes], program: str, seconds: float, until: str | None
) -> tuple[bytearray, bytearray]:
    """Return what a program prints to its two outputs until it has ended; one that goes on is ended."""
    assert process.stdout is not None
    assert process.stderr is not None
    told, errors, why = bytearray(), bytearray(), ""
    end = time.monotonic() + seconds
    with process.stdout, process.stderr, selectors.DefaultSelector() as coming:
        for stream, printed in ((process.stdout, told), (process.stderr, errors)):
            os.set_blocking(stream.fileno(), False)
            coming.register(stream, selectors.EVENT_READ, printed)
        while not why:
            # Of one that has ended all is there, though what it started may keep its pipes open.
            ended = process.poll() is not None
            for key in list(coming.get_map().values()):
                if not _read(key.fd, key.data):
                    coming.unregister(key.fileobj)
            if max(len(told), len(errors)) > MOST_BYTES:
                why = f"{program} prints more than {MOST_BYTES >> 20} MiB"
            elif ended:
                break
            elif until is not None and until.encode() in errors:
                why = "its queue is full"
            elif time.monotonic() > end:
                why = f"{program} does not answer within {seconds:.0f} s"
            elif coming.get_map():
                coming.select(PATIENCE_SECONDS)
            else:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(PATIENCE_SECONDS)
    if why:
        # With what it started: a site may have a script in the place of the program.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise SlurmSilentError(why)
    return told, errors


def _read(pipe: int, printed: bytearray) -> bool:
    """Read what is in a pipe, and no more than shows that it is too much; return whether more may come."""
    while len(printed) <= MOST_BYTES:
        try:
            piece = os.read(pipe, PIPE_BYTES)
        except BlockingIOError:
            return True
        if not piece:
            break
        printed += piece
    return False
