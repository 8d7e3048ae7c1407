"""The kinds of faults, as data: how each is injected, and how the harness must judge it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from harness.evidence.files.run_files import OutcomeName
from harness.faults.external import (
    BrokenTorch,
    ContainerRemoved,
    EngineRestarted,
    ExternalFault,
    FullDisk,
    LittleMemory,
    MissingDevice,
    Paused,
    TinySharedMemory,
)
from harness.matrix.stacks import ExecutorName
from harness.matrix.workloads import SyntheticData, Workload

BOTH: tuple[ExecutorName, ...] = ("process", "docker")
CONTAINED: tuple[ExecutorName, ...] = ("docker",)
AS_PROCESS: tuple[ExecutorName, ...] = ("process",)

WORKLOAD = Workload(
    name="fault-injection",
    description="seconds of training on synthetic bars: two epochs of 29 steps",
    synthetic=SyntheticData(sessions=26),
    lookback=20,
    epochs=2,
    loader_workers=0,
    time_limit=300,
)
# Steps at which faults are injected. STEP is in the second epoch, when everything was done once. COMPARED_STEP is among
# the steps that are compared with the reference. LATE_STEP is so late that a healthy run ends soon, even slowed down by
# two seconds a step. FIRST_EPOCH_STEP is in the first epoch, so that training continues after its checkpoint.
STEP, COMPARED_STEP, LATE_STEP, FIRST_EPOCH_STEP = 35, 8, 54, 20


@dataclass(frozen=True)
class Expected:
    """The expected outcome with its diagnosis, and the classes of which the explanation must have one (if any)."""

    outcome: OutcomeName
    diagnosis: str | None
    classes: tuple[str, ...] = ()

    @property
    def is_alarm(self) -> bool:
        """Return whether the harness should find the fault.

        Otherwise the run ends as one whose fault nothing noticed.
        """
        return self.diagnosis != "injected-fault"

    @property
    def words(self) -> str:
        """Return the expectation in words."""
        return str(self) if self.is_alarm else "no alarm"

    def __str__(self) -> str:
        return f"{self.outcome} ({self.diagnosis})" if self.diagnosis else self.outcome


@dataclass(frozen=True)
class FaultKind:
    """A kind of fault, injected by the app, the harness, or both.

    `app`: the fault that the app injects; None if it injects none.
    `external`: the part of the harness; the base class does nothing.
    `ranks`: with 2, the run trains with the strategy `averaging`.
    `stuck`: the rank that must be named as the stalled one.
    `changes`: options of the workload that differ.
    """

    name: str
    what: str
    expected: Expected
    app: str | None = None
    external: ExternalFault = field(default_factory=ExternalFault)
    executors: tuple[ExecutorName, ...] = BOTH
    ranks: Literal[1, 2] = 1
    stuck: int | None = None
    changes: tuple[tuple[str, Any], ...] = ()

    @property
    def by_harness(self) -> bool:
        """Return whether the harness injects a part of the fault."""
        return type(self.external) is not ExternalFault

    @property
    def workload(self) -> Workload:
        """Return the workload of the run."""
        strategy = "averaging" if self.ranks > 1 else "single"
        return WORKLOAD.model_copy(update={"strategy": strategy, **dict(self.changes)})


UNNOTICED = Expected("failed", "injected-fault")
WORKERS = (("loader_workers", 2),)


def _in_app(name: str, what: str, expected: Expected, *, step: int = STEP, rank: int = 0, **more: Any) -> FaultKind:
    return FaultKind(name, what, expected, app=f"{name}@{step}/{rank}", **more)


def _hang(name: str, what: str, *classes: str, ranks: Literal[1, 2] = 1, **more: Any) -> FaultKind:
    """Return a hang in the last rank."""
    rank = ranks - 1
    return _in_app(name, what, Expected("hung", "no-progress", classes), rank=rank, ranks=ranks, stuck=rank, **more)


def _crash(name: str, what: str, *classes: str, **more: Any) -> FaultKind:
    return _in_app(name, what, Expected("failed", "crash", classes), **more)


def _error(name: str, what: str, *classes: str, **more: Any) -> FaultKind:
    """Return an error with which the app ends by itself."""
    return _in_app(name, what, Expected("failed", "app-error", classes), **more)


def _out_of_memory(name: str, what: str, limit: int, **more: Any) -> FaultKind:
    expected = Expected("failed", "out-of-memory", ("oom-host",))
    return FaultKind(name, what, expected, external=LittleMemory(limit), executors=CONTAINED, **more)


def _healthy(name: str, what: str, **more: Any) -> FaultKind:
    """Return unusual but healthy behaviour, which must not cause an alarm."""
    return _in_app(name, what, UNNOTICED, **more)


KINDS: Sequence[FaultKind] = (
    _hang("hang-forward", "a rank is stalled in the forward pass", "hang-forward", ranks=2),
    _hang("hang-backward", "a rank is stalled in the backward pass", "hang-backward", ranks=2),
    _hang("hang-collective", "a rank does not join the exchange with the others", "hang-collective", ranks=2),
    _hang("hang-loader", "the process that makes the batches is stalled", "hang-loader", changes=WORKERS),
    _hang("hold-gil", "a call into C never returns and keeps Python's lock", "hang-forward"),
    _hang("sleep", "a rank is stalled between two steps", "hang"),
    _crash("segv", "a segmentation fault", "crash"),
    _crash("abort", "a C library aborts", "crash"),
    _crash("kill", "the process is killed, as by the kernel", "killed"),
    _crash("bus-error", "a bus error, as of a mapped file that was cut", "shm"),
    _error("oom", "the device has no memory left", "oom-gpu"),
    _error("blas-alloc-failed", "BLAS cannot make its handle", "blas-init"),
    _error("blas-not-initialized", "BLAS has no handle", "blas-init"),
    _error("blas-internal-error", "a BLAS kernel fails", "hipblaslt-kernel"),
    _error("blas-not-supported", "BLAS cannot do what is asked", "blas-not-supported"),
    _error("illegal-access", "a kernel touches memory that is not its own", "kernel-fault"),
    _error("no-kernel-image", "the wheel has no kernels for this GPU", "missing-arch"),
    _error("import-error", "a library of ROCm is missing when it is first needed", "install"),
    _in_app("exit-0", "the process ends with status 0 and no result", Expected("failed", "no-result", ("no-result",))),
    _in_app("nan", "a number of the batch is not a number", Expected("failed", "not-finite", ("not-finite",))),
    _in_app(
        "flip-gradient",
        "a bit of a gradient flips",
        Expected("failed", "not-finite", ("not-finite",)),
        step=COMPARED_STEP,
    ),
    _error("flip-peer-buffer", "a bit flips between two ranks", "wrong-result", ranks=2, rank=1),
    _error(
        "fill-disk",
        "the disk for model and checkpoints is full",
        "disk-full",
        external=FullDisk(),
    ),
    FaultKind(
        "import-failure",
        "torch cannot be imported: a library of ROCm is missing",
        Expected("failed", "app-error", ("install",)),
        external=BrokenTorch(),
    ),
    FaultKind(
        "missing-device",
        "the device node of the GPU is missing",
        Expected("interrupted", None, ("no-device",)),
        external=MissingDevice(),
        executors=CONTAINED,
    ),
    FaultKind(
        "no-gpu",
        "the cell is for a GPU, and torch sees none",
        Expected("failed", "app-error", ("no-device",)),
        external=MissingDevice(),
        executors=AS_PROCESS,
    ),
    _out_of_memory("memory-limit", "the container may not use the memory that torch needs to be imported", 64 << 20),
    _out_of_memory("eat-memory", "the training grows until the container's limit", 1 << 30, app=f"eat-memory@{STEP}/0"),
    _out_of_memory(
        "child-eats-memory", "a process that the training started does", 1 << 30, app=f"child-eats-memory@{STEP}/0"
    ),
    FaultKind(
        "tiny-shm",
        "shared memory is too small for what loader workers pass on",
        Expected("failed", "app-error", ("shm",)),
        external=TinySharedMemory(128 << 10),
        executors=CONTAINED,
        changes=WORKERS,
    ),
    FaultKind(
        "container-removed",
        "somebody removes the container",
        Expected("interrupted", None, ("interrupted",)),
        app=f"slow@{LATE_STEP}/0",
        external=ContainerRemoved(),
        executors=CONTAINED,
    ),
    FaultKind(
        "engine-restarted",
        "the Docker engine dies, and is started again (an engine of the test's own)",
        Expected("interrupted", None, ("interrupted",)),
        app=f"slow@{LATE_STEP}/0",
        external=EngineRestarted(),
        executors=CONTAINED,
    ),
    _healthy("slow", "every step takes two seconds more", step=LATE_STEP),
    _healthy("slow-checkpoint", "a checkpoint takes a minute; another rank waits", step=FIRST_EPOCH_STEP, ranks=2),
    _healthy("torn-progress", "half a line and rubbish in the progress file"),
    _healthy("clock-back", "the wall clock is set back by an hour"),
    _healthy("flood-log", "200,000 lines of output at once"),
    FaultKind(
        "paused",
        "all processes of the run are stopped for ten seconds",
        UNNOTICED,
        app=f"slow@{LATE_STEP}/0",
        external=Paused(),
        executors=AS_PROCESS,
    ),
)
"""The kinds in the order of the table."""

APP_KINDS: Sequence[str] = tuple(dict.fromkeys(kind.app.partition("@")[0] for kind in KINDS if kind.app))
"""The kinds that the app injects, by the app's names, as in `NAME@STEP` or `NAME@STEP/RANK`."""
