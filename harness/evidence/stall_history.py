"""How long completed runs of the same kind stood still: what the watchdog's limits are learned from."""

from collections.abc import Mapping

from harness.evidence.app_files import Phase
from harness.evidence.index import Index
from harness.evidence.records import Results
from harness.evidence.run_files import Intent

# The newest tell best what this machine is like now.
RUNS = 20


def known_standstills(results: Results, intent: Intent) -> list[Mapping[Phase, float]]:
    """The longest standstills, by phase, of the newest runs with the same identity of evidence that completed.

    Raises:
        UserError: when index or records cannot be read.
    """
    wanted = (intent.environment_hash, intent.workload_hash, intent.host.kind, intent.executor)
    same = [
        row.run_id
        for row in Index(results).rows()
        if (row.environment_hash, row.workload_hash, row.host_kind, row.executor) == wanted
        and row.outcome == "completed"
        and row.drill is None
        # How long it takes here, no other machine can tell.
        and not row.imported
    ]
    records = (results.record(run_id) for run_id in same[-RUNS:])
    return [record.standstill for record in records if record and record.standstill]
