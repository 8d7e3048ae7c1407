"""The source an image is made from: its commit, whether that is all, and the time of its newest input."""

import re
import subprocess
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from harness.base.paths import CHECKOUT

DIRTY = "-dirty"
# By what an image is made, beside what goes into it.
MAKERS = (
    *("app_wheel", "compiled_kernel"),
    *("docker/build", "docker/build_context", "docker/dockerfile", "docker/layers"),
)
SOURCE = ("app", "images", "requirements-compiler.txt", *(f"harness/environments/{name}.py" for name in MAKERS))
# It has the stacks and presets. A change of it that no commit has makes no image dirty: most say nothing of its cell.
MATRIX = "matrix.yaml"
# Where no commit tells a time: outside of git, or of a lock that is not committed.
NO_TIME = 1700000000


@cache
def source_revision() -> str | None:
    """Return the commit that last changed what decides an image, with `-dirty` for later changes; None without git.

    Not the checkout's: what changes only documents, or other parts of the harness, gives the same image.
    """
    commit = _git("log", "-1", "--format=%H", "--", *SOURCE, MATRIX)
    changed = _git("status", "--porcelain", "--", *SOURCE)
    if not commit or changed is None:
        return None
    return f"{commit}{DIRTY if changed else ''}"


def is_dirty(revision: str | None) -> bool:
    """Return whether a revision is one with changes that no commit has: nothing tells what they were."""
    return revision is not None and revision.endswith(DIRTY)


def is_in_history(revision: str) -> bool:
    """Return whether what is checked out here contains a commit, by its full hash."""
    whole = re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", revision) is not None
    return whole and _git("merge-base", "--is-ancestor", revision, "HEAD") is not None


@cache
def newest_of(*files: Path) -> int:
    """Return when the newest of some inputs was committed, in seconds since 1970: the same in every checkout.

    Of those that no commit has (a lock that was resolved here, a checkout without git) that is a fixed time: their own
    differs from host to host.
    """
    inside = [file for file in files if file.is_relative_to(CHECKOUT)]
    names = (str(file.relative_to(CHECKOUT)) for file in inside)
    told = _git("log", "-1", "--format=%ct", "--", *names) if inside else None
    return max(NO_TIME, int(told)) if told else NO_TIME


def oci_time(epoch: int) -> str:
    """Return a time as the OCI's labels give it."""
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(CHECKOUT), *words], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
