"""The interface of a scheduler that carries runs to other hosts: a job for each run.

Each job is identified by the id of its run. Whatever the scheduler reports, only a run's record tells how it ended.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic import Field

from harness.base.files.json_files import Versioned
from harness.campaign.bench.plan import PlannedRun
from harness.environments.docker.node_images import NodeImages
from harness.evidence.files.run_files import Intent
from harness.host.facts import HostFacts
from harness.host.jobs import JobEnding, JobPhase
from harness.matrix.cells import Cell, Preset
from harness.matrix.stacks import ExecutorName, Stack
from harness.matrix.workloads import Workload

Closing = Literal["asked", "under-way", "left-none", "gone", "unkillable"]
"""The answer to the request that the node of a run that is over without a record writes one.

- `asked`: the node was asked just now.
- `under-way`: the node was asked before and has not finished yet, or the scheduler does not answer.
- `left-none`: there is no record, and the node is not asked now.
- `gone`: the node takes no jobs.
- `unkillable`: the node takes no jobs because a process of the run could not be killed.
"""


class RunRequest(Versioned):
    """A run as requested from another host, with everything that decides it, because no matrix file is read there."""

    run_id: str
    campaign: str | None
    repeat: int
    gpus: tuple[int, ...]
    stack: Stack
    preset: Preset
    workload: Workload
    executor: ExecutorName
    data: str | None = Field(None, description="the user's merged CSV")
    interpreter: str | None = Field(None, description="of the stack `host`")
    verifying: Stack | None = Field(None, description="the stack that runs are verified in")
    images: NodeImages | None = Field(None, description="of a run in a container")
    kind: str | None = Field(None, description="the host kind that it is planned for")

    @property
    def planned(self) -> PlannedRun:
        """The run as it was planned."""
        return PlannedRun(Cell(self.stack, self.preset), self.repeat, self.gpus)


@dataclass(frozen=True)
class JobSeen:
    """The state of a run's job, as the scheduler reports it.

    Attributes:
        ended: what ended a job that is over, if that is known.
        never: why a waiting job will never run.
        why: why a job waits; None if it only waits for other jobs.
    """

    phase: JobPhase
    node: str | None = None
    ended: JobEnding | None = None
    never: str | None = None
    why: str | None = None


class Dispatcher(Protocol):
    """A scheduler that carries runs to other hosts.

    Attributes:
        host: represents all hosts of the scheduler: it has their kind, but is no machine and has no boot.
        images: the registry or folder that nodes take images from.
        at_once: the highest number of jobs that the scheduler is given at a time.
        nodes_at_work: how many nodes take jobs.
        settle_seconds: the seconds that it may take until this host sees a record.
        gone_seconds: the seconds after which a node that does not answer counts as down.
    """

    @property
    def host(self) -> HostFacts: ...  # noqa: D102
    @property
    def images(self) -> str | None: ...  # noqa: D102
    @property
    def at_once(self) -> int: ...  # noqa: D102
    @property
    def nodes_at_work(self) -> int: ...  # noqa: D102
    @property
    def settle_seconds(self) -> float: ...  # noqa: D102
    @property
    def gone_seconds(self) -> float: ...  # noqa: D102

    def submit(self, request: RunRequest) -> bool:
        """Submit the job of a run; return False if the queue is full, or if it is unknown whether that worked.

        Raises:
            UserError: when the scheduler refuses the job.
        """

    def for_node(self, node: str) -> "Dispatcher":
        """Return a dispatcher that carries runs to one node only."""

    def look(self) -> Mapping[str, JobSeen] | None:
        """Return this user's jobs by the ids of their runs; None when the scheduler does not answer."""

    def unavailable_nodes(self) -> Mapping[str, str] | None:
        """Return the nodes that take no jobs, each with the reason; None when the scheduler does not answer."""

    def request_record(self, intent: Intent, job: JobSeen | None, *, asks: bool) -> Closing:
        """Ask the node of a run that is over without a record to write one, unless the node is already at it.

        Without `asks`, nothing is started and only the state is returned.
        """

    def cancel(self, run_ids: Collection[str]) -> None:
        """Cancel the jobs of runs."""

    def avoid(self, intent: Intent, waiting: Collection[str]) -> bool:
        """Submit no more jobs to the node that failed to begin a run; return False if no node is left.

        `waiting` are the runs whose jobs wait; they are kept from that node, too. The last node that is left is only
        excluded after it failed to begin three runs in a row.
        """

    def note_host(self, intent: Intent) -> None:
        """Record the facts of the node that made a run: it may have been rebooted since they were last recorded."""

    def last_output_line(self, run_id: str, *, closing: bool = False) -> str:
        """Return the last line that the job of a run printed; `closing`: the job that asked its node for a record."""
