"""The amount of host memory that may be used safely."""

from pathlib import Path

ROOT = Path("/")


def free_host_memory(root: Path = ROOT) -> int:
    """Return bytes of available host memory: what the kernel reports as available, within the limits of control groups.

    `root`: the folder that holds `proc` and `sys`.
    """
    meminfo = (root / "proc/meminfo").read_text(encoding="ascii")
    fields = dict(line.split(":", 1) for line in meminfo.splitlines())
    rooms = [int(fields["MemAvailable"].split()[0]) * 1024]
    for line in (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            rooms += _rooms(root / "sys/fs/cgroup", path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            rooms += _rooms(root / "sys/fs/cgroup/memory", path, *files)
    return max(min(rooms), 0)


def _rooms(top: Path, path: str, limit: str, usage: str, cache: str) -> list[int]:
    """Return the free memory of each group from that of this process up to `top`; unused file pages count as free."""
    rooms = []
    group = top / path.lstrip("/")
    for folder in (group, *group.parents):
        if not folder.is_relative_to(top):
            break
        try:
            most = (folder / limit).read_text(encoding="ascii").strip()
            used = int((folder / usage).read_text(encoding="ascii"))
            stat = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
        except OSError:
            continue
        if most != "max":
            rooms.append(int(most) - used + int(stat.get(cache, 0)))
    return rooms
