"""Carries runs to the nodes of a Slurm cluster: one job for each, with the id of the run for its name."""

import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from harness.base.errors import UserError
from harness.base.storage import json_hash, write_durably
from harness.campaign.dispatch import Closing, JobSeen, RunRequest
from harness.evidence.last_line import last_line
from harness.evidence.records import Results
from harness.evidence.run_files import Intent
from harness.host.facts import HostFacts
from harness.host.file_systems import is_network
from harness.host.fingerprint import is_simulated
from harness.host.jobs import JobEnding
from harness.host.slurm import (
    NEVER,
    ORDINARY,
    SlurmJob,
    SlurmNode,
    SlurmSilentError,
    boot_times,
    cancel,
    keep_from,
    nodes_of,
    own_jobs,
    submit,
)
from harness.matrix.clusters import Cluster
from harness.slurm.job_script import JOBS_FOLDER, JobOptions, job_output, job_script
from harness.slurm.nodes import any_of_kind, by_kind, forget_booted, known_nodes, note_node

# Besides the run itself: checking GPUs, reading data, verifying, and what follows a failure.
AROUND_SECONDS = 1800.0
# The largest images, over a slow network, and what other jobs of the node take before.
IMAGE_SECONDS = 7200.0
SHORT_SECONDS = 300.0
# Until a node has told what it is; a cluster that is busy may take its time.
ASK_SECONDS = 600.0
# By then a job runs on a node that is not busy.
IDLE_SECONDS = 20.0
LOOK_SECONDS = 2.0
AT_ONCE = 2000
# A network's file systems show files of others as late as a minute after.
SETTLE_SECONDS, NETWORK_SETTLE_SECONDS = 2.0, 75.0
GONE_SECONDS = 600.0
# Runs in a row that the last node does not begin.
MOST_IN_VAIN = 3
CLOSING = ".close"
ASKING = "matrix-node"
ENDINGS: Mapping[str, JobEnding] = {
    "TIMEOUT": "time-limit",
    "DEADLINE": "time-limit",
    "CANCELLED": "cancelled",
    "PREEMPTED": "cancelled",
    "REVOKED": "cancelled",
}
# As Slurm says why it drained a node.
UNKILLABLE = ("Kill task failed", "Epilog error")

Told = TypeVar("Told")


@dataclass
class SlurmDispatcher:
    """Carries runs to nodes of one host kind; `matrix` is the command there, which nodes find at the same place.

    `seconds`: the longest that a job may take; None without a limit.
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
        """A host that stands for all of its nodes."""
        return any_of_kind(self.kind)

    @property
    def images(self) -> str | None:
        """The registry or folder that its nodes take images from."""
        return self.cluster.images

    @property
    def nodes_at_work(self) -> int:
        """The number of its nodes that take jobs."""
        return len(set(self.nodes) - self._excluded)

    @property
    def settle_seconds(self) -> float:
        """The time that a record may take until it is seen here."""
        return NETWORK_SETTLE_SECONDS if is_network(self.results.folder) else SETTLE_SECONDS

    def submit(self, request: RunRequest) -> bool:
        """Submit the job of a run; False where nobody knows whether that was done, or the queue is full.

        Raises:
            UserError: when it is refused.
        """
        gpus = request.stack.accelerator != "cpu" and request.gpus
        options = JobOptions(
            request.run_id,
            self._output(request.run_id),
            _within(
                self.seconds,
                request.workload.time_limit + AROUND_SECONDS + (IMAGE_SECONDS if request.images else 0),
            ),
            self.cluster.partition,
            exclude=tuple(sorted(self._excluded)),
            gpus=(self.cluster.gres or f"gpu:{len(self.kind.gpus)}") if gpus else None,
        )
        command = (*self.matrix, "run-cell", "--request", "-")
        return self._submitted(options, command, request.model_dump_json(by_alias=True, exclude_defaults=True))

    def look(self) -> Mapping[str, JobSeen] | None:
        """Return this user's jobs by the ids of their runs; None when Slurm does not answer."""
        try:
            self._jobs = own_jobs()
        except SlurmSilentError:
            return None
        return {name: _seen(job) for name, job in self._jobs.items()}

    def away(self) -> Mapping[str, str] | None:
        """Return those of its nodes that take no jobs, each with why; None when Slurm does not answer."""
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

    def close(self, intent: Intent, job: JobSeen | None, *, asks: bool) -> Closing:
        """Have the node of a run that is over, and has no record, write one, where that is not under way already.

        Without `asks` nothing is begun.
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
            _within(self.seconds, SHORT_SECONDS),
            self.cluster.partition,
            node=node,
            exclusive=False,
        )
        submitted = self._submitted(options, (*self.matrix, "slurm-node", "--close", intent.run_id, *ending))
        return "asked" if submitted else "under-way"

    def cancel(self, run_ids: Collection[str]) -> None:
        """Cancel the jobs of runs; what Slurm does not take now goes on."""
        try:
            self._jobs = own_jobs()
            cancel(job for name, job in self._jobs.items() if name in run_ids and job.phase != "over")
        except (SlurmSilentError, UserError):
            return

    def avoid(self, intent: Intent, waiting: Collection[str]) -> bool:
        """Submit no more jobs to the node that did not begin a run; False where no node is left.

        `waiting`: runs whose jobs wait, which are kept from it, too: it ends each in no time, and would get all of
        them. The last one stays, until three runs in a row were not begun there.
        """
        if intent.scheduled is None:
            return True
        self._note(intent)
        before = len(self._excluded)
        left = self._avoid(intent.scheduled.node)
        if len(self._excluded) > before:
            keep_from((self._jobs[name] for name in waiting if name in self._jobs), sorted(self._excluded))
        return left

    def _avoid(self, node: str) -> bool:
        if set(self.nodes) - self._excluded - {node}:
            self._excluded.add(node)
            return True
        self._in_vain += 1
        return self._in_vain < MOST_IN_VAIN

    def only(self, node: str) -> "SlurmDispatcher":
        """Return what carries runs to one node alone."""
        return replace(self, nodes=(node,), _excluded={*self._excluded, *self.nodes} - {node}, _jobs={})

    def learn(self, intent: Intent) -> None:
        """Take note of the node that a run was made on: it may have been booted since it was asked."""
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

    def last_words(self, run_id: str, *, closing: bool = False) -> str:
        """Return the last line that the job of a run printed; `closing`: that asked its node for a record."""
        return last_line(self._output(f"{run_id}{CLOSING}" if closing else run_id))

    def _output(self, name: str) -> Path:
        return job_output(self.results, name)

    def _submitted(self, options: JobOptions, command: Sequence[str], request: str = "") -> bool:
        return _submit(self.results, options, command, request)


def open_dispatchers(
    results: Results, cluster: Cluster, root: Path, notify: Callable[[str], None]
) -> list[SlurmDispatcher]:
    """Return what carries runs to each group of equal nodes, the largest first.

    Nodes nobody asked before are asked what they are, and those that were booted since.

    `root` holds the /sys and /dev of every node, and can be a fake tree.

    Raises:
        UserError: when there is no such partition, or no node of it tells what it is.
    """
    matrix: tuple[str, ...] = (sys.executable, "-P", "-m", "harness", "--results", str(results.folder))
    matrix += ("--root", str(root)) if is_simulated(root) else ()
    nodes = _answered(lambda: nodes_of(cluster.partition), notify)
    usable = [node for node in nodes if node.takes_jobs]
    if not usable:
        told = ", ".join(f"{one.name} {state_in_words(one)}" for one in nodes)
        raise UserError(f"no node of Slurm takes jobs: {told}; when one does, the same command continues")
    forget_booted(results, boot_times())
    known = known_nodes(results)
    seconds = min((node.seconds for node in usable if node.seconds is not None), default=None)
    if unknown := [node.name for node in usable if node.name not in known]:
        known = _ask(results, matrix, cluster, (unknown, seconds), notify)
    groups = by_kind(known, (node.name for node in usable))
    if not groups:
        said = last_line(job_output(results, _asking(results, unknown[0])))
        raise UserError(f"no node of Slurm told what it is; the job on {unknown[0]} said: {said}")
    names = {node.name for node in nodes}
    return [
        SlurmDispatcher(
            results, matrix, cluster, known[group[0]], group, seconds, _excluded=names - set(group), _told=dict(known)
        )
        for group in groups
    ]


def _ask(
    results: Results,
    matrix: tuple[str, ...],
    cluster: Cluster,
    asked: tuple[Sequence[str], float | None],
    notify: Callable[[str], None],
) -> dict[str, HostFacts]:
    """Ask nodes what they are, by a short job on each; returns what is known of all, at least of one.

    `asked`: the nodes, and the longest that a job may take there.
    """
    unknown, limit = asked
    jobs = _answered(own_jobs, notify)
    for node in unknown:
        name = _asking(results, node)
        if name not in jobs or jobs[name].phase == "over":
            options = JobOptions(
                name,
                job_output(results, name),
                _within(limit, SHORT_SECONDS),
                cluster.partition,
                node,
                exclusive=False,
            )
            _submit(results, options, (*matrix, "slurm-node"))
    notify(f"asking {len(unknown)} nodes what they are")
    until = time.monotonic() + ASK_SECONDS
    while time.monotonic() < until:
        told = known_nodes(results)
        jobs = _answered(own_jobs, notify)
        asking = [jobs.get(_asking(results, one)) for one in unknown if one not in told]
        left = [job for job in asking if job and job.phase != "over"]
        if not left:
            return told
        waited = time.monotonic() + ASK_SECONDS - until
        if by_kind(told, told) and waited >= IDLE_SECONDS and all(job.phase == "waits" for job in left):
            # Those that are busy are asked by the next command.
            _answered(partial(cancel, left), notify)
            return told
        time.sleep(LOOK_SECONDS)
    return known_nodes(results)


def _within(limit: float | None, seconds: float) -> float:
    return seconds if limit is None else min(limit, seconds)


def _asking(results: Results, node: str) -> str:
    """Return the name of the job that asks a node for a results folder: there may be several of them."""
    return f"{ASKING}-{json_hash(str(results.folder))[:8]}-{node}"


def _answered(ask: Callable[[], Told], notify: Callable[[str], None]) -> Told:
    """Return what Slurm answers, however long that takes."""
    while True:
        try:
            return ask()
        except SlurmSilentError as error:
            notify(f"Slurm does not answer; it is asked again: {error}")
            time.sleep(LOOK_SECONDS)


def _submit(results: Results, options: JobOptions, command: Sequence[str], request: str = "") -> bool:
    script = results.folder / JOBS_FOLDER / f"{options.name}.sh"
    write_durably(script, job_script(options, command, request).encode())
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
    """Return the state of a node, and why it takes no jobs where Slurm says so."""
    return f"{node.state} ({node.reason})" if node.reason not in ("", "none") else node.state
