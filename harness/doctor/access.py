"""Reads the device nodes, and what the caller may do with them."""

import os
import re
import stat
from pathlib import Path

from harness.base.sysfs import read_text
from harness.doctor.machine import Caller, Node

READ_WRITE = 0o6
# Who is in one of these reads the kernel's messages from the journal.
JOURNAL_GROUPS = frozenset({"adm", "systemd-journal", "wheel"})


def read_caller(root: Path) -> Caller:
    """Who runs the process that asks: its effective user and all its groups."""
    text = read_text(root / "proc/self/status") or ""
    users, groups, more = (
        [int(word) for word in re.findall(r"\d+", "".join(re.findall(rf"^{key}:(.*)$", text, re.MULTILINE)))]
        for key in ("Uid", "Gid", "Groups")
    )
    # Each of the first two lines has the real id, the effective one, and two more.
    return Caller(uid=users[1] if users else os.getuid(), groups=frozenset([*groups[1:2], *more]))


def read_group_names(root: Path) -> dict[int, str]:
    """The groups of this host by number."""
    rows = (line.split(":") for line in (read_text(root / "etc/group") or "").splitlines())
    return {int(row[2]): row[0] for row in rows if len(row) > 2 and row[2].isdigit()}  # noqa: PLR2004


def read_node(root: Path, path: str, caller: Caller, names: dict[int, str]) -> Node | None:
    """A device node; None where there is none."""
    file = root / path.lstrip("/")
    try:
        found = file.stat()
    except OSError:
        return None
    # An access control list, as logind gives to who sits at the screen, is only known to the kernel.
    usable = _permitted(found, caller) or (root == Path("/") and os.access(file, os.R_OK | os.W_OK))
    mode = stat.S_IFCHR | stat.S_IMODE(found.st_mode)
    return Node(path, mode, found.st_uid, found.st_gid, names.get(found.st_gid), usable)


def _permitted(found: os.stat_result, caller: Caller) -> bool:
    if caller.uid == 0:
        return True
    owner, group = found.st_uid == caller.uid, found.st_gid in caller.groups
    bits = found.st_mode >> (6 if owner else 3 if group else 0)
    return bits & READ_WRITE == READ_WRITE
