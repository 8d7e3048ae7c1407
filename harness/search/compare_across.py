"""Compares runs of a cell with runs from before its host changed; such evidence is never added up. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.evidence.host_state import VBIOS, HostState, state_from_json
from harness.evidence.row import Row, data_in_words
from harness.evidence.verdicts.counting import Counts
from harness.evidence.verdicts.rates import lower_bound, upper_bound
from harness.search.compare import GroupComparison, corrected, fisher
from harness.search.sequential import BinomialCount

Axis = Literal["kernel", "driver", "firmware", "parameters"]
AXES: tuple[Axis, ...] = ("kernel", "driver", "firmware", "parameters")


@dataclass(frozen=True)
class SideBySide:
    """The runs of a cell on one host with one value of an axis: `6.12: 20 of 20`.

    The pass rate lies above `low`, and it lies below `high`. Each bound holds by itself, however often the runs are
    looked at.
    """

    value: str
    passes: int
    runs: int
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class AcrossComparison(GroupComparison):
    """The runs of a cell with the newest value of an axis, compared with those of another value of it.

    `also_changed` are the other axes that differ between the two, so that they may cause the difference.
    """

    axis: Axis
    before: SideBySide
    newest: SideBySide
    machine: str
    also_changed: tuple[str, ...]

    @property
    def pair(self) -> tuple[BinomialCount, BinomialCount]:
        """The counts with the earlier value and with the newest value."""
        before, newest = self.before, self.newest
        return BinomialCount(before.passes, before.runs), BinomialCount(newest.passes, newest.runs)

    @property
    def in_words(self) -> str:
        """The comparison as in `cpu-plain: 6.12: 20 of 20; 6.18: 3 of 9 (...): they differ`."""
        sides = "; ".join(f"{side.value}: {side.passes} of {side.runs}" for side in (self.before, self.newest))
        also = f"; {' and '.join(self.also_changed)} changed too, which may be the cause" if self.also_changed else ""
        return f"{self.cell}: {sides} {self.conclusion}{also}"


def compare_across(
    rows: Iterable[Row], counts: Counts, axis: Axis, cells: Sequence[str], confidence: float
) -> list[AcrossComparison]:
    """Compare the newest value of an axis with each earlier one, for each of these cells, or for all if none is given.

    Only runs that count are compared, and only runs of the same cell, environment, workload, executor, scope and
    machine.
    """
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.started):
        if counts[row.run_id].counts and (not cells or row.cell in cells):
            alike = (row.cell, row.environment_hash, row.workload_hash, row.executor, row.scope, row.machine)
            groups.setdefault(alike, []).append(row)
    return corrected([one for _, group in sorted(groups.items()) for one in _of_group(group, counts, axis, confidence)])


def _of_group(rows: Sequence[Row], counts: Counts, axis: Axis, confidence: float) -> Iterator[AcrossComparison]:
    """Compare runs that differ only in when they were made; `rows` are in the order of time."""
    names = _differing([_facts(state_from_json(row.host_state), axis) for row in rows])
    by_value: dict[str, list[Row]] = {}
    for row in rows:
        by_value.setdefault(_value(_facts(state_from_json(row.host_state), axis), names), []).append(row)
    last = _value(_facts(state_from_json(rows[-1].host_state), axis), names)
    newest = by_value.pop(last)
    for value, others in by_value.items():
        before, now = _side(value, others, counts, confidence), _side(last, newest, counts, confidence)
        pair = BinomialCount(before.passes, before.runs), BinomialCount(now.passes, now.runs)
        p_value = fisher(*pair)
        row = rows[-1]
        yield AcrossComparison(
            cell=row.cell,
            axis=axis,
            before=before,
            newest=now,
            workload=row.workload,
            workload_hash=row.workload_hash,
            data=data_in_words(rows),
            scope=row.scope,
            executor=row.executor,
            machine=row.machine,
            p_value=p_value,
            adjusted=p_value,
            also_changed=tuple(_also_changed(others, newest, axis)),
        )


def _side(value: str, rows: Sequence[Row], counts: Counts, confidence: float) -> SideBySide:
    passes = sum(counts[row.run_id].counts_as == "passed" for row in rows)
    bounds = (bound(passes, len(rows), confidence) for bound in (lower_bound, upper_bound))
    return SideBySide(value, passes, len(rows), *bounds)


def _facts(state: HostState, axis: Axis) -> Mapping[str, str]:
    """Return the facts of a host state that belong to an axis, by name; the VBIOS belongs to the firmware."""
    vbios = {name: value for name, value in state.settings.items() if name.startswith(VBIOS)}
    match axis:
        case "kernel":
            return {"": state.kernel}
        case "driver":
            return {"": state.driver or "none"}
        case "firmware":
            return {**state.firmware, **vbios}
        case "parameters":
            return {name: value for name, value in state.settings.items() if name not in vbios}


def _differing(facts: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """Return the names whose values differ between states; a state without any facts is ignored."""
    telling = [one for one in facts if one]
    names = sorted({name for one in telling for name in one})
    return tuple(name for name in names if len({one.get(name) for one in telling}) > 1)


def _value(facts: Mapping[str, str], names: Sequence[str]) -> str:
    """Return the values of these names in words: `6.12`, or `amdgpu.mes 0, iommu not set`."""
    if not facts:
        return "not recorded"
    shown = names or (("",) if "" in facts else ())
    return ", ".join(f"{name} {facts.get(name, 'not set')}".strip() for name in shown) or "as ever"


def _also_changed(before: Sequence[Row], newest: Sequence[Row], axis: Axis) -> Iterator[str]:
    states = [[state_from_json(row.host_state) for row in rows] for rows in (before, newest)]
    for other in AXES:
        facts = [[_facts(state, other) for state in side] for side in states]
        if other != axis and _differing([one for side in facts for one in side]):
            yield other
