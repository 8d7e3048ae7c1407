"""An injected fault and its result: whether it was found, explained and survived, and how soon."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.evidence.app_reports.progress import ProgressReader
from harness.evidence.files.run_files import Record
from harness.evidence.files.run_folder import RunFolder
from harness.faults.kinds import FaultKind
from harness.matrix.stacks import ExecutorName


@dataclass(frozen=True)
class Injection:
    """One injected fault and its result.

    `seconds`: from the fault, or from the last progress before it, until it was found; None for a fault without alarm.
    `trouble`: what was left behind, or did not work afterwards.
    `skipped`: why the fault was not injected; then nothing else is known.
    """

    kind: FaultKind
    executor: ExecutorName
    record: Record | None = None
    seconds: float | None = None
    trouble: tuple[str, ...] = ()
    skipped: str | None = None

    @property
    def objections(self) -> list[str]:
        """Return all deviations from the expectation, in words."""
        if self.skipped:
            return []
        if self.record is None:
            return list(self.trouble) or ["there is no record"]
        return [
            *_of_outcome(self.kind, self.record),
            *_of_class(self.kind, self.record),
            *self.trouble,
        ]

    @property
    def as_expected(self) -> bool:
        """Return whether the fault was injected and everything was as expected."""
        return not self.skipped and not self.objections

    @property
    def survived(self) -> bool:
        """Return whether there is a record, nothing was left behind, and the next run completed."""
        return self.record is not None and not self.trouble

    @property
    def explained(self) -> str | None:
        """Return the class that the explanation gives; None without one."""
        explanation = self.record.explanation if self.record else None
        return explanation.class_ if explanation else None

    @property
    def found(self) -> str:
        """Return the outcome and the diagnosis as text."""
        if self.record is None:
            return ""
        diagnosis = f" ({self.record.diagnosis})" if self.record.diagnosis else ""
        return f"{self.record.outcome}{diagnosis}"

    def as_dict(self) -> dict[str, Any]:
        """Return the injection as plain values."""
        return {
            "kind": self.kind.name,
            "what": self.kind.what,
            "executor": self.executor,
            "expected": str(self.kind.expected),
            "expected_classes": list(self.kind.expected.classes),
            "found": self.found,
            "explained": self.explained,
            "survived": self.survived if not self.skipped else None,
            "seconds": None if self.seconds is None else round(self.seconds, 2),
            "detail": self.record.detail if self.record else None,
            "run": self.record.intent.run_id if self.record else None,
            "as_expected": self.as_expected,
            "objections": self.objections,
            "skipped": self.skipped,
        }


def all_as_expected(injections: Sequence[Injection]) -> bool:
    """Return whether all injections that were not skipped were as expected."""
    return all(one.as_expected for one in injections if not one.skipped)


def _of_outcome(kind: FaultKind, record: Record) -> list[str]:
    expected = kind.expected
    objections = []
    if (record.outcome, record.diagnosis) != (expected.outcome, expected.diagnosis):
        objections.append(f"expected {expected}: {record.detail}")
    if record.injected_fault is None:
        objections.append("the record does not say that a fault was injected")
    if kind.stuck is not None and not record.detail.startswith(f"rank {kind.stuck} "):
        objections.append(f"rank {kind.stuck} is not named first: {record.detail}")
    return objections


def _of_class(kind: FaultKind, record: Record) -> list[str]:
    classes = kind.expected.classes
    explained = record.explanation.class_ if record.explanation else "nothing"
    return (
        [f"explained as {explained}, expected {' or '.join(classes)}"] if classes and explained not in classes else []
    )


def last_progress(folder: Path) -> float | None:
    """Return when a rank last reported progress, by the monotonic clock; None if no rank did."""
    return max((line.monotonic for line in ProgressReader(RunFolder(folder).work).new()), default=None)


def seconds_to_find(folder: Path, fault: float) -> float:
    """Return the seconds from `fault` until evidence was first collected; if none was, until now."""
    now = time.monotonic()
    since_epoch = time.time() - now
    collected = [file.stat().st_mtime - since_epoch for file in RunFolder(folder).failure.glob("*")]
    return max(0.0, min([now, *collected]) - fault)
