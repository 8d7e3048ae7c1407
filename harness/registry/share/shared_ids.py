"""The names that other hosts use for machines, boots and runs. Pure."""

import hashlib
import re

ID_HASH_LENGTH = 8
# The same limit as in `harness.evidence.records`.
LONGEST_ID = 120
SHARED_MARK = "shared"
SHARED_ID = re.compile(
    rf"(?=.{{1,{LONGEST_ID}}}$)[A-Za-z0-9][A-Za-z0-9._-]*-{SHARED_MARK}-[0-9a-f]{{{ID_HASH_LENGTH}}}"
)


def hashed(identity: str) -> str:
    """Return the name that other hosts use for a machine or a boot; no machine uses it for itself."""
    return hashlib.sha256(f"{SHARED_MARK}:{identity}".encode()).hexdigest()[:16]


def is_hashed(name: str) -> bool:
    """Return whether a name has the form that `hashed` gives."""
    return re.fullmatch(r"[0-9a-f]{16}", name) is not None


def shared_id(machine: str, run_id: str) -> str:
    """Return the id that other hosts use for a run of `machine`, which is given by its own name for itself.

    Without it, two hosts could use the same id, and an imported run could pass for a run of this host.
    """
    ending = f"-{SHARED_MARK}-{hashed(f'{machine}/{run_id}')[:ID_HASH_LENGTH]}"
    return run_id[: LONGEST_ID - len(ending)] + ending


def is_shared_id(name: str) -> bool:
    """Return whether an id has the form that `shared_id` gives."""
    return SHARED_ID.fullmatch(name) is not None
