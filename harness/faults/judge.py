"""Whether a fault was found, explained and survived. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.evidence.run_files import Record
from harness.faults.kinds import Drill
from harness.matrix.cells import ExecutorName


@dataclass(frozen=True)
class Drilled:
    """What became of one drill.

    `trouble` is what was left behind, or did not work afterwards. `seconds` from the fault, or from the last progress
    before it, to the moment it was found. `skipped`: why it was not made; then nothing else is said.
    """

    drill: Drill
    executor: ExecutorName
    record: Record | None = None
    seconds: float | None = None
    trouble: tuple[str, ...] = ()
    skipped: str | None = None

    @property
    def objections(self) -> list[str]:
        """Everything that is not as it must be, in words."""
        if self.skipped:
            return []
        if self.record is None:
            return list(self.trouble) or ["there is no record"]
        return [*_of_outcome(self.drill, self.record), *_of_class(self.drill, self.record), *self.trouble]

    @property
    def right(self) -> bool:
        """Whether it was made, and everything is as it must be."""
        return not self.skipped and not self.objections

    @property
    def survived(self) -> bool:
        """Whether there is a record, nothing was left, and the next run completed."""
        return self.record is not None and not self.trouble

    @property
    def explained(self) -> str | None:
        """The class that the explanation gives."""
        explanation = self.record.explanation if self.record else None
        return explanation.class_ if explanation else None

    @property
    def found(self) -> str:
        """Outcome and diagnosis."""
        if self.record is None:
            return ""
        diagnosis = f" ({self.record.diagnosis})" if self.record.diagnosis else ""
        return f"{self.record.outcome}{diagnosis}"

    def as_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "kind": self.drill.name,
            "what": self.drill.what,
            "executor": self.executor,
            "expected": str(self.drill.expected),
            "expected_classes": list(self.drill.expected.classes),
            "found": self.found,
            "explained": self.explained,
            "survived": self.survived if not self.skipped else None,
            "seconds": None if self.seconds is None else round(self.seconds, 2),
            "detail": self.record.detail if self.record else None,
            "run": self.record.intent.run_id if self.record else None,
            "right": self.right,
            "objections": self.objections,
            "skipped": self.skipped,
        }


def all_right(drilled: Sequence[Drilled]) -> bool:
    """Whether none of those that were made is wrong."""
    return all(one.right for one in drilled if not one.skipped)


def _of_outcome(drill: Drill, record: Record) -> list[str]:
    expected = drill.expected
    objections = []
    if (record.outcome, record.diagnosis) != (expected.outcome, expected.diagnosis):
        objections.append(f"expected {expected}: {record.detail}")
    if record.drill is None:
        objections.append("the record does not say that it was a drill")
    if drill.stuck is not None and not record.detail.startswith(f"rank {drill.stuck} "):
        objections.append(f"rank {drill.stuck} is not named first: {record.detail}")
    return objections


def _of_class(drill: Drill, record: Record) -> list[str]:
    classes = drill.expected.classes
    told = record.explanation.class_ if record.explanation else "nothing"
    return [f"explained as {told}, expected {' or '.join(classes)}"] if classes and told not in classes else []
