"""Which file systems are of a network: what one host writes there, another sees later."""

import os
from contextlib import suppress
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
OF_NETWORKS = (
    *("nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "9p", "afs", "pvfs2", "orangefs"),
    *("wekafs", "panfs", "virtiofs", "daos"),
)


def is_network(place: Path, mounts: Path = MOUNTS) -> bool:
    """Return whether a place is on a file system of a network; programs that serve one (FUSE) may always be."""
    best, kind = "", ""
    with suppress(OSError):
        for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
            own, _, source = line.partition(" - ")
            point = own.split()[4].replace("\\040", " ")
            # The last of equal ones lies above the others.
            if _holds(point, str(place.absolute())) and len(point) >= len(best):
                best, kind = point, source.split()[0]
    return kind in OF_NETWORKS or kind.startswith("fuse.")


def _holds(point: str, place: str) -> bool:
    return point in ("/", place) or place.startswith(point.rstrip("/") + os.sep)
