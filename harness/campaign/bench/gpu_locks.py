"""Locks that allow one run per GPU of this host, whoever starts it: a file per GPU, held by the run's processes.

The kernel frees such a lock when the last process that has the file open is gone, so no lock outlives its processes.
The lock does not cover what a container does. For that the file names the run, and the next process that takes the lock
checks whether a container or process of that run still uses the GPU.
"""

import fcntl
import math
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
from harness.base.files.locks import counted_as_held
from harness.base.files.shared_locks import folder_of_locks, is_at, open_shared_lock
from harness.base.files.storage import cannot_be_written
from harness.base.text import one_line
from harness.base.time_limits import ANSWER_SECONDS, BackgroundCall
from harness.host.facts import GpuFacts
from harness.host.gpus.gpu_memory import ByProcess, memory_by_process
from harness.host.processes.processes import ProcessId, boot_id

_POLL_SECONDS = 0.5
_MOST_BYTES = 4096


@dataclass(frozen=True)
class GpuClaim:
    """A run, by its folder, and the GPUs that it needs for itself."""

    folder: Path
    gpus: tuple[GpuFacts, ...]


class Holder(File):
    """The holder of a GPU, as its lock file names it: the run folder, and the process of the harness."""

    folder: str
    user: str
    pid: int
    started: int
    boot: str

    @classmethod
    def of(cls, claim: GpuClaim) -> "Holder":
        """Return this process as the holder for a run."""
        me = ProcessId.mine()
        user = psutil.Process().username()
        return cls(folder=str(claim.folder.absolute()), user=user, pid=me.pid, started=me.started, boot=me.boot)

    def __str__(self) -> str:
        """Return a description for a user who waits for this holder."""
        alive = ProcessId(self.pid, self.started, self.boot).alive()
        # Any user may have written the file.
        whose = one_line(f"run {self.folder} of {self.user}")
        return f"{whose}, process {self.pid}{'' if alive else ', which is gone'}"


class StillInUseError(Exception):
    """Raised when GPUs are in use for longer than a run may wait for them; the text says by whom."""


ContainerRuns = Callable[[Path], bool]


@contextmanager
def lock_gpus(
    claims: Sequence[GpuClaim],
    notify: Callable[[str], None] = lambda _: None,
    container_runs: ContainerRuns = lambda _: False,
    root: Path = Path("/"),
    seconds: float | None = None,
) -> Iterator[int]:
    """Hold the GPUs of the first claim whose GPUs are all free, waiting for one if necessary; yield the claim's index.

    - `notify`: called with a line that names the current holders; an exception that it raises ends the wait.
    - `container_runs`: returns whether a container of the run in a folder still runs.
    - `root`: the root of the file system; it can be a fake tree.
    - `seconds`: the longest wait; None: without end.

    Raises:
        StillInUseError: when no claim has its GPUs after that wait.
        UserError: when there is no place for lock files, or no room in one.
    """
    with ExitStack() as stack:
        chosen, locks = _wait(claims, stack, notify, container_runs, root, seconds)
        reached("gpus-locked")
        try:
            for descriptor in locks:
                _note(descriptor, Holder.of(claims[chosen]).model_dump_json())
        except OSError as error:
            # Any user may have filled that folder's file system.
            raise cannot_be_written(folder_of_locks(root), error) from None
        reached("gpus-noted")
        try:
            yield chosen
        finally:
            for descriptor in locks:
                _note(descriptor, "")
            reached("gpus-released")


def is_free(claim: GpuClaim, container_runs: ContainerRuns = lambda _: False, root: Path = Path("/")) -> bool:
    """Return whether a claim could have its GPUs now, without holding them.

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


def gpu_lock_file(gpu: GpuFacts, root: Path) -> Path:
    """The lock file of a GPU.

    Raises:
        UserError: when no folder is there that every user may write to.
    """
    name = gpu.kfd_id or Path(gpu.render_node or f"number{gpu.index}").name
    return folder_of_locks(root) / f"vpoc-gpu-{name}.lock"


class _InUse(Exception):  # noqa: N818
    """A GPU cannot be locked now; the text says why."""


def _wait(
    claims: Sequence[GpuClaim],
    stack: ExitStack,
    notify: Callable[[str], None],
    container_runs: ContainerRuns,
    root: Path,
    seconds: float | None,
) -> tuple[int, list[int]]:
    said, until = "", math.inf if seconds is None else time.monotonic() + seconds
    while True:
        obstacles: list[str] = []
        for place, claim in enumerate(claims):
            with ExitStack() as taken:
                # Every process locks GPUs in the same order, so that of two claims for the same GPUs one gets them all.
                gpus = sorted(claim.gpus, key=lambda gpu: str(gpu_lock_file(gpu, root)))
                try:
                    locks = [_take(gpu, taken, container_runs, root) for gpu in gpus]
                except _InUse as reason:
                    obstacles.append(str(reason))
                    continue
                stack.push(taken.pop_all())
                return place, locks
        text = f"waiting: {'; '.join(dict.fromkeys(obstacles))}"
        if time.monotonic() > until:
            raise StillInUseError(text)
        if text != said:
            notify(text)
            said = text
        time.sleep(_POLL_SECONDS)


def _take(gpu: GpuFacts, stack: ExitStack, container_runs: ContainerRuns, root: Path) -> int:
    """Lock a GPU and return the descriptor of its lock file; raise _InUse, naming the holder, if it is in use."""
    file = gpu_lock_file(gpu, root)
    descriptor = open_shared_lock(file)
    stack.callback(os.close, descriptor)
    in_use = f"GPU {gpu.index} is in use by"
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _InUse(f"{in_use} {_holder(descriptor) or 'a run of an unknown owner'}") from None
    if not is_at(descriptor, file):
        # Something that tidies temporary folders removed the old file, so the next process would lock a new one.
        raise _InUse(f"GPU {gpu.index}: its lock {file} was removed just now")
    before = _holder(descriptor)
    if before and before.boot == boot_id() and (left := _why_still_in_use(before, gpu, container_runs, root)):
        raise _InUse(f"{in_use} {before}; {left}")
    stack.enter_context(counted_as_held(descriptor))
    return descriptor


def _note(descriptor: int, text: str) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text.encode(), 0)


def _holder(descriptor: int) -> Holder | None:
    """Return the holder that a lock file names; None if it names none, or is being written."""
    try:
        return Holder.parse(os.pread(descriptor, _MOST_BYTES, 0))
    except (OSError, ValueError):
        return None


def _why_still_in_use(holder: Holder, gpu: GpuFacts, container_runs: ContainerRuns, root: Path) -> str | None:
    """Return why a GPU of a holder that did not release it is still in use; None if it is free."""
    if container_runs(Path(holder.folder)):
        return "its container still runs"
    memory_of: ByProcess = {}
    # If the driver does not answer, the GPU counts as free, or else nobody could use it again: its probe follows.
    with suppress(TimeoutError):
        memory_of = BackgroundCall(partial(memory_by_process, root)).result(ANSWER_SECONDS)
    users = [pid for pid, memory in memory_of.items() if memory.get(str(gpu.kfd_id))]
    # Count only processes younger than that harness: a desktop or a notebook may have used the GPU before.
    left = [str(pid) for pid in users if (process := _process(pid)) and process.started >= holder.started]
    return f"process {', '.join(left)} still holds memory on it" if left else None


def _process(pid: int) -> ProcessId | None:
    try:
        return ProcessId.of(pid)
    except ProcessLookupError:
        return None
