"""The interface of a scheduler that carries runs to other hosts: a job for each run.

A job is told apart by the id of its run. Whatever a scheduler says of a job, what became of the run is in its record.
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
"""The node of a run was asked for its record now; was asked, and has not answered yet; or left none, and is not asked.

It takes no jobs; or none any more, since a process of the run could not be killed.
"""


class RunRequest(Versioned):
    """A run as another host is asked for it, with all that decides it: no matrix file is read there."""

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
    """The state of the job of a run, as a scheduler tells it.

    `ended` is what ended one that is over, where that is known; `never`: why one that waits will never run; `why`: why
    it waits, where that is not for others alone.
    """

    phase: JobPhase
    node: str | None = None
    ended: JobEnding | None = None
    never: str | None = None
    why: str | None = None


class Dispatcher(Protocol):
    """Carries runs to other hosts.

    `host` stands for them all: it has their kind, but is no machine, and has no boot. `images`: the registry or folder
    that they take images from. `at_once`: how many jobs it is
    given at a time, at most. `nodes_at_work`: how many nodes take jobs. `settle_seconds`: how long a record may take
    until it is seen here. `gone_seconds`: after how long a node that does not answer is taken for one that went down.
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
        """Submit the job of a run; False where nobody knows whether that was done, or the queue is full.

        Raises:
            UserError: when it is refused.
        """

    def only(self, node: str) -> "Dispatcher":
        """Return what carries runs to one node alone."""

    def look(self) -> Mapping[str, JobSeen] | None:
        """Return this user's jobs by the ids of their runs; None when the scheduler does not answer."""

    def away(self) -> Mapping[str, str] | None:
        """Return those of its nodes that take no jobs, each with why; None when the scheduler does not answer."""

    def close(self, intent: Intent, job: JobSeen | None, *, asks: bool) -> Closing:
        """Have the node of a run that is over, and has no record, write one, where that is not under way already.

        Without `asks` nothing is begun.
        """

    def cancel(self, run_ids: Collection[str]) -> None:
        """Cancel the jobs of runs."""

    def avoid(self, intent: Intent, waiting: Collection[str]) -> bool:
        """Submit no more jobs to the node that did not begin a run; False where no node is left.

        `waiting`: runs whose jobs wait, which are kept from it, too. The last one stays, until three runs in a row were
        not begun there.
        """

    def learn(self, intent: Intent) -> None:
        """Take note of the node that a run was made on: it may have been booted since it was asked."""

    def last_words(self, run_id: str, *, closing: bool = False) -> str:
        """Return the last line that the job of a run printed; `closing`: that asked its node for a record."""
