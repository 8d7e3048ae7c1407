"""The order in which a process of the app may report its phases, as a table. Pure."""

from collections.abc import Mapping

from harness.evidence.files.app_files import Phase

FOLLOWERS: Mapping[Phase | None, frozenset[Phase]] = {
    None: frozenset({"import"}),
    # `vpoc features` needs no devices.
    "import": frozenset({"init", "data"}),
    "init": frozenset({"data"}),
    "data": frozenset({"data", "features"}),
    # A resumed training goes straight to `step` or, if it was complete, to the last checkpoint of its model. `vpoc
    # features` ends with a checkpoint.
    "features": frozenset({"features", "first-step", "step", "checkpoint"}),
    "first-step": frozenset({"first-step", "step"}),
    "step": frozenset({"step", "validate", "checkpoint"}),
    "validate": frozenset({"validate", "checkpoint"}),
    # More steps, the next model or the end may follow.
    "checkpoint": frozenset({"checkpoint", "step", "first-step", "teardown"}),
    "teardown": frozenset(),
}
"""The phases that the next line of a process may have, by the phase of the last line; None: before the first line."""

RESTARTING: frozenset[Phase] = frozenset({"data", "features"})
"""Phases that a process may report several times in a row, for each block of a large file: `done` restarts at 0."""


def may_follow(before: Phase | None, after: Phase, lost: int = 0) -> bool:
    """Return whether a line in phase `after` may follow one in phase `before`, with `lost` missing lines between."""
    reached = FOLLOWERS[before]
    for _ in range(lost):
        if after in reached:
            return True
        reached = reached.union(*(FOLLOWERS[phase] for phase in reached))
    return after in reached
