"""One run per GPU of this host, whoever starts it: a lock file per GPU, held by the processes of the run.

The kernel frees such a lock when the last process that has it open is gone, so none outlives them. What a container
does the lock cannot tell: for that the file names the run, and a new taker looks whether something of it still runs.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from harness.base.files.failpoints import reached
from harness.base.files.json_files import File
from harness.base.files.shared_locks import folder_of_locks, is_at, open_shared_lock
from harness.base.files.storage import cannot_be_written, held
from harness.base.text import one_line
from harness.base.time_limits import ANSWER_SECONDS, Look
from harness.host.facts import GpuFacts
from harness.host.gpus.gpu_memory import ByProcess, memory_by_process
from harness.host.processes.processes import ProcessId, boot_id

_POLL_SECONDS = 0.5
_MOST_BYTES = 4096


@dataclass(frozen=True)
class GpuClaim:
    """A run, by its folder, and the GPUs that it wants for itself."""

    folder: Path
    gpus: tuple[GpuFacts, ...]


class Holder(File):
    """The holder of a GPU, as its lock file names it: a run folder, and the process of the harness."""

    folder: str
    user: str
    pid: int
    started: int
    boot: str

    @classmethod
    def of(cls, claim: GpuClaim) -> "Holder":
        """The holder that is this process, for a run."""
        me = ProcessId.mine()
        user = psutil.Process().username()
        return cls(folder=str(claim.folder.absolute()), user=user, pid=me.pid, started=me.started, boot=me.boot)

    def __str__(self) -> str:
        """For a person who waits for it."""
        alive = ProcessId(self.pid, self.started, self.boot).alive()
        # The file is anybody's.
        whose = one_line(f"run {self.folder} of {self.user}")
        return f"{whose}, process {self.pid}{'' if alive else ', which is gone'}"


ContainerRuns = Callable[[Path], bool]


@contextmanager
def lock_gpus(
    claims: Sequence[GpuClaim],
    notify: Callable[[str], None] = lambda _: None,
    container_runs: ContainerRuns = lambda _: False,
    root: Path = Path("/"),
) -> Iterator[int]:
    """Hold the GPUs of the first claim that can have all of its own, waiting for one that can; yields which.

    `notify` gets a line that names the holder it waits for; what it raises ends the waiting. `container_runs` returns
    whether a container of the run in a folder still runs. `root` can be a fake tree.

    Raises:
        UserError: when there is no place for lock files, or no room in one.
    """
    with ExitStack() as stack:
        chosen, locks = _wait(claims, stack, notify, container_runs, root)
        reached("gpus-locked")
        try:
            for descriptor in locks:
                _note(descriptor, Holder.of(claims[chosen]).model_dump_json())
        except OSError as error:
            # Anybody may fill it.
            raise cannot_be_written(folder_of_locks(root), error) from None
        reached("gpus-noted")
        try:
            yield chosen
        finally:
            for descriptor in locks:
                _note(descriptor, "")
            reached("gpus-released")


def is_free(claim: GpuClaim, container_runs: ContainerRuns = lambda _: False, root: Path = Path("/")) -> bool:
    """Return whether a claim could have its GPUs now; it does not get them.

    Raises:
        UserError: when there is no place for lock files.
    """
    with ExitStack() as taken:
        try:
            for gpu in claim.gpus:
                _take(gpu, taken, container_runs, root)
        except _InUse:
            return False
        return True


def gpu_lock_file(gpu: GpuFacts, root: Path = Path("/")) -> Path:
    """The lock file of a GPU.

    Raises:
        UserError: when no folder is there that every user may write to.
    """
    name = gpu.kfd_id or Path(gpu.render_node or f"number{gpu.index}").name
    return folder_of_locks(root) / f"vpoc-gpu-{name}.lock"


class _InUse(Exception):  # noqa: N818
    """A GPU cannot be had now, and why."""


def _wait(
    claims: Sequence[GpuClaim],
    stack: ExitStack,
    notify: Callable[[str], None],
    container_runs: ContainerRuns,
    root: Path,
) -> tuple[int, list[int]]:
    said = ""
    while True:
        obstacles: list[str] = []
        for place, claim in enumerate(claims):
            with ExitStack() as taken:
                # In one order everywhere, so that of two who want the same GPUs one gets them.
                gpus = sorted(claim.gpus, key=lambda gpu: str(gpu_lock_file(gpu, root)))
                try:
                    locks = [_take(gpu, taken, container_runs, root) for gpu in gpus]
                except _InUse as reason:
                    obstacles.append(str(reason))
                    continue
                stack.push(taken.pop_all())
                return place, locks
        text = f"waiting: {'; '.join(dict.fromkeys(obstacles))}"
        if text != said:
            notify(text)
            said = text
        time.sleep(_POLL_SECONDS)


def _take(gpu: GpuFacts, stack: ExitStack, container_runs: ContainerRuns, root: Path) -> int:
    """Lock a GPU; raises _InUse, saying who has it."""
    file = gpu_lock_file(gpu, root)
    descriptor = open_shared_lock(file)
    stack.callback(os.close, descriptor)
    in_use = f"GPU {gpu.index} is in use by"
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _InUse(f"{in_use} {_holder(descriptor) or 'a run that does not say whose it is'}") from None
    if not is_at(descriptor, file):
        # Whoever comes next would lock another one. What tidies temporary folders removes what is old.
        raise _InUse(f"GPU {gpu.index}: its lock {file} was removed just now")
    before = _holder(descriptor)
    if before and before.boot == boot_id() and (left := _left(before, gpu, container_runs, root)):
        raise _InUse(f"{in_use} {before}; {left}")
    stack.enter_context(held(descriptor))
    return descriptor


def _note(descriptor: int, text: str) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text.encode(), 0)


def _holder(descriptor: int) -> Holder | None:
    """The holder named in a lock file; None where there is none, or it is being written."""
    try:
        return Holder.parse(os.pread(descriptor, _MOST_BYTES, 0))
    except (OSError, ValueError):
        return None


def _left(holder: Holder, gpu: GpuFacts, container_runs: ContainerRuns, root: Path) -> str | None:
    """The reason why a GPU of a holder that did not release it is still in use; None when it is free."""
    if container_runs(Path(holder.folder)):
        return "its container still runs"
    memory_of: ByProcess = {}
    # Where the driver does not answer, nobody would ever have the GPU again: its probe says whether it is well.
    with suppress(TimeoutError):
        memory_of = Look(partial(memory_by_process, root)).result(ANSWER_SECONDS)
    users = [pid for pid, memory in memory_of.items() if memory.get(str(gpu.kfd_id))]
    # Only what is younger than that harness: a desktop or a notebook may have been there before.
    left = [str(pid) for pid in users if (process := _process(pid)) and process.started >= holder.started]
    return f"process {', '.join(left)} still holds memory on it" if left else None


def _process(pid: int) -> ProcessId | None:
    try:
        return ProcessId.of(pid)
    except ProcessLookupError:
        return None
