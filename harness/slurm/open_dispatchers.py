"""Opens the dispatchers of a cluster, one for each host kind of its nodes, which a short job on each node reports."""

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from harness.base.errors import UserError
from harness.base.files.hashes import json_hash
from harness.base.sysfs import is_simulated
from harness.base.wording import many
from harness.evidence.app_reports.last_line import last_line
from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.host.slurm import boot_times, cancel, nodes_of, own_jobs
from harness.host.slurm_programs import SlurmSilentError
from harness.matrix.clusters import Cluster
from harness.slurm.dispatcher import LOOK_SECONDS, SHORT_SECONDS, SlurmDispatcher, state_in_words, submit_job, within
from harness.slurm.job_script import JobOptions, job_output
from harness.slurm.nodes import by_kind, forget_booted, known_nodes

Told = TypeVar("Told")
# Longest wait for the nodes' answers, in seconds; a busy cluster may take its time.
ASK_SECONDS = 600.0
# Seconds after which a job on an idle node would have started.
IDLE_SECONDS = 20.0
ASKING = "matrix-node"


def open_dispatchers(
    results: Results, cluster: Cluster, root: Path, notify: Callable[[str], None]
) -> list[SlurmDispatcher]:
    """Return a dispatcher for each group of nodes of the same host kind, the largest group first.

    Nodes that were never asked for their facts, or were booted since, are asked first.

    `root`: the folder that holds /sys and /dev on every node, which may be a simulated host's.

    Raises:
        UserError: when there is no such partition, or none of its nodes answers.
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
        raise UserError(f"no node of Slurm reported its host kind; the job on {unknown[0]} said: {said}")
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
    """Ask nodes for their facts by a short job on each; return the facts of all known nodes.

    `asked`: the nodes, and the longest time in seconds that a job may take there.

    Waits until every node has answered, or until at least one has and the others are busy.
    """
    unknown, limit = asked
    jobs = _answered(own_jobs, notify)
    for node in unknown:
        name = _asking(results, node)
        if name not in jobs or jobs[name].phase == "over":
            options = JobOptions(
                name,
                job_output(results, name),
                within(limit, SHORT_SECONDS),
                cluster.partition,
                node,
                exclusive=False,
            )
            submit_job(results, options, (*matrix, "slurm-node"))
    notify(f"asking what {many(len(unknown), 'node is', 'nodes are')}")
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
            # The next command asks the busy nodes.
            _answered(partial(cancel, left), notify)
            return told
        time.sleep(LOOK_SECONDS)
    return known_nodes(results)


def _asking(results: Results, node: str) -> str:
    """Return the name of the job that asks a node, which is different for each results folder."""
    return f"{ASKING}-{json_hash(str(results.folder))[:8]}-{node}"


def _answered(ask: Callable[[], Told], notify: Callable[[str], None]) -> Told:
    """Return Slurm's answer; ask again for as long as it does not answer."""
    while True:
        try:
            return ask()
        except SlurmSilentError as error:
            notify(f"Slurm does not answer; asking again: {error}")
            time.sleep(LOOK_SECONDS)
