"""File systems of a network, of which another host sees later what one wrote, and mounts in the folder of a run."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from harness.base.files.untrusted_tree import shown

MOUNTS = Path("/proc/self/mountinfo")
OF_NETWORKS = (
    *("nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "9p", "afs", "pvfs2", "orangefs"),
    *("wekafs", "panfs", "virtiofs", "daos"),
)


def is_network(place: Path, mounts: Path = MOUNTS) -> bool:
    """Return whether a place is on a file system of a network; programs that serve one (FUSE) may always be."""
    best, kind = "", ""
    for point, source in _mounts(mounts):
        # The last of equal ones lies above the others.
        if _holds(point, str(place.absolute())) and len(point) >= len(best):
            best, kind = point, source
    return kind in OF_NETWORKS or kind.startswith("fuse.")


def mount_in(folder: Path, mounts: Path = MOUNTS) -> str:
    """Return in words that something is mounted over a folder or in it; empty where nothing is.

    Nothing there is opened or looked at: the program that serves it may never answer.
    """
    own = str(folder.parent.resolve() / folder.name)
    return next((f"{shown(point)} was mounted over" for point, _ in _mounts(mounts) if _holds(own, point)), "")


def _mounts(mounts: Path) -> Iterator[tuple[str, str]]:
    """Yield where something is mounted, and the kind of its file system."""
    with suppress(OSError):
        for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
            own, _, source = line.partition(" - ")
            yield own.split()[4].replace("\\040", " "), source.split()[0]


def _holds(point: str, place: str) -> bool:
    return point in ("/", place) or place.startswith(point.rstrip("/") + os.sep)
