"""Reads the kernel's counters of the memory of a run's control group, among them the processes that it killed."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

V1, V2 = 1, 2
V2_FILES = ("memory.events", "memory.current", "memory.peak", "memory.max")
# In version 1, "no limit" is the largest number of pages.
V1_FILES = (
    "memory.oom_control",
    "memory.failcnt",
    "memory.usage_in_bytes",
    "memory.max_usage_in_bytes",
    "memory.limit_in_bytes",
)


@dataclass(frozen=True)
class MemoryGroup:
    """A control group that accounts for memory: where it is mounted, and the version of its files."""

    folder: Path
    version: int

    def read(self) -> dict[str, int | str]:
        """Return the content of the group's files by name.

        Each key of `memory.events` and `memory.oom_control` is an entry `file:key`.

        Raises:
            OSError: when the group is gone, as it is soon after its last process.
        """
        found: dict[str, int | str] = {}
        for name in V2_FILES if self.version == V2 else V1_FILES:
            # memory.peak exists since Linux 5.19.
            with contextlib.suppress(FileNotFoundError):
                found.update(_values(name, (self.folder / name).read_text(encoding="ascii")))
        if not found:
            raise FileNotFoundError(f"{self.folder} is gone")
        return found


def _values(name: str, text: str) -> dict[str, int | str]:
    pairs = [line.split() for line in text.splitlines()]
    named = {f"{name}:{words[0]}" if len(words) > 1 else name: words[-1] for words in pairs if words}
    return {key: int(value) if value.isdigit() else value for key, value in named.items()}


def memory_group(pid: int, root: Path = Path("/")) -> MemoryGroup | None:
    """Return the control group of a process; None where the process is gone or memory is not accounted for."""
    try:
        lines = (root / f"proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    paths = {controllers: path for _, controllers, path in (line.split(":", 2) for line in lines)}
    mounts = root / "sys/fs/cgroup"
    for controllers, path in paths.items():
        if "memory" in controllers.split(","):
            return _existing(mounts / "memory" / path.lstrip("/"), V1)
    return _existing(mounts / paths[""].lstrip("/"), V2) if "" in paths else None


def _existing(folder: Path, version: int) -> MemoryGroup | None:
    group = MemoryGroup(folder, version)
    try:
        group.read()
    except OSError:
        return None
    return group


class MemoryGroupWatch:
    """Keeps the first and the last counters of a process's group, which disappears with its last process."""

    def __init__(self, pid: int, root: Path = Path("/")) -> None:
        self._group = memory_group(pid, root)
        self._first: dict[str, int | str] = {}
        self._last: dict[str, int | str] = {}
        self._gone = False
        self.look()

    def look(self) -> None:
        """Read the counters once more; if the group is gone, the last ones are kept."""
        if self._group is None or self._gone:
            return
        try:
            self._last = self._group.read()
        except OSError:
            self._gone = True
        self._first = self._first or self._last

    def summary(self) -> dict[str, object]:
        """Return the counters, as plain values.

        Raises:
            LookupError: when there is no such group to read.
        """
        self.look()
        if self._group is None:
            raise LookupError("no control group that accounts for the memory of the run can be read")
        facts = {"folder": str(self._group.folder), "version": self._group.version, "gone": self._gone}
        return {**facts, "first": self._first, "last": self._last}
