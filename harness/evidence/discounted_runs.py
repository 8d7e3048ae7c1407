"""Runs from which nothing may be concluded, because a GPU they used turned out to be unhealthy."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from harness.evidence.health_log import machines_with_bad_signs, read_steps
from harness.evidence.index import Row
from harness.evidence.records import Results
from harness.evidence.run_files import HealthStep

Kind = Literal["good", "bad", "not-completed"]
Gpu = tuple[str, str, int]


class _Event(NamedTuple):
    """Something that happened on a GPU; `at` in seconds since 1970."""

    at: float
    kind: Kind
    run_id: str


def discounted(rows: Iterable[Row], steps: Iterable[HealthStep]) -> frozenset[str]:
    """The ids of runs that did not complete and ended between the last good sign of a GPU and the next.

    A bad sign has to lie there too: a probe that failed, or a run whose outcome is `host-fault`. Good signs are a probe
    that passed, a run that completed, and a boot. Runs that are host faults themselves say so and are not among them.
    """
    rows, steps = list(rows), list(steps)
    # Where nothing bad was seen since the boot nothing is discounted: of most runs nothing more needs to be looked at.
    suspect = {(step.machine, step.boot_id) for step in steps if step.check == "probe" and step.good is False}
    suspect |= {(row.machine, row.boot_id) for row in rows if row.outcome == "host-fault"}
    steps = [step for step in steps if (step.machine, step.boot_id) in suspect]
    events: dict[Gpu, list[_Event]] = defaultdict(list)
    checked: dict[str, float] = {}
    for step in steps:
        if step.when == "after-failure":
            checked.setdefault(step.run_id, step.at - step.seconds)
        if step.check == "probe" and step.gpu is not None and step.good is not None:
            kind: Kind = "good" if step.good else "bad"
            events[step.machine, step.boot_id, step.gpu].append(_Event(step.at, kind, step.run_id))
    for row in rows:
        if (row.machine, row.boot_id) not in suspect:
            continue
        # A run that failed ended before the probes that followed, and its record was written after them.
        ended = min(row.finished, checked.get(row.run_id, row.finished))
        for gpu in json.loads(row.gpus):
            at = row.finished if row.outcome == "completed" else ended
            events[row.machine, row.boot_id, gpu].append(_Event(at, _kind(row), row.run_id))
    return frozenset(run_id for happened in events.values() for run_id in _discounted_on_one(sorted(happened)))


def discounted_runs(results: Results, rows: Sequence[Row]) -> frozenset[str]:
    """The discounted runs of a results folder; `rows` are all of its index."""
    suspect = machines_with_bad_signs(results) | {row.machine for row in rows if row.outcome == "host-fault"}
    steps = (step for machine in sorted(suspect) for step in read_steps(results, machine))
    return discounted((row for row in rows if row.machine in suspect), steps)


def _kind(row: Row) -> Kind:
    return "good" if row.outcome == "completed" else "bad" if row.outcome == "host-fault" else "not-completed"


def _discounted_on_one(events: Iterable[_Event]) -> Iterable[str]:
    """Yield the runs that one GPU's events of one boot discount, in the order of time."""
    since_good: list[str] = []
    unhealthy = False
    for event in events:
        if event.kind == "not-completed":
            since_good.append(event.run_id)
        elif event.kind == "bad":
            unhealthy = True
        else:
            if unhealthy:
                yield from since_good
            since_good, unhealthy = [], False
    if unhealthy:
        yield from since_good
