"""The source that an image is made from: its commit, whether it has other changes, and the time of the newest input."""

import re
import subprocess
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from harness.base.paths import CHECKOUT

DIRTY = "-dirty"
# The modules that make an image, besides the files that go into it.
MAKERS = (
    *("app_wheel", "compiled_kernel"),
    *("docker/build", "docker/build_context", "docker/dockerfile", "docker/layers"),
)
SOURCE = ("app", "images", "requirements-compiler.txt", *(f"harness/environments/{name}.py" for name in MAKERS))
# The matrix file has the stacks and presets. Uncommitted changes in it do not count, as most are about other cells.
MATRIX = "matrix.yaml"
# The time used if no commit gives one: outside of git, or for a lock that is not committed.
NO_TIME = 1700000000


@cache
def source_revision() -> str | None:
    """Return the commit that last changed an image's inputs, with `-dirty` for later changes; None without git.

    It is not the commit of the checkout, because changes of documents or of other harness parts give the same image.
    """
    commit = _git("log", "-1", "--format=%H", "--", *SOURCE, MATRIX)
    changed = _git("status", "--porcelain", "--", *SOURCE)
    if not commit or changed is None:
        return None
    return f"{commit}{DIRTY if changed else ''}"


def forget_source() -> None:
    """Look at the source again when it is asked for next: people commit and pull while a campaign goes on."""
    source_revision.cache_clear()
    newest_of.cache_clear()


def is_dirty(revision: str | None) -> bool:
    """Return whether a revision includes uncommitted changes, which cannot be reproduced."""
    return revision is not None and revision.endswith(DIRTY)


def is_in_history(revision: str) -> bool:
    """Return whether the history of this checkout contains a commit, given by its full hash."""
    whole = re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", revision) is not None
    return whole and _git("merge-base", "--is-ancestor", revision, "HEAD") is not None


@cache
def newest_of(*files: Path) -> int:
    """Return the time when the newest of some inputs was committed, in seconds since 1970: the same in every checkout.

    For uncommitted inputs (a lock that was resolved here, or a checkout without git) it is a fixed time, because the
    times of their files differ between hosts.
    """
    inside = [file for file in files if file.is_relative_to(CHECKOUT)]
    names = (str(file.relative_to(CHECKOUT)) for file in inside)
    told = _git("log", "-1", "--format=%ct", "--", *names) if inside else None
    return max(NO_TIME, int(told)) if told else NO_TIME


def oci_time(epoch: int) -> str:
    """Return a time in the format of the OCI's labels."""
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _git(*words: str) -> str | None:
    # Git refuses a checkout of another user, as on a cluster, and uncommitted changes there would not be seen. This
    # code is of the same checkout.
    command = ["git", "-c", f"safe.directory={CHECKOUT}", "-C", str(CHECKOUT), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
