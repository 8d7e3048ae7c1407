"""Collects the evidence of a failure before anything is killed; each part may take a short time only."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from harness.base.errors import UserError
from harness.base.time_limits import BackgroundCall
from harness.environments.executors.job import Handle
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.files.work_folder import WorkFolder
from harness.host.gpus.gpu_state import GpuSample, sample_gpus
from harness.host.gpus.memory_owners import memory_owners
from harness.host.kernel_log import read_kernel_log
from harness.host.processes.cgroup import MemoryGroupWatch
from harness.host.processes.py_spy import dump_from_outside
from harness.host.processes.run_processes import RunProcess, look_at_processes, table
from harness.run.watch.python_stacks import StackSample, take_stacks

# Longest time for all parts of the evidence, in seconds: they are read at the same time.
SECONDS = 15.0
# Pause between the two samples of the stacks when a run is stopped that is not suspected to hang, in seconds.
BETWEEN_SAMPLES_SECONDS = 1.0


class Missing(LookupError):  # noqa: N818
    """Raised for a part of the evidence that cannot be had; the text says why."""


@dataclass(frozen=True)
class FailureScene:
    """Everything known at the moment of a failure.

    `began`: when the process started, in seconds since 1970.
    `now`: the present by the clock as it was then.
    `container`: the engine's description of the container; None where there is none.
    `memory_group`: returns the counts of the run's control group, or raises LookupError.
    """

    began: float
    now: float
    samples: Sequence[StackSample] = ()
    processes: Sequence[RunProcess] = ()
    container: Mapping[str, Any] | None = None
    memory_group: Callable[[], Mapping[str, object]] | None = None
    root: Path = Path("/")


class Collector:
    """Takes samples of the stacks of a run, and writes the evidence of its failure into the run folder.

    `work`: the work folder, to which the ranks write their stacks and positions.
    `can_dump_stacks`: whether the processes can be asked for their stacks. A program of the user's own cannot, because
        a signal may mean anything to it.
    `on_gpus`: whether the run uses GPUs, so that notes on the host's GPUs concern it.
    `collected`: whether evidence of a failure was written.
    """

    def __init__(
        self, folder: RunFolder, work: WorkFolder, root: Path, *, can_dump_stacks: bool, on_gpus: bool
    ) -> None:
        self._folder = folder
        self._work = work
        self._root = root
        self._can_dump_stacks = can_dump_stacks
        self._on_gpus = on_gpus
        self._handle: Handle | None = None
        self._began, self._started = time.monotonic(), time.time()
        self._memory_group: MemoryGroupWatch | None = None
        self.collected = False

    def begin(self, handle: Handle, began: float) -> None:
        """Note a process that was started, and when, on the monotonic clock."""
        self._handle, self._began = handle, began
        self._started = time.time() - (time.monotonic() - began)
        self._memory_group = None

    def look(self) -> None:
        """Read the counts of the process's control group, which are gone once the process has ended."""
        if self._memory_group:
            self._memory_group.look()
        elif self._handle and self._handle.pid:
            self._memory_group = MemoryGroupWatch(self._handle.pid)

    def take_stacks(self) -> StackSample:
        """Take a sample of the stacks of the run's processes."""
        processes = look_at_processes(self._folder.path)
        if self._can_dump_stacks:
            return take_stacks(self._work, processes)
        # A program of the user's own has one rank only, and its processes do not name it.
        alone = tuple(replace(one, rank=0) for one in processes)
        return StackSample(time.monotonic(), time.time(), alone, (), {})

    def samples(self, count: int) -> tuple[StackSample, ...]:
        """Take `count` samples, or only one where the first shows no stacks."""
        samples = [self.take_stacks()]
        while samples[0].stacks and len(samples) < count:
            time.sleep(BETWEEN_SAMPLES_SECONDS)
            samples.append(self.take_stacks())
        return tuple(samples)

    def keep(self, samples: Sequence[StackSample]) -> tuple[str, ...]:
        """Write the evidence of a failure into the run folder; return the notes on the GPUs if the run uses any."""
        self.collected = True
        scene = FailureScene(
            began=self._started,
            now=self._started + time.monotonic() - self._began,
            samples=samples,
            processes=look_at_processes(self._folder.path),
            container=self._handle.inspected if self._handle else None,
            memory_group=self._memory_group.summary if self._memory_group else None,
            root=self._root,
        )
        notes = collect(self._folder, scene)
        return notes if self._on_gpus else ()


def collect(folder: RunFolder, scene: FailureScene) -> tuple[str, ...]:
    """Write the evidence of a failure into a run folder, with an index; return what the run's detail should mention.

    Never raises for a part that cannot be had: the index says why it is missing.
    """
    parts: dict[str, Callable[[], object]] = {
        RunFolder.FIRST_STACKS: lambda: _sample(scene, 0),
        RunFolder.SECOND_STACKS: lambda: _sample(scene, 1),
        RunFolder.PROCESSES: lambda: _processes(scene),
        RunFolder.PY_SPY: lambda: dump_from_outside(scene.processes),
        RunFolder.KERNEL_LOG: lambda: _kernel_log(scene),
        RunFolder.GPUS: lambda: _gpus(scene),
        RunFolder.MEMORY_OWNERS: lambda: _owners(scene),
        RunFolder.MEMORY_GROUP: lambda: _memory_group(scene),
        RunFolder.INSPECTED: lambda: _container(scene),
    }
    until = time.monotonic() + SECONDS
    looks = {file: BackgroundCall(look) for file, look in parts.items()}
    contents: dict[str, object] = {}
    collected: dict[str, str] = {}
    missing: dict[str, str] = {}
    for file, look in looks.items():
        try:
            contents[file] = look.result(max(0.0, until - time.monotonic()))
        except Exception as error:
            # Evidence never fails a run.
            missing[Path(file).stem] = _reason(error)
    notes = _notes(looks[RunFolder.GPUS])
    # The index is written last, so that it names what could not be written. A full disk is reported with the record.
    index = {"schema": 2, "collected": collected, "missing": missing, "notes": notes}
    for file, content in {**contents, RunFolder.FAILURE_INDEX: index}.items():
        try:
            folder.write(file, content)
            collected[Path(file).stem] = file
        except UserError as error:
            missing[Path(file).stem] = str(error)
    return notes


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"not read within {SECONDS:g} s"
    return str(error) if isinstance(error, LookupError) else f"{type(error).__name__}: {error}"


def _notes(gpus: BackgroundCall[Any]) -> tuple[str, ...]:
    try:
        samples: Sequence[dict[str, Any]] = gpus.result(0)
    except Exception:
        # The index has the reason.
        return ()
    return tuple(note for sample in samples if (note := GpuSample(**sample).idle_at_full_load))


def _sample(scene: FailureScene, number: int) -> str:
    told = [sample for sample in scene.samples if sample.stacks]
    if number < len(told):
        return told[number].text
    if told:
        raise Missing("only one sample was taken")
    silence = "; ".join(scene.samples[-1].silence) if scene.samples else ""
    raise Missing(silence or "no process of the run was left to ask")


def _processes(scene: FailureScene) -> str:
    if not scene.processes:
        raise Missing("no process of the run was left")
    return table(scene.processes)


def _kernel_log(scene: FailureScene) -> str:
    log = read_kernel_log(scene.began, scene.root, scene.now)
    if log.missing:
        raise Missing(log.missing)
    return "".join(f"{line}\n" for line in log.lines)


def _gpus(scene: FailureScene) -> list[dict[str, Any]]:
    samples = [asdict(sample) for sample in sample_gpus(scene.root)]
    if not samples:
        raise Missing("there is no AMD GPU")
    return samples


def _owners(scene: FailureScene) -> list[dict[str, Any]]:
    owners = memory_owners([process.pid for process in scene.processes], scene.root)
    if not owners:
        raise Missing("no process is seen to hold GPU memory")
    return [asdict(owner) for owner in owners]


def _memory_group(scene: FailureScene) -> Mapping[str, object]:
    if scene.memory_group is None:
        raise Missing("nothing was seen of the run's control group")
    return scene.memory_group()


def _container(scene: FailureScene) -> Mapping[str, Any]:
    if scene.container is None:
        raise Missing("the run was not in a container, or the engine did not say")
    return scene.container
