"""Reads the facts of a machine from files under a root (/proc, /sys, /dev, /etc and libc), and from nothing else."""

import math
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

from harness.base.sysfs import REAL_ROOT, entries, read_bytes, read_number, read_text
from harness.doctor.atomics import read_atomics
from harness.doctor.cards import read_cards
from harness.doctor.machine import Caller, GpuProcess, HostGpu, Machine, Node, WantedRocm, Wsl
from harness.host.fingerprint import read_host
from harness.host.gpus.memory_owners import memory_owners
from harness.matrix.cells import Matrix

GLIBC_PLACES = ("lib/x86_64-linux-gnu", "lib64", "usr/lib64", "usr/lib")
READ_WRITE = 0o6
WRITE = 0o2
# Members of these groups may read the kernel's messages in the journal.
JOURNAL_GROUPS = frozenset({"adm", "systemd-journal", "wheel"})
SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def read_machine(matrix: Matrix, root: Path) -> Machine:
    """Return the facts that the checks need; `matrix` says which ROCm versions are wanted."""
    host, cards, caller, names = read_host(root), read_cards(root), _caller(root), _group_names(root)
    by_node = {card.render_node: card for card in cards if card.render_node}
    gpus = []
    for facts in host.gpus:
        card = by_node.get(facts.render_node or "")
        folder = root / f"sys/bus/pci/devices/{card.address}" if card else None
        gpus.append(HostGpu(facts, card, read_atomics(root, facts.kfd_id, folder), _resettable(folder, caller)))
    nodes = (_node(root, f"/dev/dri/{file.name}", caller, names) for file in entries(root / "dev/dri"))
    return Machine(
        host=host,
        gpus=tuple(gpus),
        cards=cards,
        kfd=_node(root, "/dev/kfd", caller, names),
        render_nodes=tuple(node for node in nodes if node and node.path.startswith("/dev/dri/renderD")),
        caller=caller,
        reads_journal=caller.uid == 0 or any(names.get(group) in JOURNAL_GROUPS for group in caller.groups),
        boot_words=tuple((read_text(root / "proc/cmdline") or "").split()),
        iommu=bool(entries(root / "sys/class/iommu")),
        boot_tool=_boot_tool(root),
        glibc=_glibc(root),
        shared_memory=_shared_memory(root, host.memory_bytes),
        locked_memory=_locked_memory(root),
        ptrace_scope=read_number(root / "proc/sys/kernel/yama/ptrace_scope"),
        dmesg_restrict=read_number(root / "proc/sys/kernel/dmesg_restrict"),
        processes=_gpu_processes(root, gpus),
        wsl=_wsl(root, host.kernel),
        rocm=_wanted(matrix),
    )


def _resettable(folder: Path | None, caller: Caller) -> bool | None:
    try:
        found = (folder / "reset").stat() if folder else None
    except OSError:
        return None
    return None if found is None else _permitted(found, caller, WRITE)


def _wanted(matrix: Matrix) -> WantedRocm:
    stacks = [s for s in matrix.stacks.values() if s.rocm and s.framework == "torch" and s.excluded is None]
    default = {cell.stack.rocm for cell in matrix.select("default") if cell.stack in stacks}
    return WantedRocm(tuple((s.rocm, s.name) for s in stacks if s.rocm), frozenset(filter(None, default)))


def _boot_tool(root: Path) -> str:
    """Return the command that adds a parameter to the kernel's command line, with {} for the parameter."""
    if (root / "usr/sbin/grubby").exists():
        return "sudo grubby --update-kernel=ALL --args={}"
    if (root / "usr/bin/kernelstub").exists():
        return "sudo kernelstub --add-options {}"
    edit = """sudo sed -i 's/^GRUB_CMDLINE_LINUX_DEFAULT="/&{} /' /etc/default/grub"""
    # Only Debian and its relatives have update-grub, in sbin.
    has_own = (root / "usr/bin/grub-mkconfig").exists() and not (root / "usr/sbin/update-grub").exists()
    return f"{edit} && sudo {'grub-mkconfig -o /boot/grub/grub.cfg' if has_own else 'update-grub'}"


def _glibc(root: Path) -> str | None:
    for place in GLIBC_PLACES:
        content = read_bytes(root / place / "libc.so.6")
        if content is None:
            continue
        found = re.search(rb"GNU C Library .*? release version (\d+\.\d+)", content)
        return found[1].decode() if found else None
    return None


def _shared_memory(root: Path, memory: int) -> int | None:
    """Return the size of /dev/shm in bytes: half of `memory` if no size is mounted; None if /dev/shm is no tmpfs."""
    for line in (read_text(root / "proc/mounts") or "").splitlines():
        _, place, kind, options, *_ = [*line.split(), "", "", "", ""]
        if place == "/dev/shm" and kind == "tmpfs":  # noqa: S108
            size = re.search(r"(?:^|,)size=(\d+)([kmg]?)", options)
            return int(size[1]) * SIZE_UNITS[size[2]] if size else memory // 2
    return None


def _locked_memory(root: Path) -> float | None:
    """Return the limit of locked memory in bytes, infinite if unlimited; None if it cannot be read."""
    found = re.search(r"^Max locked memory\s+(\S+)", read_text(root / "proc/self/limits") or "", re.MULTILINE)
    if found is None:
        return None
    return math.inf if found[1] == "unlimited" else float(found[1])


def _wsl(root: Path, kernel: str) -> Wsl | None:
    gpu = (root / "dev/dxg").exists()
    if "microsoft" not in kernel.lower() and not gpu:
        return None
    # WSL 1 has no Linux kernel, and reports itself as 4.4.0-19041-Microsoft.
    version = 1 if kernel.endswith("-Microsoft") else 2
    return Wsl(version, gpu, (root / "usr/lib/wsl/lib/libdxcore.so").exists())


def _caller(root: Path) -> Caller:
    """Return the effective user and all groups of this process."""
    text = read_text(root / "proc/self/status") or ""
    users, groups, more = (
        [int(word) for word in re.findall(r"\d+", "".join(re.findall(rf"^{key}:(.*)$", text, re.MULTILINE)))]
        for key in ("Uid", "Gid", "Groups")
    )
    # The first two lines have the real id, the effective id, and two more.
    return Caller(uid=users[1] if users else os.getuid(), groups=frozenset([*groups[1:2], *more]))


def _group_names(root: Path) -> dict[int, str]:
    """Return the names of this host's groups by number."""
    rows = (line.split(":") for line in (read_text(root / "etc/group") or "").splitlines())
    return {int(row[2]): row[0] for row in rows if len(row) > 2 and row[2].isdigit()}  # noqa: PLR2004


def _node(root: Path, path: str, caller: Caller, names: dict[int, str]) -> Node | None:
    """Return the facts of a device node; None if it does not exist."""
    file = root / path.lstrip("/")
    try:
        found = file.stat()
    except OSError:
        return None
    # Ask the kernel as well, which also knows access control lists such as logind's for the user at the screen.
    usable = _permitted(found, caller) or (root == REAL_ROOT and os.access(file, os.R_OK | os.W_OK))
    mode = stat.S_IFCHR | stat.S_IMODE(found.st_mode)
    return Node(path, mode, found.st_uid, found.st_gid, names.get(found.st_gid), usable)


def _permitted(found: os.stat_result, caller: Caller, wanted: int = READ_WRITE) -> bool:
    if caller.uid == 0:
        return True
    owner, group = found.st_uid == caller.uid, found.st_gid in caller.groups
    bits = found.st_mode >> (6 if owner else 3 if group else 0)
    return bits & wanted == wanted


def _gpu_processes(root: Path, gpus: Sequence[HostGpu]) -> tuple[GpuProcess, ...]:
    """Return the processes with memory on a GPU, each once.

    Other users' processes that only draw are visible only to root.
    """
    labels = {str(gpu.facts.kfd_id): gpu.label for gpu in gpus if gpu.facts.kfd_id}
    labels |= {gpu.card.address: gpu.label for gpu in gpus if gpu.card}
    found: dict[tuple[int, str], GpuProcess] = {}
    for owner in memory_owners((), root):
        label, computes = labels.get(owner.gpu), owner.source == "kfd"
        # A process that computes has render nodes open as well, but its memory must not be counted twice.
        if label and (computes or (owner.pid, label) not in found):
            found[owner.pid, label] = GpuProcess(owner.pid, owner.name or None, label, owner.bytes, computes)
    return tuple(found[key] for key in sorted(found))
