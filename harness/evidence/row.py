"""One run as a row of the index: the values by which many runs are counted, judged and shown."""

import json
import math
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any, NamedTuple

from harness.base.text import LONGEST_QUOTE, safe_text
from harness.environments.docker.source_state import is_dirty
from harness.evidence.app_reports.exposure import Exposure, recorded_exposure
from harness.evidence.files.app_files import Result
from harness.evidence.files.run_files import Intent, Record
from harness.evidence.host_state import state_of
from harness.evidence.interruptions import interruption_of
from harness.evidence.verdicts.scope import scope_of
from harness.matrix.workload_options import family_of
from harness.matrix.workloads import qualifies_for_promotion

# The name of data that the harness made.
SYNTHETIC = "synthetic"
# The texts that another user or host may have chosen.
QUOTED = ("cell", "stack", "preset", "workload", "diagnosis", "detail", "ran_on", "injected_fault", "data", "struck")
# Most bytes of a row as JSON, because every command reads all rows. One of a host with 64 GPUs has half of it.
LARGEST_ROW = 64 << 10
# In samples a second.
LARGEST_SPEED = 1e11


class Row(NamedTuple):
    """The part of a record that the index keeps.

    `gpus` and `beside` are JSON lists, `host_state` is a `HostState` as JSON, `data` is a name. Times are in seconds
    since 1970. `rule` is the rule that explains the run; without one, the class that was found. `resumes_earlier` is
    whether it was given checkpoints of an earlier training.
    """

    run_id: str
    campaign: str | None
    repeat: int
    cell: str
    stack: str
    preset: str
    executor: str
    host_kind: str
    host_fingerprint: str
    environment_hash: str
    workload: str
    workload_hash: str
    family: str
    outcome: str
    diagnosis: str | None
    detail: str
    ran_on: str
    started: float
    seconds: float
    samples_per_second: float | None
    injected_fault: str | None
    rehearsal: bool
    scope: str
    qualifies_for_promotion: bool
    verified: bool
    device: str
    image: str | None
    machine: str
    boot_id: str
    gpus: str
    finished: float
    imported: bool
    first_step: bool | None
    exposure_seconds: float | None
    interrupted_by: str | None
    idle_seconds: float | None
    idle_limit: float | None
    struck: str | None
    host_state: str
    beside: str = "[]"
    own_program: bool = False
    uncommitted: bool = False
    node: str | None = None
    data: str = ""
    rule: str = ""
    resumes_earlier: bool = False
    data_sha256: str = ""

    @classmethod
    def of(
        cls,
        record: Record,
        *,
        imported: bool = False,
        struck: str | None = None,
        exposure: Exposure | None = None,
    ) -> "Row":
        """Return the row of a record. `struck`: why it was struck out; `exposure`: what the run's progress shows."""
        intent, host = record.intent, record.intent.host
        values: dict[str, Any] = {"host_kind": host.kind, "host_fingerprint": host.fingerprint}
        values |= {"host_state": state_of(host, gpus_used=intent.device != "cpu").as_json}
        values |= {"machine": host.machine, "boot_id": host.boot_id, "gpus": json.dumps(intent.gpus)}
        values |= {"node": intent.scheduled.node if intent.scheduled else None}
        values |= {"uncommitted": is_dirty(intent.revision)}
        values |= {"data": data_name(intent), "data_sha256": intent.data.sha256}
        # Later attempts of a training resume from its own checkpoints.
        values |= {"resumes_earlier": intent.repeat == 1 and any(intent.resumed)}
        values |= {"beside": json.dumps(intent.beside), "own_program": intent.program is not None}
        values |= {
            "scope": scope_of(intent),
            "family": family_of_intent(intent),
            "qualifies_for_promotion": qualifies_for_promotion(intent.options)
            and not intent.smoke_test
            and record.verified
            and not host.simulated
            and not intent.rehearsal
            and not is_dirty(intent.revision),
            "verified": record.verified,
            "imported": imported,
            "struck": struck,
        }
        exposure = exposure or recorded_exposure(record)
        values |= {"first_step": exposure.first_step, "exposure_seconds": exposure.seconds}
        values |= {"interrupted_by": interruption_of(record)}
        values |= {"samples_per_second": _speed(record.result)}
        values |= {"injected_fault": record.injected_fault}
        why = record.explanation
        values |= {"rule": (why.rule or why.class_) if why else ""}
        # A field that is in neither is a mistake in this module, not a missing value.
        known = dict(intent) | dict(record) | values
        return cls(**{name: known[name] for name in cls._fields})

    @property
    def can_be_evidence(self) -> bool:
        """Return whether the run says something about its cell: it has no injected fault, and is not a rehearsal."""
        return self.injected_fault is None and not self.rehearsal

    @property
    def is_too_large(self) -> bool:
        """Return whether the row is larger than that of any run."""
        return len(json.dumps(self)) > LARGEST_ROW

    @property
    def is_unverified(self) -> bool:
        """Return whether this host verified nothing of what the run says, so that it qualifies for nothing."""
        return not (self.verified or self.own_program)

    def quoted(self) -> "Row":
        """Return the row of another user's or host's run with its texts quoted, so that none passes for our own words.

        Quote a row, not the record that it is made from: only the detail of an old record tells what interrupted it.
        """
        texts = {name: text for name in QUOTED if (text := getattr(self, name)) is not None}
        quoted: dict[str, Any] = {name: safe_text(text, LONGEST_QUOTE) for name, text in texts.items()}
        return self._replace(**quoted)


def _speed(result: Result | None) -> float | None:
    """Return the speed that a result claims; None if no run can be that fast, because an app may claim anything."""
    speed = result.throughput.samples_per_second if result else math.nan
    return speed if 0 <= speed < LARGEST_SPEED else None


def family_of_intent(intent: Intent) -> str:
    """Return the workload family of a run; older intents do not have it."""
    return intent.family or family_of(intent.options)


def data_name(intent: Intent) -> str:
    """Return the name of a run's data file; `synthetic` if the harness made it, empty for a program of the user's."""
    return "" if intent.program is not None else name_of_data(intent.data.path)


def name_of_data(path: str) -> str:
    """Return the name of the data of runs, from the path in their records."""
    name = PurePath(path).name
    return SYNTHETIC if name.startswith(f"{SYNTHETIC}-") else name


def data_in_words(rows: Iterable[Row]) -> str:
    """Return the names of the data of runs, each once, in one text."""
    return ", ".join(dict.fromkeys(row.data for row in rows if row.data))
