"""Changes of this host that only a person can know: `results/hosts/MACHINE.jsonl`, one line for each.

After a change the host is of another kind: its earlier runs are evidence for the earlier kind.
"""

import time
from collections.abc import Sequence
from functools import reduce
from pathlib import Path

from pydantic import Field

from harness.base.files.hashes import json_hash
from harness.base.files.json_files import Moment, OneLine, Versioned
from harness.base.files.json_lines import append_line, read_json_lines
from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.host.fingerprint import read_host

FOLDER = "hosts"
LENGTH = 16
# Most bytes that are read of the changes: each makes all later ones take longer, and every record repeats them.
MOST_BYTES = 1 << 16


class HostChange(Versioned):
    """A line of `hosts/MACHINE.jsonl`: a change of the machine, in the user's words."""

    machine: str
    what: OneLine = Field(description="as the person put it, such as `new PSU`")
    at: Moment = Field(description="seconds since 1970")


def host_of(results: Results, root: Path) -> HostFacts:
    """Return the facts of the host at a root, with the changes that the user reported."""
    host = read_host(root)
    return changed_host(host, changes_of(results, host.machine))


def changed_host(host: HostFacts, changes: Sequence[HostChange]) -> HostFacts:
    """Return the facts of a host after changes, given oldest first; each change makes it another kind of host."""
    return reduce(_after, changes, host)


def _after(host: HostFacts, change: HostChange) -> HostFacts:
    what = [change.what, change.at]
    return host.model_copy(
        update={
            "kind": json_hash([host.kind, *what])[:LENGTH],
            "fingerprint": json_hash([host.fingerprint, *what])[:LENGTH],
            "changes": (*host.changes, change.what),
            "former_fingerprints": (*host.former_fingerprints, host.fingerprint),
        }
    )


def changes_of(results: Results, machine: str) -> list[HostChange]:
    """Return the changes of a machine, the oldest first; damaged lines are skipped."""
    return list(read_json_lines(changes_file(results, machine), HostChange, MOST_BYTES))


def note_change(results: Results, machine: str, what: str) -> HostChange:
    """Add a change of a machine, durably.

    Raises:
        UserError: when the results folder cannot be written.
    """
    change = HostChange(machine=machine, what=what, at=time.time())
    append_line(changes_file(results, machine), change)
    return change


def changes_file(results: Results, machine: str) -> Path:
    """Return the file of the changes of a machine."""
    return results.folder / FOLDER / f"{machine}.jsonl"
