"""A recorded terminal, and a line of progress to show on it."""

import io
import re
from typing import Any

from rich.console import Console

from harness.evidence.files.app_files import Progress
from harness.evidence.verdicts.totals import Totals
from harness.evidence.verdicts.verdict import Verdict

NOW = 1e9
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def a_line(**changes: Any) -> Progress:
    memory = {"rss_bytes": 2_000_000_000, "device_allocated_bytes": None, "device_reserved_bytes": None}
    values = {"wall": NOW, "monotonic": 1.0, "rank": 0, "pid": 1, "phase": "step", "done": 30, "total": 120}
    return Progress.model_validate(
        {"schema": 2, **values, "max_step_s": 0.1, "loss": 0.69314, "gradient_norm": 1.0, "memory": memory, **changes}
    )


def console_of(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), width=100, height=30, force_terminal=terminal, highlight=False)


def printed(console: Console) -> str:
    return ESCAPES.sub("", console.file.getvalue())  # type: ignore[attr-defined]


def a_verdict(**changes: Any) -> Verdict:
    values: dict[str, Any] = {
        "cell": "cpu-plain", "stack": "cpu", "preset": "plain", "scope": "cpu", "device": "cpu", "ran_on": "cpu",
        "workload": "quick", "workload_hash": "w", "environment_hash": "e", "host_kind": "k", "executor": "process",
        "family": "f", "data": "", "qualifies_for_promotion": False, "verified": True, "stale": False, "tier": "seen",
        "totals": Totals(), "start_low": 0.3, "mtbf_low": 0.0, "hours_ids": (),
        "passes": 3, "runs": 3, "low": 0.3, "high": 1.0,
        "outcomes": {}, "diagnoses": {}, "not_counted": {}, "imported": 0, "run_ids": (),
        "failed_ids": (), "gpu_faults": (), "struck": {}, "last": "r", "last_at": 1.0,
        "settings": {}, "changed": (), "own_program": False, "uncommitted": False,
    }  # fmt: skip
    return Verdict(**{**values, **changes})
