"""Sends runs to the nodes of a Slurm cluster: one job for each run, named by the run's id."""

import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.base.errors import UserError
from harness.base.files.storage import write_durably
from harness.campaign.bench.dispatch import Closing, JobSeen, RunRequest
from harness.evidence.app_reports.last_line import last_line
from harness.evidence.files.run_files import Intent
from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.host.file_systems import is_network
from harness.host.fingerprint import training_gpus
from harness.host.jobs import JobEnding
from harness.host.slurm import (
    NEVER,
    ORDINARY,
    SlurmJob,
    SlurmNode,
    cancel,
    exclude_nodes,
    nodes_of,
    own_jobs,
    submit,
)
from harness.host.slurm_programs import SlurmSilentError
from harness.matrix.clusters import Cluster
from harness.slurm.job_script import JOBS_FOLDER, JobOptions, job_output, job_script
from harness.slurm.nodes import any_of_kind, note_node

# Seconds that a job needs besides its run: for checking GPUs, reading data, verifying, and actions after a failure.
AROUND_SECONDS = 1800.0
# Seconds for fetching the largest images over a slow network, while other jobs of the node do the same.
IMAGE_SECONDS = 7200.0
SHORT_SECONDS = 300.0
LOOK_SECONDS = 2.0
AT_ONCE = 2000
# Seconds until files written on another host are visible: on a network file system up to a minute and more.
SETTLE_SECONDS, NETWORK_SETTLE_SECONDS = 2.0, 75.0
GONE_SECONDS = 600.0
# Runs in a row that the last node may fail to begin before it is avoided, too.
MOST_IN_VAIN = 3
CLOSING = ".close"
ENDINGS: Mapping[str, JobEnding] = {
    "TIMEOUT": "time-limit",
    "DEADLINE": "time-limit",
    "CANCELLED": "cancelled",
    "PREEMPTED": "cancelled",
    "REVOKED": "cancelled",
}
# Slurm's own reasons for draining a node on which a process could not be killed.
UNKILLABLE = ("Kill task failed", "Epilog error")


@dataclass
class SlurmDispatcher:
    """Sends runs to the nodes of one host kind.

    `matrix`: the command `matrix` on the nodes, which find it at the same path.
    `kind`: a host of that kind.
    `seconds`: the longest time that a job may take; None without a limit.
    """

    results: Results
    matrix: tuple[str, ...]
    cluster: Cluster
    kind: HostFacts
    nodes: tuple[str, ...]
    seconds: float | None
    gone_seconds: float = GONE_SECONDS
    at_once: int = AT_ONCE
    _excluded: set[str] = field(default_factory=set)
    _jobs: dict[str, SlurmJob] = field(default_factory=dict)
    _told: dict[str, HostFacts] = field(default_factory=dict)
    _in_vain: int = 0

    @property
    def host(self) -> HostFacts:
        """A host that represents all its nodes."""
        return any_of_kind(self.kind)

    @property
    def images(self) -> str | None:
        """The registry or folder from which its nodes take images."""
        return self.cluster.images

    @property
    def nodes_at_work(self) -> int:
        """The number of its nodes that take jobs."""
        return len(set(self.nodes) - self._excluded)

    @property
    def settle_seconds(self) -> float:
        """The seconds until a record that a node wrote is visible here."""
        return NETWORK_SETTLE_SECONDS if is_network(self.results.folder) else SETTLE_SECONDS

    def submit(self, request: RunRequest) -> bool:
        """Submit the job of a run; return False if the queue is full, or if it is not known whether Slurm took the job.

        Raises:
            UserError: when Slurm refuses the job.
        """
        gpus = request.stack.accelerator != "cpu" and request.gpus
        options = JobOptions(
            request.run_id,
            self._output(request.run_id),
            within(
                self.seconds,
                request.workload.time_limit + AROUND_SECONDS + (IMAGE_SECONDS if request.images else 0),
            ),
            self.cluster.partition,
            exclude=tuple(sorted(self._excluded)),
            gpus=(self.cluster.gres or f"gpu:{len(training_gpus(self.kind))}") if gpus else None,
        )
        command = (*self.matrix, "run-cell", "--request", "-")
        return self._submitted(options, command, request.model_dump_json(by_alias=True, exclude_defaults=True))

    def look(self) -> Mapping[str, JobSeen] | None:
        """Return this user's jobs by the ids of their runs; None if Slurm does not answer."""
        try:
            self._jobs = own_jobs()
        except SlurmSilentError:
            return None
        return {name: _seen(job) for name, job in self._jobs.items()}

    def unavailable_nodes(self) -> Mapping[str, str] | None:
        """Return its nodes that take no jobs, each with the reason; None if Slurm does not answer."""
        try:
            now = {one.name: one for one in nodes_of(self.cluster.partition)}
        except SlurmSilentError:
            return None
        ours = sorted(set(self.nodes) - self._excluded)
        return {
            name: state_in_words(now[name]) if name in now else "not in the partition"
            for name in ours
            if name not in now or not now[name].takes_jobs
        }

    def request_record(self, intent: Intent, job: JobSeen | None, *, asks: bool) -> Closing:
        """Have the node of a run that has ended without a record write the record, unless that is under way.

        Without `asks` no job is submitted for it.
        """
        name = f"{intent.run_id}{CLOSING}"
        node = job.node if job and job.node else intent.scheduled.node if intent.scheduled else None
        try:
            now = {one.name: one for one in nodes_of(self.cluster.partition)}
        except SlurmSilentError:
            return "under-way"
        if node is None or node not in now or not now[node].takes_jobs:
            drained = now[node].reason if node in now else ""
            return "unkillable" if any(why in drained for why in UNKILLABLE) else "gone"
        if name in self._jobs and self._jobs[name].phase != "over":
            return "under-way"
        if not asks:
            return "left-none"
        ending = ["--ended", job.ended] if job and job.ended else []
        options = JobOptions(
            name,
            self._output(name),
            within(self.seconds, SHORT_SECONDS),
            self.cluster.partition,
            node=node,
            exclusive=False,
        )
        submitted = self._submitted(options, (*self.matrix, "slurm-node", "--close", intent.run_id, *ending))
        return "asked" if submitted else "under-way"

    def cancel(self, run_ids: Collection[str]) -> None:
        """Cancel the jobs of runs; jobs whose cancellation Slurm does not accept now continue."""
        try:
            self._jobs = own_jobs()
            cancel(job for name, job in self._jobs.items() if name in run_ids and job.phase != "over")
        except (SlurmSilentError, UserError):
            return

    def avoid(self, intent: Intent, waiting: Collection[str]) -> bool:
        """Submit no more jobs to a node that did not begin a run; return False if no node is left.

        `waiting`: runs whose jobs wait in the queue. They are kept from the node as well, because a node that ends each
        job at once would get all of them. The last node stays in use until three runs in a row were not begun there.
        """
        if intent.scheduled is None:
            return True
        self._note(intent)
        before = len(self._excluded)
        left = self._avoid(intent.scheduled.node)
        if len(self._excluded) > before:
            exclude_nodes((self._jobs[name] for name in waiting if name in self._jobs), sorted(self._excluded))
        return left

    def _avoid(self, node: str) -> bool:
        if set(self.nodes) - self._excluded - {node}:
            self._excluded.add(node)
            return True
        self._in_vain += 1
        return self._in_vain < MOST_IN_VAIN

    def for_node(self, node: str) -> "SlurmDispatcher":
        """Return a dispatcher that sends runs to one node only."""
        return replace(self, nodes=(node,), _excluded={*self._excluded, *self.nodes} - {node}, _jobs={})

    def note_host(self, intent: Intent) -> None:
        """Record the facts of the node that made a run, which may have been booted since it was last asked."""
        if intent.scheduled is None:
            return
        self._in_vain = 0
        self._note(intent)
        if intent.host.kind != self.kind.kind:
            self._avoid(intent.scheduled.node)

    def _note(self, intent: Intent) -> None:
        if intent.scheduled is None:
            return
        node, host = intent.scheduled.node, intent.host
        before = self._told.get(node)
        if before is None or (before.kind, before.boot_id) != (host.kind, host.boot_id):
            self._told[node] = host
            note_node(self.results, node, host)

    def last_output_line(self, run_id: str, *, closing: bool = False) -> str:
        """Return the last line that the job of a run printed; `closing`: of the job that closes the run on its node."""
        return last_line(self._output(f"{run_id}{CLOSING}" if closing else run_id))

    def _output(self, name: str) -> Path:
        return job_output(self.results, name)

    def _submitted(self, options: JobOptions, command: Sequence[str], request: str = "") -> bool:
        return submit_job(self.results, options, command, request)


def within(limit: float | None, seconds: float) -> float:
    """Return the time limit of a job that needs `seconds`, within the partition's limit."""
    return seconds if limit is None else min(limit, seconds)


def submit_job(results: Results, options: JobOptions, command: Sequence[str], request: str = "") -> bool:
    """Write the script of a job and submit it; return False if Slurm does not answer."""
    name, content = f"{options.name}.sh", job_script(options, command, request).encode()
    folder = results.folder / JOBS_FOLDER
    if folder.is_symlink():
        raise UserError(f"{folder}: is a link, and jobs would write where it leads; remove it")
    write_durably(folder / name, content)
    # Submit a private copy: others may change files in a shared results folder before Slurm reads them.
    with tempfile.TemporaryDirectory() as place:
        script = Path(place, name)
        write_durably(script, content)
        try:
            submit(script)
        except SlurmSilentError:
            return False
    return True


def _seen(job: SlurmJob) -> JobSeen:
    waits = job.phase == "waits"
    never = f"Slurm says {job.reason}" if waits and job.reason in NEVER else None
    why = job.reason if waits and job.reason not in ORDINARY else None
    return JobSeen(job.phase, job.node, ENDINGS.get(job.state), never, why)


def state_in_words(node: SlurmNode) -> str:
    """Return the state of a node in words, with Slurm's reason if it has one."""
    return f"{node.state} ({node.reason})" if node.reason not in ("", "none") else node.state
