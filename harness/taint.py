"""Runs from which nothing may be concluded, because a GPU they used turned out to be sick."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Literal, NamedTuple

from harness.contracts import HealthStep, Record
from harness.host.health_log import read_steps
from harness.records import Results

Kind = Literal["good", "bad", "not-completed"]
Gpu = tuple[str, str, int]


class _Event(NamedTuple):
    """Something that happened on a GPU; `at` in seconds since 1970."""

    at: float
    kind: Kind
    run_id: str


def tainted(records: Iterable[Record], steps: Iterable[HealthStep]) -> frozenset[str]:
    """The ids of runs that did not complete and ended between the last good sign of a GPU and the next.

    A bad sign has to lie there too: a probe that failed, or a run whose outcome is `host-fault`. Good signs are a probe
    that passed, a run that completed, and a boot. Runs that are host faults themselves say so and are not among them.
    """
    steps = list(steps)
    events: dict[Gpu, list[_Event]] = defaultdict(list)
    looked_after: dict[str, float] = {}
    for step in steps:
        if step.when == "after-failure":
            looked_after.setdefault(step.run_id, step.at - step.seconds)
        if step.check == "probe" and step.gpu is not None and step.good is not None:
            kind: Kind = "good" if step.good else "bad"
            events[step.machine, step.boot_id, step.gpu].append(_Event(step.at, kind, step.run_id))
    for record in records:
        # A run that failed ended before the probes that followed, and its record was written after them.
        ended = min(record.finished, looked_after.get(record.intent.run_id, record.finished))
        host = record.intent.host
        for gpu in record.intent.gpus:
            at = record.finished if record.outcome == "completed" else ended
            events[host.machine, host.boot_id, gpu].append(_Event(at, _kind(record), record.intent.run_id))
    return frozenset(run_id for happened in events.values() for run_id in _tainted_on_one(sorted(happened)))


def tainted_runs(results: Results) -> frozenset[str]:
    """The tainted runs of a results folder."""
    steps = list(read_steps(results))
    # Without any step no GPU was ever run on, and the records need not be read.
    return tainted(results.records([]), steps) if steps else frozenset()


def _kind(record: Record) -> Kind:
    return "good" if record.outcome == "completed" else "bad" if record.outcome == "host-fault" else "not-completed"


def _tainted_on_one(events: Iterable[_Event]) -> Iterable[str]:
    """What is tainted by one GPU's events of one boot, in the order of time."""
    since_good: list[str] = []
    sick = False
    for event in events:
        if event.kind == "not-completed":
            since_good.append(event.run_id)
        elif event.kind == "bad":
            sick = True
        else:
            if sick:
                yield from since_good
            since_good, sick = [], False
    if sick:
        yield from since_good
