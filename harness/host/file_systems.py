"""Network file systems, on which other hosts see a change later, and mounts in the folder of a run."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from harness.base.text import safe_text

MOUNTS = Path("/proc/self/mountinfo")
OF_NETWORKS = (
    *("nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "9p", "afs", "pvfs2", "orangefs"),
    *("wekafs", "panfs", "virtiofs", "daos"),
)


def is_network(place: Path, mounts: Path = MOUNTS) -> bool:
    """Return whether a place is on a network file system; one that a program serves (FUSE) is taken for one, too."""
    best, kind = "", ""
    for point, source in _mounts(mounts):
        # Of equal mount points, the last one lies above the others.
        if _holds(point, str(place.absolute())) and len(point) >= len(best):
            best, kind = point, source
    return kind in OF_NETWORKS or kind.startswith("fuse.")


def mount_in(folder: Path, mounts: Path = MOUNTS) -> str:
    """Return in words that something is mounted over a folder or in it; an empty text where nothing is.

    Nothing in the folder is opened or examined, because the program that serves the mount may never answer.
    """
    own = str(folder.parent.resolve() / folder.name)
    return next((f"{safe_text(point)} was mounted over" for point, _ in _mounts(mounts) if _holds(own, point)), "")


def _mounts(mounts: Path) -> Iterator[tuple[str, str]]:
    """Yield each mount point, and the kind of its file system."""
    with suppress(OSError):
        # The kernel escapes blanks and line feeds in names, but no other character at which Python splits.
        for line in filter(None, mounts.read_text(encoding="utf-8", errors="replace").split("\n")):
            own, _, source = line.partition(" - ")
            yield own.split(" ")[4].replace("\\040", " "), source.split()[0]


def _holds(point: str, place: str) -> bool:
    return point in ("/", place) or place.startswith(point.rstrip("/") + os.sep)
