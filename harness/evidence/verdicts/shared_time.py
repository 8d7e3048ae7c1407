"""Runs that ran beside others, on other GPUs: which failures are one incident, and what a repeat alone shows. Pure.

Each failure counts, whatever ran beside it. This module changes the words, never the count.
"""

import json
from collections.abc import Sequence

from harness.evidence.row import Row
from harness.evidence.verdicts.counting import Counts

# Failures within this time are one incident for the probability that a training ends uninterrupted.
BURST_SECONDS = 15 * 60.0
HOST_DOWN = "host-down"


def ran_beside(row: Row, other: Row) -> bool:
    """Return whether two runs were begun together on one host; imported runs of other hosts may claim anything."""
    if row.machine != other.machine:
        return False
    return other.run_id in json.loads(row.beside) or row.run_id in json.loads(other.beside)


def is_one_incident(row: Row, other: Row, counts: Counts) -> bool:
    """Return whether two failures have one cause: for runs side by side, only a GPU reset or the end of the host."""
    if abs(row.finished - other.finished) > BURST_SECONDS:
        return False
    return not ran_beside(row, other) or (_is_event(row, counts) and _is_event(other, counts))


def shared_time_in_words(row: Row, rows: Sequence[Row], counts: Counts) -> str | None:
    """Return what the runs beside a failed run show about it; None where it had the host to itself.

    `rows`: all rows of the results folder.
    """
    others = [other for other in rows if ran_beside(row, other)]
    if not others:
        return None
    named = " and ".join(f"{other.run_id} on GPU {_gpus(other)} ({_end(other, counts)})" for other in others)
    failed = [other for other in others if counts[other.run_id].counts_as == "failed"]
    if any(is_one_incident(row, other, counts) for other in failed):
        return f"it ran beside {named}: one event hit both, which is one incident; each run counts as failed"
    alone = [
        other
        for other in rows
        if _is_same(row, other)
        and other.started > row.started
        and not json.loads(other.beside)
        and counts[other.run_id].counts
    ]
    if not alone:
        return f"it ran beside {named}; the same was not repeated alone"
    repeat = alone[-1]
    if counts[repeat.run_id].counts_as == "passed":
        return f"it ran beside {named}; alone it passed ({repeat.run_id}): sharing the host may be why"
    return f"it ran beside {named}; it failed alone, too ({repeat.run_id}): that is not why"


def _is_same(row: Row, other: Row) -> bool:
    """Return whether two runs are repeats, with the same cell, workload, GPUs, machine and environment."""
    return all(
        getattr(row, name) == getattr(other, name)
        for name in ("cell", "workload_hash", "gpus", "machine", "environment_hash")
    )


def _is_event(row: Row, counts: Counts) -> bool:
    return counts[row.run_id].gpu_fault or row.diagnosis == HOST_DOWN


def _gpus(row: Row) -> str:
    return ", ".join(map(str, json.loads(row.gpus)))


def _end(row: Row, counts: Counts) -> str:
    counted = counts[row.run_id].counts_as
    return row.outcome if counted == "not-counted" else counted
