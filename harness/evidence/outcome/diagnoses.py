"""The diagnoses of runs, and the outcome and diagnosis of a run that was ended from outside."""

from collections.abc import Mapping
from typing import Literal

from harness.evidence.files.run_files import OutcomeName

EndDiagnosis = Literal[
    "app-error",
    "crash",
    "disk-limit",
    "no-progress",
    "not-finite",
    "not-started",
    "out-of-memory",
    "refused",
    "unhealthy-gpu",
    "time-limit",
    "unkillable",
    "wrong-result",
]
"""Diagnoses that say how a run ended or what was seen of it; exit codes, logs and stacks say why."""
ResultDiagnosis = Literal[
    "injected-fault",
    "incomplete-result",
    "memory-grows",
    "memory-limit",
    "missing-arch",
    "model-damaged",
    "model-does-not-load",
    "no-result",
    "not-begun",
    "wrong-data",
    "wrong-device",
    "wrong-stack",
    "verification-failed",
    "work-folder",
    "wrong-workload",
]
"""Diagnoses decided from the result or from measurements; the detail of the outcome is the cause."""
Diagnosis = EndDiagnosis | ResultDiagnosis
StoppedBy = Literal[
    "user",
    "time-limit",
    "disk-limit",
    "watchdog",
    "breach",
    "work-folder",
    "host",
    "unhealthy",
    "image",
    "start",
    "engine",
    "harness",
]
BREACH = "what it reports cannot be so: "
"""The beginning of the detail of a run whose progress, or result, contradicts itself or what was seen of the run."""
ENDED_FROM_OUTSIDE: Mapping[StoppedBy, tuple[OutcomeName, Diagnosis | None]] = {
    "user": ("interrupted", None),
    "engine": ("interrupted", None),
    "harness": ("interrupted", None),
    "time-limit": ("failed", "time-limit"),
    "disk-limit": ("failed", "disk-limit"),
    "watchdog": ("hung", "no-progress"),
    "breach": ("failed", "wrong-result"),
    "work-folder": ("failed", "work-folder"),
    "host": ("host-fault", "unkillable"),
    "unhealthy": ("host-fault", "not-begun"),
    "image": ("host-fault", "not-begun"),
    "start": ("failed", "not-started"),
}
"""The outcome and diagnosis of a run, by what ended it from outside."""

# The app computed something else than requested, or its result cannot be judged: never resume from such an attempt.
WRONG: frozenset[Diagnosis] = frozenset(
    {
        "wrong-result",
        "wrong-workload",
        "wrong-data",
        "wrong-device",
        "wrong-stack",
        "incomplete-result",
        "verification-failed",
        "model-damaged",
        "model-does-not-load",
        "work-folder",
    }
)


def is_wrong(diagnosis: str | None, *, has_result: bool) -> bool:
    """Return whether nothing may be resumed from a run with this diagnosis.

    If the app itself found a number that is not finite, it stopped then and left no result: its checkpoints are sound.
    """
    return diagnosis in WRONG or (diagnosis == "not-finite" and has_result)
