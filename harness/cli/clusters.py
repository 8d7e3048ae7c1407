"""The commands that run on the nodes of a cluster, and the choice of a cluster for other commands."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import get_args

import click
from pydantic import ValidationError

from harness.base.errors import UserError
from harness.base.interrupts import interruptible
from harness.campaign.bench.dispatch import RunRequest
from harness.campaign.bench.open_bench import BenchOptions, open_bench
from harness.campaign.recovery import close_leftovers, executor_of_intent
from harness.campaign.run_one import run_requested
from harness.cli.shared import INTERRUPTED, Settings, err, known, pass_settings
from harness.evidence.files.run_files import Scheduled
from harness.evidence.gpus.host_changes import host_of
from harness.host.jobs import JobEnding
from harness.host.slurm import job_here, node_here
from harness.matrix.clusters import Cluster
from harness.screen.display import CampaignDisplay
from harness.screen.terminal import echo
from harness.slurm.closing import why_no_record
from harness.slurm.dispatcher import SlurmDispatcher
from harness.slurm.hooks import end_job, installation, tell_in_output, why_drain
from harness.slurm.nodes import note_node
from harness.slurm.open_dispatchers import open_dispatchers

SLURM = "slurm"
# Exit status of a Slurm hook that makes Slurm drain the node.
DRAIN = 1


def of_cluster(settings: Settings, name: str | None) -> Settings:
    """Return the settings with the results folder of a cluster, unless --results was given.

    Raises:
        UserError: when there is no such cluster.
    """
    cluster = _cluster(settings, name)
    return settings.with_results(Path(cluster.results)) if cluster and cluster.results else settings


def dispatchers_of(settings: Settings, name: str | None, kind: str | None = None) -> list[SlurmDispatcher]:
    """Return one dispatcher for each host kind of a cluster (only that of `kind`, if given); none without a cluster.

    Raises:
        UserError: when there is no such cluster, or no node of it can be used.
    """
    cluster = _cluster(settings, name)
    if cluster is None:
        return []
    with interruptible():
        found = open_dispatchers(settings.results, cluster, settings.root, lambda text: echo(text, err=True))
    of_kind = [one for one in found if kind in (None, one.kind.kind)]
    if not of_kind:
        raise UserError(f"no node of host kind {kind} takes jobs now; `sinfo` says why")
    return of_kind


def _cluster(settings: Settings, name: str | None) -> Cluster | None:
    if name is None:
        return None
    # A Slurm cluster with a default partition needs no entry in the matrix file.
    clusters = {SLURM: Cluster(), **settings.matrix.hosts}
    return clusters[known(name, clusters, "cluster")]


def run_request(settings: Settings, content: bytes) -> int:
    """Make the run that another host requests; return the exit status of `matrix run-cell`.

    Raises:
        UserError: when the run cannot be made here.
    """
    try:
        request = RunRequest.parse(content)
    except ValidationError as error:
        raise UserError(f"--request: is none of this version: {str(error).splitlines()[0]}") from None
    options = BenchOptions(
        settings.results,
        Path(request.data) if request.data else None,
        Path(request.interpreter) if request.interpreter else None,
        request.executor,
        settings.root,
        request.verifying,
    )
    with interruptible(), CampaignDisplay(err, command=settings.invocation.command) as display:
        try:
            record = run_requested(options, request, scheduled_here(), display)
        except KeyboardInterrupt:
            return INTERRUPTED
    echo(f"{record.intent.run_id}: {record.ended}")
    return 0 if record.outcome == "completed" else 1


def scheduled_here() -> Scheduled | None:
    """Return the Slurm job that this process runs in; None outside of a job."""
    job, node = job_here(), node_here()
    return Scheduled(scheduler="slurm", job=job, node=node) if job and node else None


@click.command("slurm-node", hidden=True)
@click.option("--close", "run_id", help="Record what became of a run that lost its harness here.")
@click.option("--ended", type=click.Choice(get_args(JobEnding)), help="Why the scheduler ended it.")
@pass_settings
def slurm_node(settings: Settings, run_id: str | None, ended: JobEnding | None) -> None:
    """Record what this node is, and close runs that lost their harness; a campaign starts this as short jobs."""
    scheduled = scheduled_here()
    if scheduled is None:
        raise UserError("slurm-node: runs only in a job of Slurm, on a node")
    note_node(settings.results, scheduled.node, host_of(settings.results, settings.root))
    if run_id:
        with interruptible(), CampaignDisplay(err, command=settings.invocation.command) as display:
            bench = open_bench(BenchOptions(settings.results, executor="process", root=settings.root), [])
            close_leftovers(bench, display, {run_id: ended})
            if left := why_no_record(bench, run_id):
                raise UserError(left)


@click.command("slurm-prolog")
@pass_settings
def slurm_prolog(settings: Settings) -> None:
    """Print how to install the Slurm hooks; as Slurm's Prolog, fail when a GPU of this node is unhealthy.

    Slurm drains a node whose Prolog fails. An unhealthy GPU drains the node once: after the node is resumed, the next
    run there probes the GPU again.
    """
    if job_here() is None:
        echo(installation(Path(sys.argv[0]).absolute(), settings.results.folder))
        return
    with _no_reason_to_drain("slurm-prolog"):
        why = why_drain(settings.results, host_of(settings.results, settings.root))
        if why:
            sys.exit(_said(why))


@click.command("slurm-epilog")
@pass_settings
def slurm_epilog(settings: Settings) -> None:
    """As Slurm's Epilog, end what a job left of its runs, containers too; fail when something cannot be killed.

    Slurm drains a node whose Epilog fails. `matrix slurm-prolog` prints how to install this hook.
    """
    job = job_here()
    if job is None:
        raise UserError("slurm-epilog: only Slurm runs this; `matrix slurm-prolog` prints how to install it")
    with _no_reason_to_drain("slurm-epilog"):
        # Write nothing else: the checkout and the results folder may belong to another user, where root has no rights.
        if left := end_job(settings.results, job, partial(executor_of_intent, settings.results)):
            for run_id, what in left.items():
                tell_in_output(settings.results, run_id, what)
            sys.exit(_said("; ".join(f"{run_id}: {what}" for run_id, what in left.items())))


def _said(text: str) -> int:
    echo(f"matrix: {text}", err=True)
    return DRAIN


@contextmanager
def _no_reason_to_drain(hook: str) -> Iterator[None]:
    """Let a hook pass that cannot check its node: otherwise every job would drain a node that may be healthy."""
    try:
        yield
    except (UserError, OSError, RuntimeError) as error:
        echo(f"matrix: {hook}: nothing was checked: {error}", err=True)
